"""Reasons in words say what is so, idle slots included."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from elastic_core.domain import JobView, Snapshot, WorkForecast
from elastic_core.policy.base.options import Options
from elastic_core.policy.base.remaining_distribution import History, remaining_work
from elastic_core.policy.horizon.horizon import Horizon
from elastic_core.policy.horizon.wording import num_longer_than_each, why_nothing
from tests.policy.builders import NOW, apply, decide, job, limits, measured, nodes, point, snapshot

ONE = limits((1,), batch=(64, 64))
WHOLE = limits((4,), batch=(64, 64))
SLOW_TO_START = {"resize_seconds": 3000.0, "total_samples": 10**8}


def short() -> JobView:
    return measured(job("short", lim=ONE, total_samples=6400, task="s"), point(1, 64, 0.1))


def reason(picture: Snapshot, name: str) -> str:
    return decide(Horizon(), picture).targets[name].reason


def test_a_job_too_large_for_what_is_idle_is_told_how_much_is_free() -> None:
    running = apply(decide(Horizon(), snapshot(nodes(4), short())), snapshot(nodes(4), short())).jobs[0]
    large = measured(job("large", 1.0, WHOLE, task="l", **SLOW_TO_START), point(4, 64, 0.1))
    told = reason(snapshot(nodes(4), running, large), "large")
    assert told.startswith("waits: it needs at least 4 slots of cpu, of which 3 are free; the others take more off")


def test_where_nothing_is_free_the_slots_are_said_to_be_better_used() -> None:
    jobs = [replace(short(), job_id=f"short-{i}") for i in range(4)]
    long = measured(job("long", 1.0, ONE, task="l", **SLOW_TO_START), point(1, 64, 0.1))
    told = reason(snapshot(nodes(4), *jobs, long), "long")
    assert told == (
        "waits: it needs at least 1 slot of cpu, of which none is free; "
        "the others take more off the sum of completion times where they are"
    )


def test_idle_slots_of_a_type_that_it_may_not_use_are_not_counted() -> None:
    jobs = [replace(short(), job_id=f"short-{i}", limits=replace(ONE, types=("cpu",))) for i in range(4)]
    picky = job("picky", 1.0, replace(ONE, types=("cpu",)), task="l", **SLOW_TO_START)
    told = reason(snapshot((*nodes(4), *nodes(4, kind="h200")), *jobs, picky), "picky")
    assert "at least 1 slot of cpu, of which none is free" in told
    assert "h200" not in told


def test_a_job_that_the_pool_can_never_hold_is_told_what_the_pool_has() -> None:
    told = reason(snapshot(nodes(4), job("huge", lim=limits((8,), batch=(64, 64))), short()), "huge")
    assert told == "waits: it needs at least 8 slots of any type, and the pool has 4 cpu"


def test_a_type_that_the_pool_lacks_is_named() -> None:
    told = reason(snapshot(nodes(4), job("gpu", lim=replace(ONE, types=("h200",))), short()), "gpu")
    assert told == "waits: it needs at least 1 slot of h200, and the pool has 4 cpu"


def test_who_waits_for_jobs_that_a_rule_puts_first_is_told_so() -> None:
    low = [replace(short(), job_id=f"low-{i}") for i in range(4)]
    running = apply(decide(Horizon(), snapshot(nodes(4), *low)), snapshot(nodes(4), *low)).jobs
    high = measured(job("high", 1.0, ONE, priority=5, **SLOW_TO_START), point(1, 64, 0.1))
    plan = decide(Horizon(), snapshot(nodes(4), *running, high))
    assert "put first by its priority (5)" in plan.targets["high"].reason
    (waiting,) = [target.reason for target in plan.targets.values() if not target.num_slots]
    assert "the others are with 1 job that a rule puts first" in waiting


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (-1.0, "going over to what is free costs more than it gains"),
        (0.0, "for its budget or its preference for cost"),
        (1.0, "a rule keeps what is free from it"),
    ],
)
def test_who_is_not_given_idle_slots_is_told_what_stands_against_it(value: float, told: str) -> None:
    """Only money takes all value from what is worth something."""
    options, seconds = Options.of({"cpu": [4]}, listed=[]), np.asarray([60.0, 40.0, 30.0])
    values, worth = np.full(3, value), np.ones(3)
    reason = why_nothing(job("a"), options, seconds, values, worth, np.asarray([-1]), ())
    assert reason == f"waits: 1 slot could be had, but {told}"


def test_a_job_that_only_meets_its_deadline_is_not_said_to_be_put_first() -> None:
    """It has what it has by the objective; who waits is not told of a rule."""
    timely = [replace(short(), job_id=f"short-{i}", deadline=NOW + 10**6) for i in range(4)]
    long = measured(job("long", 1.0, ONE, task="l", **SLOW_TO_START), point(1, 64, 0.1))
    plan = decide(Horizon(), snapshot(nodes(4), *timely, long))
    assert plan.targets["short-0"].reason.endswith("; meets its deadline")
    assert "rule" not in plan.targets["long"].reason


def test_the_jobs_that_are_said_to_need_longer_are_those_that_are_told_to_be_done_later() -> None:
    """Also of a job of which three in ten end at once: it comes first, and is told to run for days."""
    told = WorkForecast(probabilities=(0.3, 0.31, 0.9), totals=(700.0, 9e6, 1.1e7), source="history")
    gamble = measured(
        job("gamble", lim=ONE, task="g", total_samples=None, predictable=0.95, work_forecast=told), point(1, 64, 0.1)
    )
    others = [replace(short(), job_id=f"short-{i}", total_samples=64_000 * i) for i in (1, 2)]
    targets = decide(Horizon(), snapshot(nodes(4), gamble, *others)).targets
    done = {name: target.finish_seconds[1] for name, target in targets.items() if target.finish_seconds is not None}
    assert max(done, key=lambda name: done[name]) == "gamble"
    said = {name: targets[name].reason.split(": ")[1].split(";")[0] for name in done}
    assert said == {"gamble": "no job needs longer", "short-2": "1 job needs longer", "short-1": "2 jobs need longer"}


def test_how_many_need_longer_is_counted_among_those_that_cannot_run_too() -> None:
    left = remaining_work([job(name, total_samples=1000) for name in "abcd"], History(), np.ones(4))
    seconds = np.asarray([[30.0, 20.0], [20.0, 90.0], [np.inf, np.inf], [5.0, np.inf]])
    assert num_longer_than_each(seconds, left).tolist() == [1, 1, 0, 3]
