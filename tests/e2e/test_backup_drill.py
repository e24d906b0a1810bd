"""The drill: jobs run, a back-up is made, they train on, everything is lost; they go on from the back-up elsewhere."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_airflow.names import resumed_run_id
from tests.e2e.platform import Platform, eventually
from tests.e2e.test_main_line import a_job, assert_read_exactly_once, finished, job_of, start, trains

SAMPLES = 12_000


@pytest.fixture
def homes() -> Iterator[tuple[Platform, Platform, Path]]:
    """The installation, the one that takes its place, and the folder of the back-up."""
    folder = Path(tempfile.mkdtemp(prefix="elastic-drill-"))
    folder.chmod(0o711)  # PostgreSQL runs as a user of its own, who has to pass
    for name in ("first", "second"):
        (folder / name).mkdir()
    platforms = Platform(folder / "first"), Platform(folder / "second")
    try:
        yield *platforms, folder / "backup"
    finally:
        for platform in platforms:
            if platform.home.exists():
                platform.elastic("down", check=False)
        left = [pid for platform in platforms for pid in platform.processes()]
        shutil.rmtree(folder, ignore_errors=bool(left))
    assert left == []


def newest_step(platform: Platform, job_id: str) -> int:
    return max((saved.step for saved in platform.control.checkpoints(job_id)), default=0)


@pytest.mark.nightly
def test_jobs_go_on_from_a_backup_in_a_fresh_home_with_new_secrets_and_read_every_sample_once(
    homes: tuple[Platform, Platform, Path],
) -> None:
    first, second, backup = homes
    first.up()
    for name in ("one", "two"):
        start(first, a_job(name, samples=SAMPLES, checkpoints={"interval_seconds": 2}))
    for name in ("one", "two"):
        eventually(lambda name=name: trains(first, name), 240, f"{name} trains")
        eventually(lambda name=name: newest_step(first, name), 120, f"{name} has a checkpoint")
    print(first.elastic("backup", str(backup)).stdout)
    backed_up = {name: newest_step(first, name) for name in ("one", "two")}
    for name in ("one", "two"):
        eventually(lambda name=name: newest_step(first, name) > backed_up[name], 120, f"{name} trains on")
    first.down()
    lost = {name: newest_in_store(first, name) for name in ("one", "two")}
    shutil.rmtree(first.home)

    second.elastic("restore", str(backup))
    restored_at = time.time()
    second.up()
    for name in ("one", "two"):
        assert backed_up[name] < lost[name]
        assert job_of(second, name) is not None
        known = [saved.epoch for saved in second.control.checkpoints(name) if saved.committed_at < restored_at]
        assert known, "it goes on from a checkpoint of before"
    for name in ("one", "two"):
        assert finished(second, name, 600).done_samples == SAMPLES
        assert_read_exactly_once(second, name)
        run = resumed_run_id(name)  # this Airflow never knew the first one
        eventually(lambda run=run: second.run_state("elastic_job", run) == "success", 300, f"{run} succeeds")


def newest_in_store(platform: Platform, job_id: str) -> int:
    return max(int(path.name.split("-")[1]) for path in (platform.home / "store" / job_id).glob("lineage-0/step-*"))
