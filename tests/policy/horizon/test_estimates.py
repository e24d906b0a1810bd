"""Time and money before a job is launched: from what was measured, from the planner, or not at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_core.domain import Node, Snapshot
from elastic_core.policy.horizon.estimates import FITTED, MEASURED, PLANNED, PROJECTED, UNKNOWN, estimates
from tests.policy.builders import job, limits, measured, point, snapshot
from tests.policy.placed import CTR, a_pool, placed_limits

LIMITS = limits((1, 2, 4), (64, 64))


def priced(*nodes: Node, price: float) -> tuple[Node, ...]:
    return tuple(replace(node, price_per_slot_hour=price) for node in nodes)


def pool(*jobs: object) -> Snapshot:
    return snapshot(a_pool((4,), (2,)), *jobs)  # type: ignore[arg-type]


def test_of_a_task_that_nobody_ran_prices_are_all_that_is_said() -> None:
    found = estimates(job("new", lim=LIMITS, task="t"), pool())
    assert {one.basis for one in found} == {UNKNOWN}
    assert all(one.seconds is None and one.money is None for one in found)
    assert {(kind, count): one.price_per_hour for one in found for kind, count in one.slots.items()} == {
        ("cpu", 1): 1.0, ("cpu", 2): 2.0, ("cpu", 4): 4.0, ("h200", 1): 4.0, ("h200", 2): 8.0
    }  # fmt: skip


def test_what_its_task_measured_says_time_and_money_and_what_they_rest_on() -> None:
    ran = measured(job("old", lim=LIMITS, task="t"), point(1, 64, 0.5), point(2, 64, 0.25))
    found = estimates(job("new", lim=LIMITS, task="t", total_samples=64 * 7200), pool(ran))
    by_slots = {tuple(one.slots.items()): one for one in found}
    one = by_slots[(("cpu", 1),)]
    assert one.basis == MEASURED
    assert one.seconds == pytest.approx(3600.0, rel=0.05)
    assert one.money == pytest.approx(1.0, rel=0.05)
    assert by_slots[(("cpu", 4),)].basis == FITTED
    assert by_slots[(("h200", 1),)].basis == PROJECTED


def test_of_a_placed_job_the_planner_says_them_for_every_bundle() -> None:
    found = estimates(job("new", lim=placed_limits(CTR), total_samples=360_000), pool())
    assert {one.basis for one in found} == {PLANNED}
    both = [one for one in found if one.slots == {"cpu": 1, "h200": 1}]
    assert [(one.samples_per_second, one.seconds, one.money) for one in both] == [(100.0, 3600.0, 5.0)]
    assert both[0].gap == pytest.approx(0.0, abs=1e-6)
