"""Who needs the least time goes first."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from elastic_core.domain import JobView
from elastic_core.policy.base.pool import Pool
from elastic_core.policy.baselines.srtf import Srtf, seconds_needed
from tests.policy.builders import decide, holding, job, limits, measured, nodes, point, snapshot

POOL = nodes(4)
PICTURE = snapshot(POOL)


def timed(name: str, arrived: float, samples: int | None, step: float = 0.1) -> JobView:
    view = job(name, arrived, lim=limits((1, 2, 4), (16, 64)), total_samples=samples)
    return measured(view, point(4, 16, step, step / 10), point(2, 16, 2 * step, step / 10))


def needs(view: JobView) -> float:
    return seconds_needed(view, PICTURE.capacity(), Pool.of(PICTURE))


def test_the_remaining_work_at_the_predicted_speed_of_what_it_asks_for() -> None:
    assert needs(timed("a", 0, 1600)) == pytest.approx(10.0, rel=0.1)
    assert needs(replace(timed("a", 0, 1600), done_samples=800)) == pytest.approx(5.0, rel=0.1)


def test_undeclared_work_is_as_much_again_as_was_done() -> None:
    assert needs(replace(timed("a", 0, None), done_samples=800)) == pytest.approx(5.0, rel=0.1)


def test_a_count_that_no_type_has_needs_for_ever() -> None:
    assert needs(job("a", lim=limits((8,)))) == inf


def test_the_shortest_goes_first_and_preempts_a_longer_one() -> None:
    long = holding(timed("a", 0, 10**6), *POOL[0].slots())
    plan = decide(Srtf(), snapshot(POOL, long, timed("b", 1, 10**5), timed("c", 2, 10**4)))
    assert {name for name, target in plan.targets.items() if target.num_slots} == {"c"}


def test_speed_counts_not_samples() -> None:
    plan = decide(Srtf(), snapshot(POOL, timed("a", 0, 10**4, step=1.0), timed("b", 1, 5 * 10**4, step=0.1)))
    assert {name for name, target in plan.targets.items() if target.num_slots} == {"b"}
