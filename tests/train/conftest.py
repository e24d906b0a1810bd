from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.train.job import Job


@pytest.fixture
def new_job(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., Job]]:
    """A factory of jobs, each in a folder of its own; their logs are shown when the test fails."""
    jobs: list[Job] = []

    def make(name: str = "a", **options: Any) -> Job:
        folder = tmp_path / name
        folder.mkdir()
        jobs.append(Job(folder, **options))
        return jobs[-1]

    yield make
    for job in jobs:
        print(f"--- logs of {job.folder.name}\n{job.logs()}")
