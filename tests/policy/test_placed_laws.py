"""The laws over snapshots in which placed jobs share the pool with ordinary ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.domain import JobView, Plan, Snapshot, from_json, to_json
from elastic_core.policy import registry
from elastic_core.policy.base.placed_jobs import choices_of
from elastic_core.policy.base.policy import Law
from elastic_core.policy.base.queue import usable_types
from elastic_core.policy.plans.plan_check import violations
from elastic_core.policy.rules.placed_alone import decide_on_one_type, places
from elastic_core.protocol.encoding import dumps, loads
from tests.effort import EFFORT
from tests.policy.builders import NOW, apply, decide
from tests.policy.placed import placed_snapshots
from tests.policy.strategies import BUSY
from tests.policy.test_laws import bound, idle, one_ends_one_comes, over

PLACING = [name for name in registry.names() if Law.PLACES_LAYERS in registry.get(name).laws]
placing = over(PLACING)


def test_the_default_policy_places_layers() -> None:
    assert "horizon" in PLACING


@placing
@settings(BUSY, max_examples=20 * EFFORT)
@given(picture=placed_snapshots())
def test_every_plan_is_valid_and_above_every_floor_as_far_as_is_known(name: str, picture: Snapshot) -> None:
    plan = decide(registry.get(name), picture)
    assert violations(plan, picture) == ()
    for job_id, choices in choices_of(picture).items():
        target = plan.targets[job_id]
        if target.num_slots:
            (choice,) = [choice for choice in choices if choice.bundle.stages == target.stages]
            (view,) = [view for view in picture.jobs if view.job_id == job_id]
            holds = view.allocation is not None and view.allocation.stages == target.stages
            assert view.limits.placed is not None
            assert holds or choice.bundle.throughput >= view.limits.placed.floor * (1 - 1e-9)


@over(name for name in registry.names() if name not in PLACING)
@settings(BUSY, max_examples=3 * EFFORT)
@given(picture=placed_snapshots())
def test_other_policies_run_placed_jobs_whole_on_one_type_or_let_them_wait(name: str, picture: Snapshot) -> None:
    policy = registry.get(name)
    assert not places(policy)
    plan = decide_on_one_type(lambda asked: decide(policy, asked), picture)
    assert violations(plan, picture) == ()
    for view in picture.jobs:
        if view.limits.placed is not None and plan.targets[view.job_id].num_slots:
            (stage,) = plan.targets[view.job_id].stages
            assert stage.layers == (0, len(view.limits.placed.layers))


@placing
@settings(BUSY, max_examples=10 * EFFORT)
@given(picture=placed_snapshots())
def test_no_slots_idle_while_a_waiting_job_could_start_on_them(name: str, picture: Snapshot) -> None:
    """An ordinary job on its smallest count; a placed one on any bundle that its money lets it have."""
    picture = replace(picture, jobs=tuple(replace(view, budget=None, prefers_cost=False) for view in picture.jobs))
    plan, choices = decide(registry.get(name), picture), choices_of(picture)
    room = idle(plan, picture)
    for view in picture.jobs:
        if plan.targets[view.job_id].num_slots == 0 and view.remaining_samples > 0:
            assert not fits(view, room, choices), plan.targets[view.job_id].reason


def fits(view: JobView, room: dict[str, int], choices) -> bool:  # type: ignore[no-untyped-def]
    if view.limits.placed is None:
        return usable_types(view, room) != ()
    return any(
        all(count <= room.get(kind, 0) for kind, count in choice.bundle.counts.items())
        for choice in choices[view.job_id]
    )


@placing
@settings(BUSY, max_examples=20 * EFFORT)
@given(picture=placed_snapshots())
def test_a_plan_in_force_is_decided_again(name: str, picture: Snapshot) -> None:
    policy = registry.get(name)
    plan = decide(policy, picture)
    again = decide(policy, apply(plan, picture))
    for job_id, target in plan.targets.items():
        assert again.targets[job_id].counts == target.counts, (target.reason, again.targets[job_id].reason)
        assert again.targets[job_id].stages == target.stages


@placing
@settings(BUSY, max_examples=8 * EFFORT)
@given(picture=placed_snapshots(), priority=st.integers(0, 5))
def test_every_job_that_fits_the_pool_runs_in_bounded_time(name: str, picture: Snapshot, priority: int) -> None:
    policy = registry.get(name)
    choices, capacity = choices_of(picture), picture.capacity()
    owed = {view.job_id for view in picture.jobs if view.remaining_samples > 0 and fits(view, capacity, choices)}
    seconds, rounds = bound(name, priority)
    for round_number in range(len(picture.jobs) + rounds):
        picture = apply(decide(policy, picture), picture)
        owed -= {view.job_id for view in picture.jobs if view.allocation is not None}
        if not owed:
            return
        picture = one_ends_one_comes(picture, seconds, round_number, priority)
    pytest.fail(f"never ran: {sorted(owed)}")


@placing
@settings(BUSY, max_examples=10 * EFFORT)
@given(picture=placed_snapshots())
def test_the_same_inputs_as_they_are_stored_give_the_same_plan(name: str, picture: Snapshot) -> None:
    stored = from_json(Snapshot, loads(dumps(to_json(picture))))
    assert [view.limits for view in stored.jobs] == [view.limits for view in picture.jobs]
    plan = decide(registry.get(name), picture)
    assert plan == decide(registry.get(name), stored)
    assert from_json(Plan, loads(dumps(to_json(plan)))).targets.keys() == plan.targets.keys()


@placing
@settings(BUSY, max_examples=10 * EFFORT)
@given(picture=placed_snapshots(), seed=st.integers(0, 3))
def test_new_measurements_alone_move_nobody_back_to_what_it_just_left(name: str, picture: Snapshot, seed: int) -> None:
    """A placed job that was given other slots is not given the first ones again within the window."""
    policy = registry.get(name)
    first = apply(decide(policy, picture), picture)
    slower = tuple(
        replace(view, total_samples=None if view.total_samples is None else view.total_samples * (seed + 1))
        for view in first.jobs
    )
    second = apply(decide(policy, replace(first, jobs=slower, now=first.now + 60.0)), first)
    third = decide(policy, replace(second, jobs=tuple(
        replace(view, total_samples=of_first.total_samples) for view, of_first in
        zip(second.jobs, first.jobs, strict=True)
    ), now=first.now + 120.0))  # fmt: skip
    for before, now in zip(first.jobs, second.jobs, strict=True):
        held, holds = before.allocation, now.allocation
        if held is not None and holds is not None and held.counts() != holds.counts():
            assert third.targets[before.job_id].wanted != held.counts(), NOW
