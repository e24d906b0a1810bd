"""Who holds the lease when another process becomes rank 0: one of them at any time, and never for too long."""

from __future__ import annotations

import errno
import threading
import time
from dataclasses import replace

import pytest

from elastic_core.errors import InfrastructureError
from elastic_core.host.messages import LeaseHeld, StandbyRequest
from elastic_core.host.process import ProcessId
from elastic_core.train.lease import lease_holder
from elastic_core.train.lease.lease_holder import LeaseHolder
from elastic_core.train.lease.standby_workers import StandbyWorkers
from elastic_core.train.lease.stop_requests import StopRequests
from tests.train.job import Job
from tests.train.lease.waiting import until
from tests.train.ledger import FolderLedger, make_order


@pytest.fixture
def run_dir(tmp_path):
    run_dir = Job(tmp_path).run_dir(1)
    run_dir.create()
    return run_dir


@pytest.fixture
def new_holder(ledger, run_dir):
    holders = []

    def make() -> LeaseHolder:
        holders.append(
            LeaseHolder(
                run_dir, lambda token: FolderLedger(ledger.folder, token), StopRequests(), on_lost=lost.append,
                resizable=True,
            )
        )  # fmt: skip
        return holders[-1]

    lost: list[str] = []
    yield make
    for one in holders:
        one.close()


def test_the_agent_is_told_until_when_the_lease_holds_while_this_process_has_it(
    ledger, run_dir, new_holder, tmp_path, monkeypatch
):
    holder, began = new_holder(), time.monotonic()
    link = holder.open(the_order(tmp_path))
    held = run_dir.require(LeaseHeld)
    assert held.process == ProcessId.current()
    assert began < held.until <= time.monotonic() + link.heartbeat.order.lease_seconds
    until(lambda: run_dir.require(LeaseHeld).until > held.until)  # each heartbeat renews it
    with monkeypatch.context() as full:
        full.setattr(type(run_dir), "write", fail_as_on_a_full_disk)
        until(lambda: run_dir.read(LeaseHeld) is None)  # and nobody is ended by an instant that is past
    until(lambda: run_dir.read(LeaseHeld) is not None)
    holder.close()
    assert run_dir.read(LeaseHeld) is None


def fail_as_on_a_full_disk(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def the_order(tmp_path):
    return make_order(Job(tmp_path).job_spec(), slots=2, batch=8, total=100, dataset=50)


def on_the_second_slot(order):
    """The next segment's order, in which rank 0's slot is no more."""
    allocation = order.allocation
    return replace(
        order,
        epoch=2,
        token="epoch-2",
        allocation=replace(allocation, slots=allocation.slots[1:], layout=allocation.layout.over(1)),
    )


def test_the_old_rank_0_falls_silent_and_the_new_one_goes_on_under_the_new_epoch(ledger, run_dir, new_holder, tmp_path):
    order = the_order(tmp_path)
    old, new = new_holder(), new_holder()
    link = old.open(order)
    until(lambda: ledger.read()["beats"])
    link.adopt(on_the_second_slot(order), time.monotonic())
    time.sleep(0.2)
    beats = len(ledger.read()["beats"])
    time.sleep(0.3)
    assert len(ledger.read()["beats"]) == beats
    ledger.set(epoch=2)
    told = replace(on_the_second_slot(order), token="")  # as the answer to the commit comes to other ranks
    new.follow(told, told.allocation.slots[0], leased_from=time.monotonic())
    until(lambda: len(ledger.read()["beats"]) > beats)
    assert new.link.heartbeat.order.token == "epoch-2"
    assert old.link is link  # its observations may still be under way


def test_the_lease_holds_no_longer_than_from_before_the_commit(run_dir, new_holder, tmp_path):
    order = on_the_second_slot(the_order(tmp_path))
    run_dir.write_order(order)
    new = new_holder()
    new.connect = lambda token: FolderLedger(tmp_path / "away", token)
    FolderLedger(tmp_path / "away").set(away=True)
    new.follow(order, order.allocation.slots[0], leased_from=time.monotonic() - 50.0)
    assert 5.0 < new.link.heartbeat.lease_left() < 10.0


def test_it_waits_for_the_order_and_says_so_where_none_comes(run_dir, new_holder, tmp_path, monkeypatch):
    order = the_order(tmp_path)
    run_dir.write_order(order)
    coming = on_the_second_slot(order)
    monkeypatch.setattr(lease_holder, "ORDER_SECONDS", 0.1)
    new = new_holder()
    with pytest.raises(InfrastructureError, match=r"the order of epoch 2 was not in .* but that of epoch 1"):
        new.follow(coming, coming.allocation.slots[0], leased_from=time.monotonic())
    monkeypatch.setattr(lease_holder, "ORDER_SECONDS", 10.0)
    threading.Timer(0.1, run_dir.write_order, [coming]).start()
    new.follow(coming, coming.allocation.slots[0], leased_from=time.monotonic())
    assert new.link.heartbeat.order.epoch == 2


def test_who_stays_as_another_rank_renews_no_lease(ledger, run_dir, new_holder, tmp_path):
    order = the_order(tmp_path)
    old = new_holder()
    old.open(order)
    slots = order.allocation.slots
    swapped = replace(order, epoch=2, allocation=replace(order.allocation, slots=slots[::-1]))
    old.follow(swapped, slots[0], leased_from=time.monotonic())
    assert old.link is None


def test_requests_for_workers_are_numbered_on_from_those_of_the_old_rank_0(run_dir, tmp_path):
    slots = the_order(tmp_path).allocation.slots
    StandbyWorkers(run_dir).request_workers(slots[:1])
    StandbyWorkers(run_dir).request_workers(slots[1:])
    assert run_dir.read(StandbyRequest).request == 2
