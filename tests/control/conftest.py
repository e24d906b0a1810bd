from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from elastic_core.control.plane import LedgerControl
from elastic_core.protocol.http_client import HttpControl, HttpTrainer
from elastic_core.protocol.service import ServiceControl
from elastic_core.protocol.trainer import TrainerControl
from tests.builders import CONTROL_SECRET, FACTS, FakeClock, FakeJobRuns, Life, a_control, a_spec
from tests.control.serving import app_before, served


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def runs() -> FakeJobRuns:
    return FakeJobRuns()


@pytest.fixture
def ledger_url(pool_url: str) -> str:
    """With a pool: what reads a test's ledger beside its control plane reads the same."""
    return pool_url


@pytest.fixture
def control(ledger_url: str, tmp_path: Path, clock: FakeClock, runs: FakeJobRuns) -> Iterator[LedgerControl]:
    """In process, on a pool of two nodes with two CPU slots each, sharing fairly."""
    plane = a_control(ledger_url, tmp_path, clock, runs)
    yield plane
    plane.close()


@dataclass
class Plane:
    """An implementation of the contract under test: in process or over HTTP."""

    service: ServiceControl
    trainer: Callable[[str], TrainerControl]
    clock: FakeClock

    def life(self, job_id: str = "job-a", **spec: Any) -> Life:
        self.service.submit(job_id, a_spec(**spec), FACTS)
        return Life(self.service, self.trainer, job_id)


@pytest.fixture(params=["in process", "http"])
def plane(request: pytest.FixtureRequest, control: LedgerControl, clock: FakeClock) -> Iterator[Plane]:
    if request.param == "in process":
        yield Plane(control, control.trainer, clock)
        return
    with app_before(control) as app, served(app) as url, ExitStack() as stack:
        service = HttpControl(f"{url}/elastic", CONTROL_SECRET, patience_seconds=5)
        stack.callback(service.close)

        def trainer(token: str) -> HttpTrainer:
            client = HttpTrainer(f"{url}/elastic", token, patience_seconds=5, clock=clock)
            stack.callback(client.close)
            return client

        yield Plane(service, trainer, clock)
