"""Rank 0's line to the control plane, against a real ledger in a folder."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from elastic_core.control.contract import HeartbeatAnswer
from elastic_core.domain import Observation
from elastic_core.errors import Conflict, InfrastructureError
from elastic_core.train.heartbeat import Heart, Wish, Wishes
from tests.train.job import Job
from tests.train.ledger import FolderLedger, make_order


def until(condition, seconds: float = 5.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def ledger(tmp_path):
    return FolderLedger(tmp_path / "ledger")


@pytest.fixture
def start(ledger, tmp_path):
    hearts = []

    def begin(connect=None, **order):
        lost, orders = [], []
        made = make_order(Job(tmp_path).job_spec(), slots=1, batch=8, total=100, dataset=50, **order)
        heart = Heart(
            made,
            connect or (lambda token: FolderLedger(ledger.folder, token)),
            Wishes(),
            on_lost=lost.append,
            on_order=orders.append,
        )
        heart.start()
        hearts.append(heart)
        return heart, heart._wishes, lost, orders

    yield begin
    for heart in hearts:
        heart.stop(0)


def observation(step: int) -> Observation:
    return Observation(
        step=step, samples=step, at=0.0, epoch=0.0, num_slots=1, num_nodes=1, type="cpu", global_batch=1, local_batch=1,
        accumulation=1, step_seconds=0.1, sync_seconds=0.0, samples_per_second=10.0, loss=1.0, learning_rate=0.1,
    )  # fmt: skip


def test_beats_carry_the_progress_and_renew_the_lease(ledger, start):
    ledger.set(lease_seconds=30.0)
    heart, *_ = start(lease_seconds=1.0)
    heart.progressed(7, 56)
    until(lambda: ledger.read()["beats"] and ledger.read()["beats"][-1][:2] == [7, 56])
    until(lambda: heart.lease_left() > 25)
    assert heart.lease_left() <= 30


def test_wish_for_a_boundary_is_heard_with_its_reason(ledger, start):
    _, wishes, *_ = start()
    ledger.set(directive="boundary", reason="resize to 4 slots")
    until(lambda: wishes.current == (Wish.BOUNDARY, "resize to 4 slots"))
    wishes.want(Wish.STOP, "cancelled")
    wishes.want(Wish.BOUNDARY, "too late")
    assert wishes.current == (Wish.STOP, "cancelled")


def test_new_token_is_used_and_kept_for_the_agent(ledger, start):
    heart, _, _, orders = start()
    ledger.set(token="epoch-1")
    before = heart.trainer
    until(lambda: orders and heart.trainer is not before)
    assert orders[0].token == "epoch-1"


def test_lease_is_counted_from_when_the_request_was_sent(ledger, start):
    class Slow(FolderLedger):
        def heartbeat(self, beat):
            time.sleep(0.5)
            return HeartbeatAnswer(directive="go_on", lease_seconds=10.0)

    heart, *_ = start(lambda token: Slow(ledger.folder, token), lease_seconds=1.0)
    until(lambda: heart.lease_left() > 5)
    assert heart.lease_left() < 9.6


def test_hanging_control_plane_cannot_keep_the_watch_from_stopping(ledger, start):
    class Hangs(FolderLedger):
        def heartbeat(self, beat):
            over.wait(60)
            raise InfrastructureError("at last")

    over = threading.Event()

    started = time.monotonic()
    _, wishes, lost, _ = start(lambda token: Hangs(ledger.folder, token), lease_seconds=1.0)
    until(lambda: lost)
    over.set()
    assert 0.8 < time.monotonic() - started < 1.0
    assert wishes.current[0] is Wish.STOP


def test_word_of_a_lease_that_we_ended_ourselves_is_not_fencing(ledger, start):
    heart, wishes, lost, _ = start()
    heart.settle(True)
    ledger.set(epoch=2)
    beats = len(ledger.read()["beats"])
    until(lambda: len(ledger.read()["beats"]) > beats + 2)
    assert not lost
    heart.adopt(replace(heart.order, epoch=2, token="epoch-2"), time.monotonic())
    beats = len(ledger.read()["beats"])
    until(lambda: len(ledger.read()["beats"]) > beats + 2)
    assert not lost
    ledger.set(epoch=3)
    until(lambda: lost)
    assert "epoch 2" in lost[0]
    assert wishes.current[0] is Wish.STOP


def test_a_hand_over_that_is_heard_of_late_does_not_take_back_a_later_beats_renewal(ledger, start):
    heart, *_ = start(lease_seconds=60.0)
    until(lambda: ledger.read()["beats"])
    before = heart.lease_left()
    heart.adopt(replace(heart.order, epoch=2, token="epoch-2"), time.monotonic() - 50)
    assert heart.lease_left() > before - 5


def test_the_last_answer_says_whether_the_allocation_is_to_stay(ledger, start):
    heart, *_ = start()
    assert not heart.steady
    ledger.set(steady=True)
    until(lambda: heart.steady)
    ledger.set(away=True)
    assert heart.steady
    ledger.set(away=False, steady=False)
    until(lambda: not heart.steady)


def test_observations_wait_out_an_outage_in_order_and_never_block(ledger, start):
    ledger.set(away=True)
    heart, *_ = start()
    began = time.monotonic()
    for step in range(50):
        heart.observe(observation(step))
    assert time.monotonic() - began < 0.5
    assert heart.flush(0.2) is False
    ledger.set(away=False)
    assert heart.flush(5.0) is True
    assert [one.step for one in ledger.observations()] == list(range(50))


def test_only_a_thousand_observations_wait(ledger, start):
    ledger.set(away=True)
    heart, *_ = start(heartbeat_seconds=30.0)
    for step in range(1500):
        heart.observe(observation(step))
    assert len(heart._outbox) <= 1000


@pytest.mark.parametrize("error", [Conflict("no"), InfrastructureError("away")])
def test_refused_observations_are_dropped_and_those_not_taken_are_kept(ledger, start, error):
    class Refuses(FolderLedger):
        tries = 0

        def observe(self, observations):
            Refuses.tries += 1
            if Refuses.tries < 3:
                raise error
            super().observe(observations)

    heart, *_ = start(lambda token: Refuses(ledger.folder, token))
    heart.observe(observation(1))
    assert heart.flush(5.0)
    assert len(ledger.observations()) == (0 if isinstance(error, Conflict) else 1)
