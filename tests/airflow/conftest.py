"""A control API over a real ledger on a port of its own, and Airflow's supervisor played by a small double."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import tests.airflow_home  # noqa: F401 - before anything of Airflow is imported

os.environ["AIRFLOW__WORKERS__MIN_HEARTBEAT_INTERVAL"] = "0"  # triggers then need not keep quiet

import uvicorn
from airflow.sdk.execution_time import task_runner
from fastapi import FastAPI

from elastic_core.control.plane import LedgerControl
from elastic_core.protocol.callers import Caller, NoDirectory
from elastic_core.protocol.http_client import HttpControl
from tests.airflow.doubles import FakeSupervisor
from tests.builders import CONTROL_SECRET, FakeClock, FakeJobRuns, Life, a_control
from tests.control.serving import PREFIX, app_before


@pytest.fixture(autouse=True)
def stood_back(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """What operators asked of `os.nice`, which they call in a process of their own: this one goes on testing."""
    asked: list[int] = []
    monkeypatch.setattr(os, "nice", asked.append)
    return asked


@pytest.fixture
def runs() -> FakeJobRuns:
    """Runs of `elastic_job` as the control plane sees them; `airflow` has what tasks see."""
    return FakeJobRuns()


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(time.time())


@pytest.fixture
def plane(pool_url: str, tmp_path: Path, clock: FakeClock, runs: FakeJobRuns) -> Iterator[LedgerControl]:
    """The ledger's side, where a test plays launcher and trainer."""
    control = a_control(pool_url, tmp_path, clock, runs)
    yield control
    control.close()


class Api:
    """The control API under uvicorn; can be taken away and brought back on the same port."""

    def __init__(self, app: FastAPI) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}{PREFIX}"
        self.app = app

    def start(self) -> None:
        config = uvicorn.Config(self.app, host="127.0.0.1", port=self.port, log_level="warning")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join()


@pytest.fixture
def api(plane: LedgerControl, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    with app_before(plane) as app:
        served = Api(app)
        served.start()
        connection = f'{{"conn_type": "http", "host": "{served.url}", "password": "{CONTROL_SECRET.decode()}"}}'
        monkeypatch.setenv("AIRFLOW_CONN_ELASTIC_CONTROL", connection)
        yield served
        served.stop()


@pytest.fixture
def control(api: Api) -> Iterator[HttpControl]:
    client = HttpControl(api.url, CONTROL_SECRET)
    yield client
    client.close()


@pytest.fixture
def whose_marks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Of which tasks the control API was asked to find out who marked them: dag, run, task, map index."""
    tasks: list[tuple[Any, ...]] = []
    looked_up = NoDirectory.marked

    def marked(self: NoDirectory, *task: Any) -> Caller:
        tasks.append(task)
        return looked_up(self, *task)

    monkeypatch.setattr(NoDirectory, "marked", marked)
    return tasks


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> FakeSupervisor:
    supervisor = FakeSupervisor()
    monkeypatch.setattr(task_runner, "SUPERVISOR_COMMS", supervisor, raising=False)
    return supervisor


@pytest.fixture
def life(plane: LedgerControl) -> Life:
    """Plays the processes of job `digits-1`."""
    return Life(control=plane, trainer=plane.trainer, job_id="digits-1")
