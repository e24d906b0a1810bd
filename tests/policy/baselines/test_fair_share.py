"""Fair share and fixed, by their stories."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.domain import Node, Snapshot
from elastic_core.policy.base.policy import Policy
from elastic_core.policy.baselines.fair_share import FairShare
from elastic_core.policy.baselines.fixed import Fixed
from tests.policy.builders import apply, decide, holding, job, limits, nodes, snapshot
from tests.policy.strategies import BUSY, snapshots

EVERY = limits(range(1, 9))


def counts(policy: Policy, picture: Snapshot) -> dict[str, int]:
    return {job_id: target.num_slots for job_id, target in decide(policy, picture).targets.items()}


@pytest.mark.parametrize(
    ("num_jobs", "want"), [(1, [8]), (2, [4, 4]), (3, [3, 3, 2]), (5, [2, 2, 2, 1, 1]), (9, [1] * 8 + [0])]
)
def test_fair_share_shares_evenly_the_first_get_the_rest(num_jobs: int, want: list[int]) -> None:
    jobs = [job(f"j{i}", arrived=i, lim=EVERY) for i in range(num_jobs)]
    got = counts(FairShare(), snapshot(nodes(4, 4), *jobs))
    assert [got[f"j{i}"] for i in range(num_jobs)] == want


def test_fair_share_gives_what_one_may_not_use_to_the_others() -> None:
    small, large = job("small", lim=limits((1,))), job("large", arrived=1, lim=limits((1, 2, 4)))
    plan = decide(FairShare(), snapshot(nodes(8), small, large))
    assert {k: t.num_slots for k, t in plan.targets.items()} == {"small": 1, "large": 4}
    assert plan.targets["large"].reason == "4 slots of cpu: all that it may use"


def test_a_large_job_is_passed_over_and_gets_its_turn_by_pushing_out_who_came_later() -> None:
    large = job("large", lim=limits((4,)))
    first = job("first", arrived=-10, lim=limits((2,)))
    last = job("last", arrived=10, lim=limits((1, 2)))
    picture = snapshot(nodes(4), first, large, last)
    assert counts(FairShare(), picture) == {"first": 2, "large": 0, "last": 2}
    after = apply(decide(FairShare(), picture), picture)
    gone = replace(after, jobs=after.jobs[1:])
    assert counts(FairShare(), gone) == {"large": 4, "last": 0}


def test_the_batch_stays_what_it_was_else_is_the_requested_one_and_feeds_every_slot() -> None:
    lim = limits((4,), (2, 64), requested_batch=2)
    assert decide(FairShare(), snapshot(nodes(4), job("a", lim=lim))).targets["a"].global_batch == 4
    used = replace(job("a", lim=lim), last_batch=48)
    assert decide(FairShare(), snapshot(nodes(4), used)).targets["a"].global_batch == 48


def test_fixed_gives_what_was_asked_for_first_come_first_served() -> None:
    picture = snapshot(
        nodes(4), *(job(name, arrived=i, lim=limits((1, 2, 4), requested_slots=2)) for i, name in enumerate("abc"))
    )
    assert counts(Fixed(), picture) == {"a": 2, "b": 2, "c": 0}
    assert decide(Fixed(), picture).targets["c"].reason == "waits: it asks for 2 slots of cpu, and 0 are free"


def test_fixed_lets_nobody_pass_a_waiting_job_of_its_type() -> None:
    one, four = limits((1,)), limits((4,))
    picture = snapshot(nodes(4), job("a", lim=one), job("b", arrived=1, lim=four), job("c", arrived=2, lim=one))
    assert counts(Fixed(), picture) == {"a": 1, "b": 0, "c": 0}
    assert decide(Fixed(), picture).targets["c"].reason == "waits for 1 slot behind b"


def test_fixed_pushes_nobody_out() -> None:
    pool = snapshot(nodes(2))
    running = holding(job("late", arrived=10, lim=limits((2,))), *pool.slots())
    urgent = job("urgent", lim=limits((2,)), priority=100)
    assert counts(Fixed(), snapshot(nodes(2), running, urgent)) == {"late": 2, "urgent": 0}


def test_fixed_falls_to_the_largest_allowed_count_of_a_pool_that_is_too_small() -> None:
    assert counts(Fixed(), snapshot(nodes(3), job("a", lim=limits((1, 2, 8))))) == {"a": 2}


@settings(BUSY, max_examples=60)
@given(picture=snapshots(types=("cpu",)), more=st.integers(1, 4))
def test_with_one_type_a_larger_pool_runs_no_fewer_jobs_under_fixed(picture: Snapshot, more: int) -> None:
    """Where every job fits the smaller pool: one that does not would not hold up the queue there, but in the larger."""
    jobs = tuple(
        replace(view, limits=limits(view.limits.slot_counts[:1], (1, 512)), allocation=None)
        for view in picture.jobs
        if view.limits.min_slots <= picture.capacity().get("cpu", 0)
    )
    before = replace(picture, jobs=jobs)
    larger = replace(before, nodes=(*before.nodes, Node(name="more", type="cpu", num_slots=more)))
    if before.capacity():
        running = sum(count > 0 for count in counts(Fixed(), before).values())
        assert sum(count > 0 for count in counts(Fixed(), larger).values()) >= running


def test_fixed_a_job_that_lost_its_node_queues_up_and_pushes_nobody_out() -> None:
    away = tuple(replace(node, present=node.name != "cpu-0") for node in nodes(2, 2))
    slots = snapshot(nodes(2, 2)).slots()
    lost = holding(job("lost", lim=limits((2,))), *slots[:2])
    runs = holding(job("runs", arrived=10, lim=limits((2,))), *slots[2:])
    assert counts(Fixed(), snapshot(away, lost, runs)) == {"lost": 0, "runs": 2}
