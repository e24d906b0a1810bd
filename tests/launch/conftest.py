from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_core.launch.environment import RUN_DIR
from elastic_core.launch.process import ProcessId, kill_marked
from elastic_core.launch.rundir import RunDir


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A folder for state; whatever runs below it is ended with the test."""
    yield tmp_path
    for path in (tmp_path / "run").glob("*"):
        agent = RunDir(path).read("agent.json")
        if agent and agent["pid"] != os.getpid():  # the debug launcher's agent is this process
            ProcessId(**agent).send(signal.SIGKILL)
        kill_marked(RUN_DIR, str(path))
