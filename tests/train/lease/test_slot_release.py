"""Slots that the lease has lost: given back once their workers are gone, under the token in force by then."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

from elastic_core.errors import Conflict
from elastic_core.train.lease.standby_workers import StandbyWorkers
from tests.train.lease.waiting import until
from tests.train.ledger import FolderLedger


def shrink(link) -> None:
    """The lease passes on with the first of two slots."""
    allocation = link.heartbeat.order.allocation
    order = replace(
        link.heartbeat.order,
        epoch=2,
        token="epoch-2",
        allocation=replace(allocation, slots=allocation.slots[:1], layout=allocation.layout.over(1)),
    )
    link.adopt(order, time.monotonic())


def test_slots_are_given_back_when_their_workers_are_gone_and_not_before(ledger, start_link, run_dir):
    link, *_ = start_link(standby=StandbyWorkers(run_dir), slots=2)
    run_dir.write_json("workers.json", [{"pid": 1, "start_time": 1, "slot": "n:1"}])
    shrink(link)
    time.sleep(0.2)
    assert ledger.read()["released"] == []
    run_dir.write_json("workers.json", [])
    until(lambda: ledger.read()["released"] == [[1]])


def test_a_refusal_is_asked_again_under_the_new_token(ledger, start_link, run_dir):
    epochs = []

    class Refuses(FolderLedger):
        def release_slots(self, slots):
            epochs.append(self.epoch)
            if len(epochs) < 3:
                raise Conflict("not yet")
            super().release_slots(slots)

    link, *_ = start_link(lambda token: Refuses(ledger.folder, token), StandbyWorkers(run_dir), slots=2)
    run_dir.write_json("workers.json", [])
    shrink(link)
    until(lambda: ledger.read()["released"] == [[1]])
    assert epochs == [2, 2, 2]


def test_a_lost_lease_ends_every_thread(ledger, start_link, run_dir):
    link, _, lost, _ = start_link(standby=StandbyWorkers(run_dir), slots=2)
    run_dir.write_json("workers.json", [{"pid": 1, "start_time": 1, "slot": "n:1"}])
    shrink(link)
    ledger.set(epoch=99)
    until(lambda: lost)
    until(lambda: "slot-release" not in {thread.name for thread in threading.enumerate()})
    run_dir.write_json("workers.json", [])
    time.sleep(0.2)
    assert ledger.read()["released"] == []
