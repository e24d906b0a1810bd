"""Rank 0's heartbeat, against a real ledger in a folder."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from elastic_core.errors import InfrastructureError
from elastic_core.protocol.trainer import HeartbeatAnswer
from elastic_core.train.lease.lease_heartbeat import LeaseHeartbeat
from elastic_core.train.lease.standby_workers import StandbyWorkers
from elastic_core.train.lease.stop_requests import StopRequest, StopRequests
from tests.train.job import Job
from tests.train.lease.waiting import until
from tests.train.ledger import FolderLedger, make_order


@pytest.fixture
def start(start_link):
    def begin(connect=None, **order):
        link, *told = start_link(connect, **order)
        return link.heartbeat, *told

    return begin


def test_beats_carry_the_progress_and_renew_the_lease(ledger, start):
    ledger.set(lease_seconds=30.0)
    heartbeat, *_ = start(lease_seconds=1.0)
    heartbeat.progressed(7, 56)
    until(lambda: ledger.read()["beats"] and ledger.read()["beats"][-1][:2] == [7, 56])
    until(lambda: heartbeat.lease_left() > 25)
    assert heartbeat.lease_left() <= 30


def test_the_next_beat_comes_when_the_answer_says(ledger, start):
    ledger.set(heartbeat_seconds=60.0)
    heartbeat, *_ = start(heartbeat_seconds=0.05)
    until(lambda: heartbeat.interval == 60.0)
    beats = len(ledger.read()["beats"])
    time.sleep(0.5)
    assert len(ledger.read()["beats"]) == beats


def test_request_for_a_boundary_is_heard_with_its_reason(ledger, start):
    _, stop_requests, *_ = start()
    ledger.set(directive="boundary", reason="resize to 4 slots")
    until(lambda: stop_requests.current == (StopRequest.BOUNDARY, "resize to 4 slots"))
    stop_requests.request(StopRequest.STOP, "cancelled")
    stop_requests.request(StopRequest.BOUNDARY, "too late")
    assert stop_requests.current == (StopRequest.STOP, "cancelled")


def test_new_token_is_used_and_kept_for_the_agent(ledger, start):
    heartbeat, _, _, orders = start()
    ledger.set(token="epoch-1")
    before = heartbeat.trainer
    until(lambda: orders and heartbeat.trainer is not before)
    assert orders[0].token == "epoch-1"


def test_lease_is_counted_from_when_the_request_was_sent(ledger, start):
    class Slow(FolderLedger):
        def heartbeat(self, beat):
            time.sleep(0.5)
            return HeartbeatAnswer(directive="go_on", lease_seconds=10.0)

    heartbeat, *_ = start(lambda token: Slow(ledger.folder, token), lease_seconds=1.0)
    until(lambda: heartbeat.lease_left() > 5)
    assert heartbeat.lease_left() < 9.6


def test_hanging_control_plane_cannot_keep_the_watch_from_stopping(ledger, start):
    class Hangs(FolderLedger):
        def heartbeat(self, beat):
            over.wait(60)
            raise InfrastructureError("at last")

    over = threading.Event()

    started = time.monotonic()
    _, stop_requests, lost, _ = start(lambda token: Hangs(ledger.folder, token), lease_seconds=1.0)
    until(lambda: lost)
    over.set()
    assert 0.8 < time.monotonic() - started < 1.0
    assert stop_requests.current[0] is StopRequest.STOP


def test_word_of_a_lease_that_we_ended_ourselves_is_not_fencing(ledger, start):
    heartbeat, stop_requests, lost, _ = start()
    heartbeat.expect_fencing(True)
    ledger.set(epoch=2)
    beats = len(ledger.read()["beats"])
    until(lambda: len(ledger.read()["beats"]) > beats + 2)
    assert not lost
    heartbeat.adopt(replace(heartbeat.order, epoch=2, token="epoch-2"), time.monotonic())
    beats = len(ledger.read()["beats"])
    until(lambda: len(ledger.read()["beats"]) > beats + 2)
    assert not lost
    ledger.set(epoch=3)
    until(lambda: lost)
    assert "epoch 2" in lost[0]
    assert stop_requests.current[0] is StopRequest.STOP


def test_a_hand_over_that_is_heard_of_late_does_not_take_back_a_later_beats_renewal(ledger, start):
    heartbeat, *_ = start(lease_seconds=60.0)
    until(lambda: ledger.read()["beats"])
    before = heartbeat.lease_left()
    heartbeat.adopt(replace(heartbeat.order, epoch=2, token="epoch-2"), time.monotonic() - 50)
    assert heartbeat.lease_left() > before - 5


def test_the_last_answer_says_whether_the_allocation_is_to_stay(ledger, start):
    heartbeat, *_ = start()
    assert not heartbeat.steady
    ledger.set(steady=True)
    until(lambda: heartbeat.steady)
    ledger.set(away=True)
    assert heartbeat.steady
    ledger.set(away=False, steady=False)
    until(lambda: not heartbeat.steady)


def test_that_workers_are_awaited_holds_while_it_is_looked_whether_they_have_come(ledger, start_link, run_dir):
    """Training reads it at every step: a moment without it would end a segment whose time is up, without its growth."""

    class Watched(StandbyWorkers):
        def request_workers(self, slots):
            found.extend(link.heartbeat.awaits_workers for link in links)
            return super().request_workers(slots)

    found, links = [], []
    ledger.set(directive="boundary", to_come=[0, 1])
    link, stop_requests, *_ = start_link(standby=Watched(run_dir))
    until(lambda: link.heartbeat.awaits_workers)
    links.append(link)
    until(lambda: len(found) > 3)
    assert all(found)
    assert stop_requests.current[0] is StopRequest.NONE


def test_a_new_token_does_not_take_the_place_of_the_next_segments_order(ledger, run_dir, tmp_path):
    """The beat that has brought it may be slow to write it down, and training hears of the next segment meanwhile."""
    begun, written = threading.Event(), []

    def write(order):
        if not begun.is_set():
            begun.set()
            time.sleep(0.5)
        run_dir.write_order(order)
        written.append(order)

    order = make_order(Job(tmp_path).job_spec(), slots=1, batch=8, total=100, dataset=50)
    ledger.set(token="epoch-1")
    heartbeat = LeaseHeartbeat(
        order, lambda token: FolderLedger(ledger.folder, token), StopRequests(), on_lost=written.append, on_order=write
    )  # fmt: skip
    heartbeat.start()
    assert begun.wait(10)
    heartbeat.adopt(replace(order, epoch=2, token="epoch-2"), time.monotonic())
    heartbeat.close()
    until(lambda: len(written) > 1)
    assert run_dir.order().epoch == 2
