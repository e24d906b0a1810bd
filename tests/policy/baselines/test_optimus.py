"""Greedy marginal gain, against an exhaustive search where greed is optimal, and the words that go with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.domain import JobView, Snapshot
from elastic_core.policy.base.pool import Pool
from elastic_core.policy.base.remaining_work import remaining_steps
from elastic_core.policy.baselines.optimus import Optimus
from tests.policy.builders import decide, holding, job, limits, nodes, snapshot
from tests.policy.strategies import BUSY


class Reported:
    """Step time a + b / n, a number of steps, by job."""

    def __init__(self, **jobs: tuple[float, float, float]) -> None:
        self.jobs = jobs

    def steps(self, job: JobView, batch: int) -> float:
        return self.jobs[job.job_id][2]

    def seconds(self, job: JobView, kind: str, counts: Sequence[int], pool: Pool, batch: int) -> list[float]:
        a, b, _ = self.jobs[job.job_id]
        return [a + b / n for n in counts]

    def total(self, counts: dict[str, int]) -> float:
        return sum((a + b / counts[name]) * steps for name, (a, b, steps) in self.jobs.items())


def views(names: Sequence[str]) -> list[JobView]:
    return [job(name, at, lim=limits((1, 2, 3, 4), (16, 64))) for at, name in enumerate(names)]


def counts_of(told: Reported, *pool: int) -> dict[str, int]:
    plan = decide(Optimus(told), snapshot(nodes(*pool), *views(sorted(told.jobs))))
    return {name: target.num_slots for name, target in plan.targets.items()}


positive = st.floats(0.1, 10.0)


@settings(BUSY, max_examples=60)
@given(jobs=st.lists(st.tuples(positive, positive, positive), min_size=1, max_size=3), slots=st.integers(3, 9))
def test_with_diminishing_gains_no_other_counts_leave_less_remaining_time(
    jobs: list[tuple[float, float, float]], slots: int
) -> None:
    told = Reported(**{f"j{i}": shape for i, shape in enumerate(jobs)})
    every = [dict(zip(told.jobs, c, strict=True)) for c in product(range(1, 5), repeat=len(jobs)) if sum(c) <= slots]
    assert told.total(counts_of(told, slots)) == pytest.approx(min(map(told.total, every)))


def test_a_slot_that_slows_the_job_down_stays_free() -> None:
    class Worse(Reported):
        def seconds(self, job: JobView, kind: str, counts: Sequence[int], pool: Pool, batch: int) -> list[float]:
            return [1.0 if n < 3 else 2.0 for n in counts]

    assert counts_of(Worse(a=(0, 0, 10.0)), 4) == {"a": 1}


def test_a_large_step_competes_by_what_it_saves_for_each_slot() -> None:
    class Steps(Reported):
        def seconds(self, job: JobView, kind: str, counts: Sequence[int], pool: Pool, batch: int) -> list[float]:
            return [{1: 9.0, 4: 6.0}[n] for n in counts] if job.job_id == "a" else [9.0 - 1.5 * n for n in counts]

    told = Steps(a=(0, 0, 1.0), b=(0, 0, 1.0))
    picture = snapshot(nodes(5), job("a", lim=limits((1, 4))), job("b", 1, lim=limits((1, 2, 3, 4))))
    plan = decide(Optimus(told), picture)
    assert {name: target.num_slots for name, target in plan.targets.items()} == {"a": 1, "b": 4}


def test_never_more_slots_than_its_smallest_local_batch_allows() -> None:
    view = job("a", lim=limits((1, 2, 3, 4), (16, 64), requested_batch=32, min_local_batch=16))
    plan = decide(Optimus(Reported(a=(0.0, 1.0, 1.0))), snapshot(nodes(4), view))
    assert plan.targets["a"].num_slots == 2
    assert plan.targets["a"].reason.endswith("it has no larger count")


def test_a_reason_says_what_the_last_step_was_given_for_and_what_ended_the_steps() -> None:
    last = "its last step saved more remaining time a slot than others' steps then"
    told = Reported(a=(0.0, 9.0, 10.0), b=(0.0, 9.0, 1.0), c=(5.0, 0.0, 1.0))
    picture = snapshot(nodes(6), *views("abc"))
    reasons = {job_id: target.reason for job_id, target in decide(Optimus(told), picture).targets.items()}
    assert reasons == {
        "a": f"4 slots of cpu, {last}; it has no larger count",
        "b": "1 slot of cpu, its smallest count; the next did not fit when its turn came",
        "c": "1 slot of cpu, its smallest count; more would save it none",
    }


def test_who_keeps_its_count_keeps_its_place_and_the_others_take_the_emptiest_node() -> None:
    told = Reported(a=(1.0, 0.0, 1.0), b=(0.0, 4.0, 100.0))
    first, second = views("ab")
    pool = nodes(2, 4)
    plan = decide(Optimus(told), snapshot(pool, holding(first, pool[0].slots()[0]), second))
    assert plan.targets["a"].nodes is None
    assert plan.targets["b"].nodes == {"cpu-1": 4}


def test_work_in_scale_invariant_samples_takes_more_steps_at_a_large_batch() -> None:
    picture: Snapshot = snapshot(nodes(1), job("a", total_samples=6400))
    view = replace(picture.jobs[0], noise_scale=16.0)
    assert remaining_steps(view, 64) == 100
    assert remaining_steps(replace(view, scale_invariant=True), 64) == pytest.approx(100 * (16 + 64) / (16 + 16))
    assert remaining_steps(replace(view, total_samples=None, done_samples=640), 64) == 10
