"""Homes with short paths that clean up after themselves: nothing that a test started outlives it."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_core.host.process import end_processes
from elastic_core.services.supervision.marks import of_home
from elastic_core.services.supervision.supervise import Supervisor


@pytest.fixture
def home() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="elastic-sv-"))
    yield folder
    supervisor = Supervisor(folder)
    if supervisor.running():
        os.kill(supervisor.pid(), signal.SIGKILL)
    end_processes(of_home(folder), 2.0)
    shutil.rmtree(folder)
