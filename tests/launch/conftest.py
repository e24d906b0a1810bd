from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_core.host.environment import RUN_DIR
from elastic_core.host.messages import AgentProcess
from elastic_core.host.process import kill_marked
from elastic_core.host.rundir import RunDir


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    """A folder for state; whatever runs below it is ended with the test."""
    yield tmp_path
    for path in (tmp_path / "run").glob("*"):
        agent = RunDir(path).read(AgentProcess)
        if agent and agent.pid != os.getpid():  # the debug launcher's agent is this process
            agent.process.send(signal.SIGKILL)
        kill_marked(RUN_DIR, str(path))
