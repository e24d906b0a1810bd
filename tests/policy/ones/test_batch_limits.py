"""Start, scale up, resume, penalty: how large a batch a job may be scheduled with."""

from __future__ import annotations

from dataclasses import replace

from elastic_core.domain import JobView
from elastic_core.policy.base.weak_scaling import WeakScaling
from elastic_core.policy.ones.batch_limits import (
    ROUND,
    BatchLimit,
    arrivals_a_second,
    penalised,
    recall,
    to_state,
    update,
)
from tests.policy.builders import NOW, holding, job, limits, nodes

SLOTS = nodes(8)[0].slots()
START = 64.0


def view(name: str = "a", slots: int = 0, **more: object) -> JobView:
    made = job(name, lim=limits((1, 2, 4, 8), (64, 512)), total_samples=2000)
    made = holding(made, *SLOTS[:slots], batch=64 * slots) if slots else made
    return replace(made, **more)  # type: ignore[arg-type]


def after(limit: BatchLimit | None, one: JobView, now: float = NOW) -> BatchLimit:
    before = {one.job_id: limit} if limit is not None else {}
    return update(before, [WeakScaling.of(one)], now)[one.job_id]


def test_a_new_job_starts_with_the_batch_of_its_smallest_count() -> None:
    assert after(None, view()) == BatchLimit(START, 0, NOW)


def test_a_job_that_runs_already_keeps_the_batch_of_its_slots() -> None:
    assert after(None, view(slots=4)).samples == 4 * START


def test_the_limit_doubles_with_every_pass_and_stays_inside_one() -> None:
    limit = after(None, view(slots=1))
    assert after(limit, view(slots=1, done_samples=99)) == limit
    grown = after(limit, view(slots=1, done_samples=100))
    assert grown == BatchLimit(2 * START, 100)
    assert after(grown, view(slots=2, done_samples=150)) == grown


def test_it_grows_no_further_than_its_slots_and_batches_go() -> None:
    limit = BatchLimit(START, 0)
    for done in range(100, 2000, 100):
        limit = after(limit, view(slots=1, done_samples=done))
    assert limit.samples == 512


def test_who_waits_again_needs_fewer_slots_every_round_but_never_less_than_at_its_start() -> None:
    waiting = view(done_samples=500)
    limit = after(BatchLimit(8 * START, 500), waiting)
    assert limit == BatchLimit(8 * START, 500, NOW)
    limit = after(limit, waiting, NOW + ROUND)
    assert limit.samples == 4 * START
    assert after(limit, waiting, NOW + ROUND * 1.5).samples == 4 * START
    assert after(limit, waiting, NOW + 100 * ROUND).samples == START


def test_who_had_more_than_its_part_is_held_back_while_others_wait_only() -> None:
    """A job every 100 s on 8 slots: 800 slot-seconds are its part; it had four times as much."""
    greedy = view(slots=4, attained_slot_seconds=3200.0)
    others = [view(f"b{n}", slots=1, submitted_at=NOW + 100.0 * n) for n in (1, 2)]
    waits = view("c", submitted_at=NOW + 300.0)
    limit, scaling = BatchLimit(8 * START, 0), WeakScaling.of(greedy)
    assert arrivals_a_second([greedy, *others, waits]) == 0.01
    assert penalised(limit, scaling, [greedy, *others], 8) == 8 * START
    assert penalised(limit, scaling, [greedy, *others, waits], 8) == 2 * START
    assert penalised(replace(limit, samples=START), scaling, [greedy, *others, waits], 8) == START


def test_limits_go_through_the_state_and_another_form_is_forgotten() -> None:
    limits_now = {"a": BatchLimit(64.0, 10.0, 5.0), "b": BatchLimit(128.0, 0.0)}
    assert recall({"batch_limits": to_state(limits_now)}) == limits_now
    assert recall({"batch_limits": [1, 2]}) == {}
    assert recall({"batch_limits": {"a": "x"}}) == {}
