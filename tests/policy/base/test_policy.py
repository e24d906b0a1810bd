"""Every policy of the registry: valid plans, the same plan from the same input, everything through JSON."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings

from elastic_core.domain import Plan, Snapshot, from_json, to_json
from elastic_core.errors import UserError
from elastic_core.policy import registry
from elastic_core.policy.base.policy import Law
from elastic_core.policy.plans.plan_check import violations
from tests.effort import EFFORT
from tests.policy.builders import apply, decide, job, nodes, snapshot
from tests.policy.strategies import BUSY, snapshots, without_measurements

every_policy = pytest.mark.parametrize("name", registry.names())


def through_json(kind: Any, value: Any) -> Any:
    return from_json(kind, json.loads(json.dumps(to_json(value))))


@pytest.mark.sampled(12)
@every_policy
@settings(BUSY, max_examples=12 * EFFORT)
@given(picture=snapshots())
def test_a_plan_keeps_limits_and_capacity(name: str, picture: Snapshot) -> None:
    plan = decide(registry.get(name), picture)
    assert violations(plan, picture) == ()
    assert plan.policy == name
    assert all(target.reason for target in plan.targets.values())
    assert plan.wake_at is None or plan.wake_at > picture.now


@pytest.mark.sampled(12)
@every_policy
@settings(BUSY, max_examples=10 * EFFORT)
@given(picture=snapshots())
def test_a_decision_can_be_replayed_from_what_was_stored(name: str, picture: Snapshot) -> None:
    """Another process, another seed for the policies that draw nothing: the same plan, to the last word."""
    plan = decide(registry.get(name), picture)
    replay = registry.get(name).decide(through_json(Snapshot, picture), Random(0))
    assert to_json(replay) == to_json(plan)
    assert to_json(through_json(Plan, plan)) == to_json(plan)


@pytest.mark.sampled(12)
@every_policy
@settings(BUSY, max_examples=10 * EFFORT)
@given(picture=snapshots())
def test_state_carried_through_json_is_the_state(name: str, picture: Snapshot) -> None:
    policy = registry.get(name)
    after = apply(decide(policy, picture), picture)
    assert to_json(decide(policy, after)) == to_json(decide(policy, through_json(Snapshot, after)))


@pytest.mark.sampled(12)
@every_policy
@settings(BUSY, max_examples=8 * EFFORT)
@given(picture=snapshots())
def test_a_job_without_any_measurement_is_no_obstacle(name: str, picture: Snapshot) -> None:
    bare = without_measurements(picture)
    assert violations(decide(registry.get(name), bare), bare) == ()


@every_policy
def test_an_empty_pool_and_no_jobs_are_no_obstacle(name: str) -> None:
    policy = registry.get(name)
    assert decide(policy, snapshot(nodes(2))).targets == {}
    waiting = decide(policy, snapshot((), job("a"))).targets["a"]
    assert waiting.num_slots == 0
    assert waiting.reason


def test_an_unknown_policy_names_the_near_miss_and_all_there_are() -> None:
    with pytest.raises(UserError) as caught:
        registry.get("elastic-batch")
    assert "no policy is called 'elastic-batch'. Did you mean 'elastic_batch'?" in str(caught.value)
    assert all(name in str(caught.value) for name in registry.names())


def test_names_and_laws_are_those_of_the_policies() -> None:
    assert list(registry.names()) == sorted(registry.names())
    assert all(registry.get(name).name == name for name in registry.names())
    assert all(isinstance(law, Law) for name in registry.names() for law in registry.get(name).laws)
