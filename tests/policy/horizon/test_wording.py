"""Reasons in words say what is so, idle slots included."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from elastic_core.domain import JobView, Snapshot
from elastic_core.policy.base.options import Options
from elastic_core.policy.horizon.horizon import Horizon
from elastic_core.policy.horizon.wording import why_nothing
from tests.policy.builders import apply, decide, job, limits, measured, nodes, point, snapshot

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
    assert "started on what lower priorities held" in plan.targets["high"].reason
    (waiting,) = [target.reason for target in plan.targets.values() if not target.num_slots]
    assert "the others are with 1 job that a rule puts first" in waiting


def test_a_start_that_gains_nothing_on_idle_slots_is_said_to_gain_nothing() -> None:
    options = Options.of({"cpu": [4]}, listed=[])
    view, seconds = job("a", resize_seconds=90.0), np.asarray([60.0, 40.0, 30.0])
    told = why_nothing(view, options, seconds, np.zeros(3), np.asarray([-1]), ())
    assert told == "waits: 1 slot could be had, but a restart of 90 s costs more than it gains there"
