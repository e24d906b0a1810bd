"""Shares of time, and the rounds that realise them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.domain import JobView, Node, Snapshot
from elastic_core.policy.base.pool import Pool
from elastic_core.policy.gavel.gavel import ROUND, Gavel
from elastic_core.policy.gavel.time_shares import PROGRAMS, Request
from tests.policy.builders import apply, decide, job, limits, nodes, snapshot
from tests.policy.strategies import BUSY

POOL = nodes(2) + nodes(2, kind="h200")
TYPES = ("cpu", "h200")
CAPACITY = {"cpu": 2, "h200": 2}


class Reported:
    """Step seconds by job and type."""

    def __init__(self, **jobs: dict[str, float]) -> None:
        self.jobs = jobs

    def steps(self, job: JobView, batch: int) -> float:
        raise AssertionError("Gavel does not ask for it")

    def seconds(self, job: JobView, kind: str, counts: Sequence[int], pool: Pool, batch: int) -> list[float]:
        return [self.jobs[job.job_id][kind] for _ in counts]


def asks(name: str, at: float = 0.0, slots: int = 2) -> JobView:
    return job(name, at, lim=limits((1, 2), requested_slots=slots))


def asked(count: int, cpu: float, h200: float, name: str = "a") -> Request:
    return Request(asks(name, slots=count), count, 16, {"cpu": cpu, "h200": h200})


jobs = st.lists(
    st.builds(asked, st.sampled_from([1, 2]), st.floats(0.1, 10), st.floats(0.1, 10)), min_size=1, max_size=4
)


@pytest.mark.parametrize("name", sorted(PROGRAMS))
@settings(BUSY, max_examples=50)
@given(those=jobs)
def test_shares_fit_the_jobs_and_the_types(name: str, those: list[Request]) -> None:
    shares = PROGRAMS[name](those, TYPES, CAPACITY)
    assert (shares >= 0).all()
    assert (shares.sum(axis=1) <= 1 + 1e-4).all()
    counts = np.asarray([one.count for one in those])
    assert (counts @ shares <= 2 + 1e-3).all()


@settings(BUSY, max_examples=50)
@given(those=jobs, other=st.integers(0, 10**6))
def test_no_other_shares_add_up_to_more_steps(those: list[Request], other: int) -> None:
    rates = np.asarray([[one.rates[kind] for kind in TYPES] for one in those])
    counts = np.asarray([one.count for one in those])
    tried = np.random.default_rng(other).random((200, len(those), 2))
    tried /= np.maximum(tried.sum(axis=2, keepdims=True), 1.0)
    tried /= np.maximum((counts[None, :, None] * tried).sum(axis=1, keepdims=True) / 2.0, 1.0)
    best = (rates * PROGRAMS["max_sum"](those, TYPES, CAPACITY)).sum()
    assert best >= (rates * tried).sum(axis=(1, 2)).max() - 1e-3 * best


def test_max_sum_starves_the_slow_job_and_max_min_does_not() -> None:
    those = [asked(2, 1.0, 10.0, "fast"), asked(2, 1.0, 10.0, "fast too"), asked(2, 0.1, 0.1, "slow")]
    assert PROGRAMS["max_sum"](those, TYPES, CAPACITY)[2].sum() < 1e-3
    assert PROGRAMS["max_min"](those, TYPES, CAPACITY)[2].sum() > 0.3


def test_equal_jobs_get_equal_shares() -> None:
    shares = PROGRAMS["max_sum"]([asked(2, 1.0, 2.0), asked(2, 1.0, 2.0), asked(2, 1.0, 2.0)], TYPES, CAPACITY)
    assert np.ptp(shares, axis=0).max() == 0


def rounds(policy: Gavel, views: Sequence[JobView], number: int, pool: tuple[Node, ...] = POOL) -> list[dict[str, str]]:
    picture: Snapshot = snapshot(pool, *views)
    found = []
    for _ in range(number):
        plan = decide(policy, picture)
        found.append({name: next(iter(t.counts)) for name, t in plan.targets.items() if t.counts})
        picture = replace(apply(plan, picture), now=picture.now + ROUND)
    return found


def test_over_the_rounds_everybody_gets_its_share_of_the_fast_type() -> None:
    told = Reported(**{name: {"cpu": 1.0, "h200": 0.1} for name in "abcd"})
    found = rounds(Gavel(knowledge=told), [asks(name, at) for at, name in enumerate("abcd")], 40)
    fast = [sum(given.get(name) == "h200" for given in found) for name in "abcd"]
    assert sum(fast) == 40
    assert max(fast) - min(fast) <= 2
    assert all(len(given) == 2 for given in found)


def test_within_a_round_nobody_is_moved_and_a_free_slot_is_filled() -> None:
    told = Reported(a={"cpu": 1.0, "h200": 0.1}, b={"cpu": 1.0, "h200": 0.1}, c={"cpu": 1.0, "h200": 0.1})
    policy = Gavel(knowledge=told)
    picture = snapshot(POOL, asks("a"), asks("b", 1), asks("c", 2))
    plan = decide(policy, picture)
    running = {name for name, target in plan.targets.items() if target.num_slots}
    assert len(running) == 2
    after = replace(apply(plan, picture), now=picture.now + ROUND - 1)
    gone = min(running)
    left = replace(after, jobs=tuple(view for view in after.jobs if view.job_id != gone))
    again = decide(policy, left)
    assert {name: dict(again.targets[name].counts) for name in running - {gone}} == {
        name: dict(plan.targets[name].counts) for name in running - {gone}
    }
    assert all(target.num_slots == 2 for target in again.targets.values())
    assert again.wake_at == plan.wake_at


def test_time_is_counted_by_job_and_by_type_from_half_a_round_on() -> None:
    policy = Gavel(knowledge=Reported(a={"cpu": 1.0, "h200": 0.1}, b={"cpu": 1.0, "h200": 1.0}))
    picture = snapshot(POOL, asks("a"), asks("b", 1))
    plan = decide(policy, picture)
    half = ROUND / 2
    assert plan.state["type_time"] == {"cpu": 2 * half, "h200": 2 * half}
    later = replace(apply(plan, picture), now=picture.now + 100.0)
    state = decide(policy, later).state
    assert state["type_time"] == {"cpu": 2 * half + 100.0, "h200": 2 * half + 100.0}
    assert state["job_time"] == {"a": {"cpu": half, "h200": half + 100.0}, "b": {"cpu": half + 100.0, "h200": half}}


def test_an_objective_of_another_name_is_refused() -> None:
    with pytest.raises(ValueError, match="'max' is none of max_min, max_sum"):
        Gavel("max")
