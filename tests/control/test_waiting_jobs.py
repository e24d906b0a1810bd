"""A job that waits is told its place, what it needs, who has it, who took it, and when it may start."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import event

from elastic_core.control.job_list import JobsWanted
from elastic_core.control.plane import LedgerControl
from elastic_core.control.waiting_jobs import KEEP_SECONDS
from elastic_core.domain import PutFirst
from elastic_core.protocol.rest.answers import SortBy
from elastic_core.protocol.waiting.queued import HeldBy, InQueue, waiting_words
from tests.builders import FACTS, FakeClock, Life, a_beat, a_cluster, a_commit, a_spec, an_observation


def waits(control: LedgerControl, job_id: str, **spec: Any) -> None:
    control.submit(job_id, a_spec(**spec), FACTS)
    control.acquire(f"{job_id}__seg_0")


def queued(control: LedgerControl, job_id: str) -> InQueue:
    found = control.job(job_id).in_queue
    assert found is not None
    return found


def training(control: LedgerControl, job_id: str, seconds: float | None = 1.0, **spec: Any) -> Life:
    """At 10 samples in so many seconds, if any are told; of 10,000."""
    control.submit(job_id, a_spec(**{"slots": (2, 2), "batch": (16, 16), **spec}), FACTS)
    life = Life(control, control.trainer, job_id)
    order = life.start()
    if seconds is not None:
        trainer = control.trainer(order.token)
        trainer.heartbeat(a_beat(10))
        reports = [
            an_observation(step, order, step_seconds=1.6 * seconds, samples_per_second=10 / seconds)
            for step in range(1, 6)
        ]
        trainer.observe(reports)
    return life


def test_the_holders_and_what_is_needed_are_told_the_most_slots_first(control: LedgerControl) -> None:
    training(control, "mine-dag", slots=(1, 1))
    training(control, "slow-b", slots=(3, 3))
    waits(control, "late", slots=(4, 4))
    told = queued(control, "late")
    assert told.words == "needs 4 of 4 slots; held by slow-b (3) and mine-dag (1)"
    assert told.held_by == (HeldBy(job_id="slow-b", num_slots=3), HeldBy(job_id="mine-dag", num_slots=1))
    assert (told.place, told.length, told.needs, told.usable, told.free) == (1, 1, 4, 4, 0)


def test_many_holders_are_counted_and_what_is_free_is_said(control: LedgerControl) -> None:
    control.set_cluster(a_cluster({"node-a": 6}))
    for name in "abcde":
        training(control, name, None, slots=(1, 1))
    waits(control, "late", slots=(2, 2))
    assert queued(control, "late").words == "needs 2 of 6 slots; 1 is free; held by a (1), b (1), c (1) and 2 more"


def test_a_pool_that_cannot_hold_it_any_more_is_told_of_and_no_start(control: LedgerControl) -> None:
    training(control, "a-holder", None, slots=(4, 4))
    waits(control, "huge", slots=(4, 4))
    control.set_aside_node("node-b", "it is too hot")
    assert waiting_words(queued(control, "huge"), 0.0) == (
        "needs 4 slots, and the pool has at most 2 that it may use; when it starts is not known: "
        "the pool has too few slots"
    )


def test_it_starts_when_enough_holders_are_done_as_forecast(control: LedgerControl) -> None:
    """Of one submission, and so in the order of their ids."""
    for name, seconds in (("a-soon", 0.1), ("b-later", 0.2)):
        training(control, name, seconds)
    control.decide("both are measured")
    for name, fewest in (("c-small", 2), ("d-small", 2), ("e-large", 4)):
        waits(control, name, slots=(fewest, fewest))
    forecasts = [control.job(name).forecast for name in ("a-soon", "b-later")]
    soon, later = (one.finish_at[1] for one in forecasts if one is not None and one.finish_at is not None)
    assert control.now() < soon < later
    places = {name: queued(control, name) for name in ("c-small", "d-small", "e-large")}
    assert [one.place for one in places.values()] == [1, 2, 3]
    assert places["c-small"].starts_at == pytest.approx(soon)
    assert places["d-small"].starts_at is not None
    assert places["d-small"].starts_at >= later
    assert places["c-small"].unknown == ""
    by_start = control.jobs_page(JobsWanted(sort=SortBy.START)).jobs
    assert [job.job_id for job in by_start][:2] == ["c-small", "d-small"]


def test_who_waits_for_a_job_in_progress_waits_as_long_as_its_progress_takes(control: LedgerControl) -> None:
    """Each of its samples is worth half of one at the base batch."""
    in_progress = {"slots": (4, 4), "work": {"samples": 10_000, "measure": "progress"}}
    life = training(control, "a-holder", None, **in_progress)
    order = control.launch_order("a-holder__seg_0")
    reports = [
        an_observation(step, order, step_seconds=0.1, samples_per_second=160.0, progress=8.0 * step, gain=0.5)
        for step in range(1, 6)
    ]
    life.trainer(order.token).observe(reports)
    control.decide("it is measured")
    for name in ("b-next", "c-last"):
        waits(control, name, **in_progress)
    next_, last = (queued(control, name).starts_at for name in ("b-next", "c-last"))
    assert next_ is not None
    assert last is not None
    assert last - next_ == pytest.approx(10_000 / 80.0)


def test_where_the_ends_of_the_holders_are_not_known_no_start_is_told(control: LedgerControl) -> None:
    training(control, "a-holder", None, slots=(4, 4))
    waits(control, "late")
    told = queued(control, "late")
    assert (told.starts_at, told.unknown) == (None, "it is not forecast when enough slots are free")


def test_who_is_to_get_slots_that_others_give_up_starts_as_soon_as_they_are_free(control: LedgerControl) -> None:
    training(control, "b-holder", None, slots=(1, 4))
    waits(control, "a-next", slots=(2, 2))
    told = queued(control, "a-next")
    assert waiting_words(told, control.now()).endswith("; starts as soon as its slots are free")


def test_places_go_by_submission_and_priority_and_who_has_not_asked_or_is_paused_has_none(
    control: LedgerControl, clock: FakeClock
) -> None:
    training(control, "holder", slots=(4, 4))
    for name, more in (("first", {}), ("second", {}), ("urgent", {"priority": 5}), ("rests", {})):
        waits(control, name, slots=(4, 4), **more)
        clock.advance(1.0)
    control.submit("silent", a_spec(), FACTS)
    control.pause("rests", "lunch")
    places = {job.job_id: job.in_queue and job.in_queue.place for job in control.jobs()}
    assert places == {"holder": None, "urgent": 1, "first": 2, "second": 3, "rests": None, "silent": None}


@pytest.fixture
def horizon(control: LedgerControl) -> LedgerControl:
    control.set_policy("horizon")
    return control


def test_who_was_preempted_is_told_by_whom_until_it_has_slots_again(horizon: LedgerControl, clock: FakeClock) -> None:
    low = training(horizon, "low", 0.1, slots=(4, 4))
    waits(horizon, "urgent", slots=(4, 4), priority=10)
    order = horizon.launch_order("low__seg_0")
    horizon.trainer(order.token).commit(a_commit(order, 100, final=True))
    low.leave(order)
    horizon.acquire("low__seg_1")
    for _ in range(2):  # also where later decisions stop nobody
        told = queued(horizon, "low")
        (by,) = told.preempted_by
        assert (by.job_id, by.rule, by.priority) == ("urgent", PutFirst.PRIORITY, 10)
        assert told.words == "preempted by urgent (priority 10); needs 4 of 4 slots; held by urgent (4)"
        clock.advance(60.0)
        horizon.decide("another look")
    horizon.cancel("urgent", "enough")
    first = horizon.segment("urgent__seg_0")
    assert first.epoch is not None
    horizon.decide("it is gone")
    if horizon.job("low").in_queue is None:
        assert horizon.job("low").allocation is not None


def test_all_who_wait_are_looked_up_once_for_many_who_ask(control: LedgerControl, clock: FakeClock) -> None:
    training(control, "holder", slots=(4, 4))
    for number in range(5):
        waits(control, f"late-{number}")
    asked: list[str] = []
    engine = control._ledger._engine
    event.listen(engine, "before_cursor_execute", lambda _c, _u, statement, *_: asked.append(statement))
    control.jobs()
    asked.clear()
    control.jobs()
    assert not any("lease_slots h JOIN leases" in statement for statement in asked)
    clock.advance(KEEP_SECONDS)
    control.jobs()
    assert any("lease_slots h JOIN leases" in statement for statement in asked)
