from __future__ import annotations

import pytest

from elastic_core.train.lease.control_link import ControlLink
from elastic_core.train.lease.stop_requests import StopRequests
from tests.train.job import Job
from tests.train.ledger import FolderLedger, make_order


@pytest.fixture
def ledger(tmp_path):
    return FolderLedger(tmp_path / "ledger")


@pytest.fixture
def run_dir(tmp_path):
    run_dir = Job(tmp_path).run_dir(1)
    run_dir.create()
    return run_dir


@pytest.fixture
def start_link(ledger, tmp_path):
    """Rank 0's link to that ledger, started; its stop requests, and what `on_lost` and `on_order` were called with."""
    links = []

    def begin(connect=None, standby=None, **order):
        stop_requests, lost, orders = StopRequests(), [], []
        link = ControlLink(
            make_order(Job(tmp_path).job_spec(), **{"slots": 1, "batch": 8, "total": 100, "dataset": 50, **order}),
            connect or (lambda token: FolderLedger(ledger.folder, token)),
            stop_requests,
            on_lost=lost.append,
            on_order=orders.append,
            standby=standby,
        )
        link.start()
        links.append(link)
        return link, stop_requests, lost, orders

    yield begin
    for link in links:
        link.stop(0)
