"""Priorities: lower ones make room for a waiting job, and for nothing else."""

from __future__ import annotations

from dataclasses import replace

from elastic_core.domain import JobView, Plan, Queue, Slot
from elastic_core.policy.horizon.horizon import Horizon
from elastic_core.policy.rules.priorities import DOUBLING, weights
from tests.policy.builders import apply, decide, holding, job, limits, measured, nodes, point, snapshot


def scales(name: str, arrived: float = 0.0, work: int = 64_000, fewest: int = 1, **more: object) -> JobView:
    lim = limits([k for k in (1, 2, 4, 8) if k >= fewest], batch=(64, 64))
    points = [point(k, 64, 1.0 / k**0.9, sync=0.01) for k in (1, 2, 4, 8)]
    return measured(job(name, arrived, lim, total_samples=work, task=name, **more), *points)


def on(view: JobView, first: int, count: int) -> JobView:
    return holding(view, *(Slot("cpu-0", first + i, "cpu") for i in range(count)), batch=64)


def slots_of(plan: Plan) -> dict[str, int]:
    return {name: target.num_slots for name, target in plan.targets.items()}


def test_a_waiting_job_takes_what_lower_priorities_hold_and_says_so() -> None:
    low = on(scales("low", work=640, resize_seconds=600.0), 0, 4)
    high = scales("high", 1.0, work=10**9, fewest=4, priority=1)
    plan = decide(Horizon(), snapshot(nodes(4), low, high))
    assert slots_of(plan) == {"low": 0, "high": 4}
    assert "put first by its priority (1)" in plan.targets["high"].reason


def test_the_lowest_priority_gives_first_and_shrinking_goes_before_stopping() -> None:
    middle = on(scales("middle", priority=1), 0, 4)
    low = on(scales("low", 1.0, priority=-1), 4, 4)
    high = scales("high", 2.0, work=10**9, fewest=2, priority=2)
    found = slots_of(decide(Horizon(), snapshot(nodes(8), middle, low, high)))
    assert found["high"] >= 2
    assert found["low"] >= 1
    assert found["middle"] >= found["low"]


def test_growth_of_a_higher_priority_stops_nobody() -> None:
    """On all eight it would be done sooner; the lower one keeps its smallest count."""
    high = on(scales("high", work=10**7, priority=3), 0, 4)
    low = on(scales("low", 1.0, work=6_400), 4, 4)
    assert slots_of(decide(Horizon(), snapshot(nodes(8), high, low)))["low"] > 0


def test_who_grew_into_idle_slots_and_may_not_shrink_back_keeps_them_before_a_lower_priority_starts() -> None:
    """One slot is what it just left, so that it cannot start there again; it is not stopped for that."""
    lim = limits((1, 5, 7), (1, 7), max_local_batch=1)
    high = job("high", lim=lim, total_samples=262_144, priority=2, resize_seconds=0.0)
    high = holding(high, Slot("h200-1", 0, "h200"), batch=1)
    short = job("short", lim=limits((1, 2), (1, 512)), total_samples=1, resize_seconds=0.0)
    shared = job("shared", lim=limits((2, 5), (1, 5)), total_samples=1, queue="research", resize_seconds=0.0)
    shared = measured(shared, point(6, 208, 0.2, 0.04))
    low = job("low", lim=limits((5, 6), (1, 6)), total_samples=1_080, resize_seconds=0.0)
    picture = snapshot(nodes(4, 3, kind="h200"), short, high, shared, low)
    picture = replace(picture, queues=(Queue(name="research", guaranteed={"h200": 2}),))
    plan = decide(Horizon(), picture)
    assert slots_of(plan) == {"short": 0, "high": 5, "shared": 2, "low": 0}
    assert slots_of(decide(Horizon(), apply(plan, picture))) == slots_of(plan)


def test_an_equal_priority_is_not_made_to_give_way() -> None:
    short, long = on(scales("short", work=6_400), 0, 1), scales("long", 1.0, work=10**9)
    assert slots_of(decide(Horizon(), snapshot(nodes(1), short, long))) == {"short": 1, "long": 0}


def test_a_weight_doubles_with_the_points_and_is_none_where_all_are_alike() -> None:
    assert weights([scales("a", priority=7), scales("b", priority=7)]) is None
    found = weights([scales("a", priority=0), scales("b", priority=int(DOUBLING))])
    assert found is not None
    assert found.tolist() == [0.5, 1.0]
