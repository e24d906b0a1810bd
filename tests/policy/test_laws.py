"""The laws, over every policy that declares them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.domain import JobView, Plan, Snapshot
from elastic_core.policy import registry
from elastic_core.policy.base.policy import Law
from elastic_core.policy.base.queue import HEAD_START, in_order, usable_types
from elastic_core.policy.rules import starvation
from elastic_core.predict.speed.efficiency import efficiency
from tests.effort import EFFORT, sample
from tests.policy.builders import NOW, apply, decide, job, limits
from tests.policy.strategies import BUSY, snapshots

FIRST = ("horizon", "aiturbo", "elastic_batch", "fair_share", "ones", "pollux", "saxena", "sia")

# How long who was passed over waits, and how long it then runs, where a policy serves them in turns.
TURNS = dict.fromkeys(("horizon", "horizon_tail"), (starvation.PATIENCE, starvation.TURN))


def over(names: Iterable[str]) -> pytest.MarkDecorator:
    """`make test` tries the default policy, and of the others a few that decide in different ways."""
    names = list(names)
    return pytest.mark.parametrize("name", sample(names, *(name for name in FIRST if name in names)))


def declaring(law: Law) -> pytest.MarkDecorator:
    return over(name for name in registry.names() if law in registry.get(name).laws)


@over(registry.names())
@settings(BUSY, max_examples=10 * EFFORT)
@given(picture=snapshots())
def test_a_live_job_grows_no_further_than_measured_noise_lets_it(name: str, picture: Snapshot) -> None:
    """Whatever policy decides: beyond its base batch a sample keeps its least worth, or its slots need so many."""
    plan = decide(registry.get(name), picture)
    noise = max((view.noise_scale for view in picture.jobs if view.noise_scale is not None), default=0.0)
    for view in picture.jobs:
        target, base = plan.targets[view.job_id], view.limits.base_batch
        held = view.allocation.num_slots if view.allocation is not None else 0
        needed = max(view.limits.min_slots, held, target.num_slots) * view.limits.min_local_batch
        if base is not None and target.global_batch > max(base, needed):
            assert view.profile, "its first lease starts at its base batch"
            worth = efficiency(target.global_batch, base, noise * 2 ** (1 / 16))  # `horizon` rounds noise to eighths
            assert worth >= view.limits.min_efficiency * (1 - 1e-9)


def idle(plan: Plan, picture: Snapshot) -> dict[str, int]:
    room = picture.capacity()
    for target in plan.targets.values():
        for kind, count in target.counts.items():
            room[kind] -= count
    return room


@declaring(Law.WORK_CONSERVING)
@settings(BUSY, max_examples=30 * EFFORT)
@given(picture=snapshots())
def test_no_slot_idles_while_a_waiting_job_could_start_on_it(name: str, picture: Snapshot) -> None:
    plan = decide(registry.get(name), picture)
    room = idle(plan, picture)
    for view in picture.jobs:
        if plan.targets[view.job_id].num_slots == 0:
            assert usable_types(view, room) == (), plan.targets[view.job_id].reason


@declaring(Law.BOUNDED_RESIZES)
@settings(BUSY, max_examples=40 * EFFORT)
@given(picture=snapshots())
def test_a_plan_in_force_is_decided_again(name: str, picture: Snapshot) -> None:
    """Nothing new was measured and nobody came or went: no count, type or batch changes."""
    policy = registry.get(name)
    plan = decide(policy, picture)
    after = apply(plan, picture)
    again = decide(policy, after)
    for job_id, target in plan.targets.items():
        assert again.targets[job_id].counts == target.counts, (target.reason, again.targets[job_id].reason)
        assert again.targets[job_id].global_batch == target.global_batch


@declaring(Law.BOUNDED_RESIZES)
@settings(BUSY, max_examples=15 * EFFORT)
@given(picture=snapshots())
def test_a_plan_not_yet_in_force_is_decided_again(name: str, picture: Snapshot) -> None:
    """Many decisions may pass before a job reaches its boundary; they all say the same."""
    policy = registry.get(name)
    plan = decide(policy, picture)
    for _ in range(4):
        again = decide(policy, replace(picture, policy_state=plan.state))
        assert {k: t.counts for k, t in again.targets.items()} == {k: t.counts for k, t in plan.targets.items()}
        plan = again


@declaring(Law.NO_STARVATION)
@settings(BUSY, max_examples=15 * EFFORT)
@given(picture=snapshots(), priority=st.integers(0, 5))
def test_every_job_that_fits_the_pool_runs_in_bounded_time(name: str, picture: Snapshot, priority: int) -> None:
    """Against a stream of newcomers of higher priority, one each time that the first running job ends."""
    policy = registry.get(name)
    owed = {view.job_id for view in picture.jobs if usable_types(view, picture.capacity())}
    seconds, rounds = bound(name, priority)
    for round_number in range(len(picture.jobs) + rounds):
        picture = apply(decide(policy, picture), picture)
        owed -= {view.job_id for view in picture.jobs if view.allocation is not None}
        if not owed:
            return
        picture = one_ends_one_comes(picture, seconds, round_number, priority)
    pytest.fail(f"never ran: {sorted(owed)}")


def bound(name: str, priority: int) -> tuple[float, int]:
    """(seconds a round, rounds besides one for each job that is there) in which everybody has to have run."""
    if name in TURNS:
        patience, turn = TURNS[name]
        return turn, int(patience / turn) + 8  # a turn is counted from when it is seen to run: two rounds for each
    overtakers = int((priority + 3) * HEAD_START / 30.0) + 1  # no longer than the head start of their priority
    return 30.0, 2 * overtakers + 2


def one_ends_one_comes(picture: Snapshot, seconds: float, round_number: int, priority: int) -> Snapshot:
    running = [view for view in in_order(picture.jobs) if view.allocation is not None]
    staying = [view for view in picture.jobs if view not in running[:1]]
    at = picture.now - NOW + seconds
    newcomer: JobView = job(f"new-{round_number}", arrived=at, lim=limits((1, 2)), priority=priority)
    return replace(picture, jobs=(*staying, newcomer), now=NOW + at)
