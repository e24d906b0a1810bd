"""Slots at once: no plan of any policy gives a queue, or a user in it, more; what they may not have goes to others."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest

from elastic_core.domain import JobView, Plan, Queue, Slot, Snapshot
from elastic_core.policy import registry
from elastic_core.policy.plans.plan_check import violations
from elastic_core.policy.rules.slot_quotas import over_quota, with_waiting, within_quotas
from tests.policy.builders import holding, job, limits, nodes, snapshot

TEAM = Queue(name="team", guaranteed={}, max_slots=4)


def of_team(job_id: str, arrived: float = 0.0, user: str | None = None, **more: Any) -> JobView:
    return job(job_id, arrived, queue="team", user=user, **more)


def limited(*jobs: JobView, queue: Queue = TEAM, pool: int = 8) -> Snapshot:
    return replace(snapshot(nodes(pool), *jobs), queues=(queue,))


def asked(name: str, before: Snapshot) -> Plan:
    within, waiting = within_quotas(before)
    return with_waiting(registry.get(name).decide(within, Random(1)), waiting)


def caps(before: Snapshot) -> dict[str, int]:
    within, waiting = within_quotas(before)
    return {view.job_id: view.limits.max_slots for view in within.jobs} | dict.fromkeys(waiting, 0)


def test_without_a_limit_a_policy_is_asked_with_the_snapshot_itself() -> None:
    before = limited(of_team("a"), queue=Queue(name="team", guaranteed={"cpu": 2}))
    assert within_quotas(before) == (before, {})
    assert within_quotas(before)[0] is before


def test_smallest_counts_go_in_order_of_the_queue_and_the_rest_goes_round() -> None:
    assert caps(limited(of_team("a"), of_team("b", 1.0))) == {"a": 2, "b": 2}
    assert caps(limited(of_team("a"), of_team("b", 1.0), of_team("c", 2.0))) == {"a": 2, "b": 1, "c": 1}
    needs_four = limits((4, 8), batch=(16, 64))
    assert caps(limited(of_team("a"), of_team("b", 1.0, lim=needs_four))) == {"a": 4, "b": 0}
    assert caps(limited(of_team("a"), of_team("b", 1.0, lim=needs_four, priority=1))) == {"a": 0, "b": 4}


def test_jobs_of_other_queues_are_left_as_they_are() -> None:
    assert caps(limited(of_team("a"), job("x"), job("y"))) == {"a": 4, "x": 4, "y": 4}


def test_a_users_limit_counts_within_the_queues() -> None:
    queue = replace(TEAM, max_slots=5, max_slots_per_user=2)
    jobs = [of_team("a", 0.0, "ann"), of_team("b", 1.0, "ann"), of_team("c", 2.0, "ann"), of_team("d", 3.0, "ben"),
            of_team("e", 4.0)]  # fmt: skip
    assert caps(limited(*jobs, queue=queue)) == {"a": 1, "b": 1, "c": 0, "d": 2, "e": 1}


def test_who_waits_for_a_limit_is_told_whose_it_is() -> None:
    needs_four = limits((4,), batch=(16, 64))
    _, waiting = within_quotas(limited(of_team("a", lim=needs_four), of_team("b", 1.0)))
    assert waiting["b"].reason == (
        "waits: it needs at least 1 slot, and queue team may hold 4 at once, of which jobs before it leave 0"
    )
    assert waiting["b"].num_slots == 0


def elsewhere(*more: JobView) -> Snapshot:
    """Ahead in the queue: one that needs a type that is away, and one that needs more than the pool has."""
    of_a_type = of_team("of-a-type", lim=limits((1, 2, 4), types=("gpu",)))
    wide = of_team("wide", 1.0, lim=limits((16,), batch=(16, 64)))
    return limited(of_a_type, wide, *more)


def test_who_the_pool_cannot_run_takes_nothing_from_the_limit() -> None:
    assert caps(elsewhere(of_team("a", 2.0)))["a"] == 4
    assert caps(elsewhere(of_team("a", 2.0), of_team("b", 3.0))) == {"of-a-type": 4, "wide": 16, "a": 2, "b": 2}


@pytest.mark.parametrize("name", registry.names())
def test_what_who_cannot_run_leaves_of_a_limit_is_used_and_it_waits_for_the_pool(name: str) -> None:
    before = elsewhere(of_team("a", 2.0))
    plan = asked(name, before)
    assert violations(plan, before) == ()
    assert plan.targets["a"].num_slots > 0
    assert plan.targets["of-a-type"].num_slots == plan.targets["wide"].num_slots == 0
    assert "team" not in plan.targets["of-a-type"].reason, "its queue's limit is not what it waits for"


@pytest.mark.parametrize("name", registry.names())
def test_every_policy_stays_within_the_limits_and_leaves_the_rest_to_others(name: str) -> None:
    """Also where a job holds more than it may have from now on, since the limit is new."""
    large = holding(of_team("a", user="ann"), *(Slot("cpu-0", index, "cpu") for index in range(4)))
    before = limited(large, of_team("b", 1.0, "ben"), of_team("c", 2.0, "ben"), job("x", 3.0), job("y", 4.0),
                     queue=Queue(name="team", guaranteed={}, max_slots=3, max_slots_per_user=2))  # fmt: skip
    plan = asked(name, before)
    assert violations(plan, before) == ()
    assert list(over_quota(plan, before)) == []
    others = sum(plan.targets[job_id].num_slots for job_id in ("x", "y"))
    assert others >= 2, "what the team may not have is not left idle"


def test_a_plan_beyond_a_limit_is_found() -> None:
    before = limited(of_team("a"), of_team("b", 1.0))
    unlimited = replace(before, queues=())
    plan = registry.get("fair_share").decide(unlimited, Random(1))
    assert list(over_quota(plan, before)) == ["8 slots in all for queue team, which may hold 4 at once"]
