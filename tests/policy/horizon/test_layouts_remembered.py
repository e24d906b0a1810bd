"""What was measured in a layout: in the outlook of every count, and for the task's next job."""

from __future__ import annotations

import json
from dataclasses import replace

from elastic_core.domain import JobView, Layout, Plan, ProfilePoint, from_json, to_json
from elastic_core.policy.horizon.horizon import Horizon, problem
from elastic_core.policy.plans.plan_check import violations
from tests.policy.builders import decide, job, limits, measured, nodes, point, snapshot

BOTH = limits((2, 4), batch=(64, 64), cuts=(Layout(), Layout(tensor=2)))
ONLY = limits((2, 4), batch=(64, 64), cuts=(Layout(tensor=2),))


def points(seconds: float) -> list[ProfilePoint]:
    """Replicas take 1 s and 0.5 s; cut in two they take `seconds` and half of it."""
    plain = [point(k, 64, 2.0 / k, sync=0.01) for k in (2, 4)]
    cut = [replace(point(k, 64, seconds * 2.0 / k), layout=Layout(data=k // 2, tensor=2)) for k in (2, 4)]
    return [*plain, *cut]


def view(seconds: float) -> JobView:
    return measured(job("a", lim=BOTH, total_samples=10**7, task="t"), *points(seconds))


def test_a_decision_with_measured_layouts_can_be_stored_and_made_again() -> None:
    picture = snapshot(nodes(4), view(0.5))
    first = decide(Horizon(), picture)
    stored = from_json(Plan, json.loads(json.dumps(to_json(first))))
    again = decide(Horizon(), replace(picture, policy_state=stored.state))
    assert violations(again, picture) == ()
    assert (again.targets, again.state) == (first.targets, first.state)


def test_how_long_a_job_needs_is_taken_in_its_quickest_layout() -> None:
    found = {}
    for seconds in (0.5, 2.0):
        shared = problem(snapshot(nodes(4), view(seconds)))
        assert shared is not None
        found[seconds] = float(shared.remaining_seconds.min())
    assert 0.4 < found[0.5] / found[2.0] < 0.7


def test_a_job_that_must_be_cut_gets_a_cut() -> None:
    picture = snapshot(nodes(4), job("a", lim=ONLY, total_samples=10**6, task="t"))
    plan = decide(Horizon(), picture)
    assert violations(plan, picture) == ()
    assert plan.targets["a"].layout.tensor == 2
