"""What Pollux wants of its search."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from elastic_core.domain import JobView, Plan, Snapshot
from elastic_core.policy.pollux.pollux import ROUND, Pollux, restart_factor
from tests.policy.builders import NOW, apply, decide, holding, job, limits, measured, nodes, point, snapshot

POOL = nodes(4, 4)


def scaling(name: str, *counts: int, arrived: float = 0.0, **more: Any) -> JobView:
    view = job(name, arrived, lim=limits(tuple(range(1, 9)), (64, 4096)), resize_seconds=30.0, noise_scale=1e6, **more)
    return measured(view, *(point(n, 64, 0.64 / n, 0.001 * (n > 1)) for n in counts)) if counts else view


def counts(plan: Plan) -> dict[str, int]:
    return {name: target.num_slots for name, target in plan.targets.items()}


def test_a_job_never_seen_starts_on_one_slot_and_one_that_was_seen_at_most_doubles() -> None:
    assert counts(decide(Pollux(), snapshot(POOL, scaling("a"), scaling("b", 1, 2), now=1000.0))) == {"a": 1, "b": 4}


def test_jobs_alike_share_alike() -> None:
    views = [scaling(name, 1, 2, 4) for name in "abcd"]
    assert set(counts(decide(Pollux(), snapshot(POOL, *views, now=1000.0))).values()) == {2}


def test_a_job_that_scales_gets_more_than_one_that_does_not() -> None:
    bad = measured(replace(scaling("bad"), noise_scale=1.0), point(1, 64, 0.64), point(4, 64, 0.63, 0.4))
    got = counts(decide(Pollux(), snapshot(nodes(6), scaling("good", 1, 2, 4), bad, now=1000.0)))
    assert got["good"] > got["bad"] >= 1


def test_the_nodes_are_part_of_the_plan_and_small_jobs_stay_on_one() -> None:
    plan = decide(Pollux(), snapshot(POOL, scaling("a", 1, 2), scaling("b", 1, 2), now=1000.0))
    for target in plan.targets.values():
        assert target.nodes is not None
        assert sum(target.nodes.values()) == target.num_slots == 4
        assert len(target.nodes) == 1


def test_many_restarts_hold_a_job_where_it_is() -> None:
    view = holding(scaling("a", 1, 2), *POOL[0].slots()[:2], batch=128)
    assert counts(decide(Pollux(), snapshot(POOL, view, now=1000.0))) == {"a": 4}
    assert counts(decide(Pollux(), snapshot(POOL, replace(view, num_resizes=25), now=1000.0))) == {"a": 2}
    assert restart_factor(replace(view, num_resizes=2), NOW + 970.0) == pytest.approx((970 - 60) / 1000)


def test_the_solutions_of_the_last_search_seed_the_next() -> None:
    picture: Snapshot = snapshot(POOL, scaling("a", 1, 2), scaling("b", 1, 2), now=1000.0)
    plan = decide(Pollux(), picture)
    assert plan.state["solutions"][0] == {name: dict(target.nodes or {}) for name, target in plan.targets.items()}
    assert plan.wake_at == picture.now + ROUND
    after = apply(plan, picture)
    again = Pollux().decide(replace(after, policy_state={"solutions": [{"gone": {"cpu-9": 4}}, 3]}), Random(1))
    assert counts(again) == counts(plan)
