"""The mean traded for the tail: who will have been here for long is held back less for shorter ones."""

from __future__ import annotations

from random import Random

from elastic_core.policy.horizon.horizon import Horizon
from elastic_core.policy.horizon.horizon_tail import HorizonTail
from tests.policy.builders import job, limits, measured, nodes, point, snapshot

FINE = limits(range(1, 9), batch=(64, 64))
CURVE = tuple(point(k, 64, 1.0 / k**0.9, sync=0.01) for k in (1, 2, 4, 8))


def test_who_has_waited_for_long_gets_more_of_the_pool_than_by_the_mean_alone() -> None:
    old = measured(job("old", -200_000.0, FINE, total_samples=64 * 12_000, task="t"), *CURVE)
    short = [measured(job(f"short-{i}", float(i), FINE, total_samples=64 * 8_000, task="t"), *CURVE) for i in range(1)]
    picture = snapshot(nodes(8), old, *short)
    by_mean, by_tail = (
        policy.decide(picture, Random(0)).targets["old"].num_slots for policy in (Horizon(), HorizonTail())
    )
    assert by_tail > by_mean


def test_alone_or_among_equals_both_decide_alike() -> None:
    alike = [measured(job(f"job-{i}", 0.0, FINE, total_samples=64 * 10_000, task="t"), *CURVE) for i in range(3)]
    for picture in (snapshot(nodes(8), alike[0]), snapshot(nodes(8), *alike)):
        plans = [policy.decide(picture, Random(0)) for policy in (Horizon(), HorizonTail())]
        assert plans[0].targets == plans[1].targets
        assert [plan.policy for plan in plans] == ["horizon", "horizon_tail"]
