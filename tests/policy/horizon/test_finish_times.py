"""The finish time that `horizon` tells: the same in words and in figures, and as sure as its models are."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings

from elastic_core.domain import JobView, Plan, Slot, Snapshot
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
def test_who_gets_slots_is_told_an_ordered_finish_and_who_waits_none(picture: Snapshot) -> None:
    for target in decide(picture).targets.values():
        if not target.num_slots:
            assert target.finish_seconds is None
        elif target.finish_seconds is not None:
            low, median, high = target.finish_seconds
            assert 0.0 <= low <= median <= high < float("inf")
