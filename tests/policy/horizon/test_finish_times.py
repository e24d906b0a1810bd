"""The finish time that `horizon` tells: the same in words and in figures, and as sure as its models are."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings

from elastic_core.domain import JobView, Plan, Quantiles, Queue, Slot, Snapshot, WorkForecast
from elastic_core.policy.horizon import finish_times
from elastic_core.policy.horizon.horizon import Horizon
from tests.policy.builders import holding, job, limits, measured, nodes, point, snapshot
from tests.policy.strategies import BUSY, snapshots

WIDE = limits((1, 2, 4, 8), batch=(64, 64))
SCALING = tuple(point(k, 64, 1.0 / k**0.9, sync=0.01) for k in (1, 2, 4, 8))
HELD = tuple(Slot("cpu-0", index, "cpu") for index in range(8))


def runs(done: int = 0, total: int | None = 64_000) -> JobView:
    """A job that was measured, on eight slots."""
    known = measured(job("a", lim=WIDE, task="t", total_samples=total, done_samples=done), *SCALING)
    return holding(known, *HELD, batch=64)


def decide(picture: Snapshot) -> Plan:
    return Horizon().decide(picture, Random(0))


def test_the_finish_is_the_work_left_at_the_measured_speed() -> None:
    target = decide(snapshot(nodes(8), runs())).targets["a"]
    assert target.num_slots == 8
    assert target.finish_seconds is not None
    low, median, high = target.finish_seconds
    assert median == pytest.approx(64_000 / 64 / 8**0.9, rel=0.05)
    assert low < median < high


def test_half_of_the_work_takes_half_of_the_time() -> None:
    whole, half = (decide(snapshot(nodes(8), runs(done))).targets["a"].finish_seconds for done in (0, 32_000))
    assert whole is not None
    assert half is not None
    assert half == pytest.approx([seconds / 2 for seconds in whole], rel=0.02)


def test_a_start_has_its_restart_in_it() -> None:
    waits = measured(job("a", lim=WIDE, task="t", total_samples=64_000, resize_seconds=90.0), *SCALING)
    started, held = decide(snapshot(nodes(8), waits)).targets["a"], decide(snapshot(nodes(8), runs())).targets["a"]
    assert started.counts == held.counts
    assert started.finish_seconds is not None
    assert held.finish_seconds is not None
    assert started.finish_seconds[1] == pytest.approx(held.finish_seconds[1] + 90.0)


def test_what_was_never_measured_is_told_with_less_certainty() -> None:
    unknown = decide(snapshot(nodes(8), job("a", lim=WIDE, task="t"))).targets["a"].finish_seconds
    known = decide(snapshot(nodes(8), runs())).targets["a"].finish_seconds
    assert unknown is not None
    assert known is not None
    assert unknown[2] / unknown[1] > 2 * known[2] / known[1]


def test_undeclared_work_widens_the_interval_and_its_median_is_the_distributions() -> None:
    """Without any history the work to come is heavy-tailed: its mean is far above its median."""
    declared, undeclared = (
        decide(snapshot(nodes(8), runs(total=total))).targets["a"].finish_seconds for total in (64_000, None)
    )
    assert declared is not None
    assert undeclared is not None
    assert undeclared[2] / undeclared[0] > 5 * declared[2] / declared[0]
    speed = 64_000 / declared[1]
    assert undeclared[1] == pytest.approx(0.59 * 64_000 / speed, rel=0.05), "a Lomax tail of scale 1000 x 64"


@settings(BUSY)
@given(picture=snapshots())
def test_every_finish_that_is_told_is_ordered(picture: Snapshot) -> None:
    for target in decide(picture).targets.values():
        if target.finish_seconds is not None:
            low, median, high = target.finish_seconds
            assert 0.0 <= low <= median <= high < float("inf")


ONE = limits((1,), batch=(64, 64))
STEPS = tuple(point(1, 64, 1.0, sync=0.0) for _ in range(1))


def queued(number: int, steps: int, **more: Any) -> JobView:
    """A job of so many seconds on one slot, submitted after those before it."""
    view = job(f"job-{number}", float(number), lim=ONE, task="t", total_samples=64 * steps, **more)
    return measured(view, *STEPS)


def finishes(picture: Snapshot) -> dict[str, Quantiles | None]:
    return {job_id: target.finish_seconds for job_id, target in decide(picture).targets.items()}


def test_who_waits_is_done_after_those_before_it_and_its_own_time() -> None:
    """One slot, three jobs of 100 s: the first trains, the second starts when it ends, the third after that."""
    trains = holding(queued(0, 100), Slot("cpu-0", 0, "cpu"), batch=64)
    told = finishes(snapshot(nodes(1), trains, queued(1, 100, resize_seconds=0.0), queued(2, 100, resize_seconds=0.0)))
    medians = [0.0 if finish is None else finish[1] for finish in told.values()]
    assert medians == pytest.approx([100.0, 200.0, 300.0], rel=0.05)
    lows, highs = ([0.0 if finish is None else finish[end] for finish in told.values()] for end in (0, 2))
    assert lows[1] == pytest.approx(100.0, rel=0.2), "were it started at once"
    assert highs == sorted(highs)
    assert all(high > median for high, median in zip(highs, medians, strict=True))


def test_who_stands_behind_a_job_whose_end_nobody_tells_is_told_none() -> None:
    held = Slot("cpu-0", 0, "cpu")
    endless = replace(holding(queued(0, 100), held, batch=64), total_samples=None)
    told = finishes(snapshot(nodes(1), endless, queued(1, 50_000)))
    assert told["job-1"] is not None, "what lasts will last: even that is an end that is expected"
    limited = replace(queued(1, 100), queue="few")
    few = Queue(name="few", guaranteed={}, max_slots=0)
    picture = replace(snapshot(nodes(1), holding(queued(0, 100), held, batch=64), limited), queues=(few,))
    assert finishes(picture)["job-1"] is None, "a limit, not those before it, decides when it starts"


def test_a_wide_pool_of_waiting_jobs_is_told_up_to_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finish_times, "MOST_FORESEEN", 2)
    trains = holding(queued(0, 100), Slot("cpu-0", 0, "cpu"), batch=64)
    told = finishes(snapshot(nodes(1), trains, *(queued(number, 100) for number in range(1, 5))))
    assert [told[f"job-{number}"] is not None for number in range(5)] == [True, True, True, False, False]


def undeclared(predictable: float) -> JobView:
    """A forecast of 10,000 samples beside a task whose jobs took a million each, by the memory below."""
    told = WorkForecast(probabilities=(0.1, 0.5, 0.9), totals=(8e3, 1e4, 1.2e4), source="loss curve")
    return replace(runs(total=None), predictable=predictable, work_forecast=told)


def remembering(*jobs: JobView) -> Snapshot:
    """A policy that saw three jobs of the task end."""
    before = decide(
        snapshot(nodes(8), *(job(f"old-{at}", float(at), task="t", total_samples=10**6) for at in range(3)))
    )
    return replace(snapshot(nodes(8), *jobs), policy_state=before.state)


def test_the_work_left_goes_with_the_target_as_the_decision_and_its_finish_time_rest_on_it() -> None:
    now = remembering(undeclared(0.95))
    target = decide(now).targets["a"]
    assert target.work_left is not None
    assert target.finish_seconds is not None
    speed = 64_000 / (decide(snapshot(nodes(8), runs())).targets["a"].finish_seconds or (0, 1, 0))[1]
    assert target.finish_seconds[1] == pytest.approx(target.work_left.quantiles[1] / speed, rel=0.02)
    assert target.work_left.source == "loss curve"
    assert Horizon().work_left(now) == {"a": target.work_left}, "what-if and estimates ask the same"


def test_an_unpredictable_jobs_work_left_is_its_tasks_history_and_not_its_forecast() -> None:
    left = decide(remembering(undeclared(0.1))).targets["a"].work_left
    assert left is not None
    assert left.source == "history of its task"
    assert left.quantiles[1] == pytest.approx(10**6, rel=0.1)


def test_who_waits_is_told_its_work_left_too_and_of_declared_work_nothing_is_told() -> None:
    waits = replace(undeclared(0.95), allocation=None, job_id="b", segment_id="b__seg_0", submitted_at=1.0, priority=-9)
    targets = decide(snapshot(nodes(1), replace(runs(), allocation=None), waits)).targets
    assert sorted(target.num_slots for target in targets.values()) == [0, 1]
    assert targets["b"].work_left is not None
    assert targets["a"].work_left is None
