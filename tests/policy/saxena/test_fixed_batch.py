"""The baselines: the program of `elastic_batch`, at one total batch for a job's whole life."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.domain import JobView, Snapshot
from elastic_core.policy import registry
from elastic_core.policy.base.batch_bound import bounded
from elastic_core.policy.base.queue import as_they_stand
from elastic_core.policy.saxena.elastic_batch import ElasticBatch
from elastic_core.policy.saxena.fixed_batch import (
    MaxBatch,
    MinBatch,
    RandomBatch,
    at_one_batch,
    drawn,
    largest,
    smallest,
)
from tests.policy.builders import apply, decide, holding, job, limits, measured, nodes, point, snapshot
from tests.policy.strategies import BUSY, job_views, snapshots

RULES = {"min_batch": smallest, "max_batch": largest, "random_batch": drawn}


@pytest.mark.parametrize("name", [*RULES, *(f"{name}_drop" for name in RULES)])
@settings(BUSY, max_examples=25)
@given(picture=snapshots())
def test_a_job_has_one_batch_whatever_it_holds_and_whoever_else_is_there(name: str, picture: Snapshot) -> None:
    """A live one within its bound, which follows what it holds and measured (`policy.base.batch_bound`)."""
    batch_of = RULES[name.removesuffix("_drop")]
    plan = decide(registry.get(name), picture)
    again = decide(registry.get(name), apply(plan, picture))
    for decided, told in ((picture, plan), (apply(plan, picture), again)):
        for view in map(bounded, as_they_stand(decided)):
            target = told.targets[view.job_id]
            assert target.num_slots == 0 or target.global_batch == batch_of(view)


@settings(BUSY, max_examples=60)
@given(view=job_views(0))
def test_the_random_batch_is_in_range_and_the_jobs_own(view: JobView) -> None:
    assert smallest(view) <= drawn(view) <= largest(view)
    assert drawn(view) == drawn(replace(view, done_samples=0, profile=(), num_resizes=9))


def test_random_batches_differ_from_job_to_job() -> None:
    lim = limits((1, 2), (16, 1024))
    assert len({drawn(job(f"job-{i}", lim=lim)) for i in range(50)}) > 40


@settings(BUSY, max_examples=60)
@given(view=job_views(0), data=st.data())
def test_a_batch_gets_the_counts_that_hold_it_at_once(view: JobView, data: st.DataObject) -> None:
    batch = data.draw(st.integers(smallest(view), largest(view)))
    found = at_one_batch(view.limits, batch)
    assert found.min_batch == found.max_batch == batch
    assert found.slot_counts
    assert set(found.slot_counts) <= set(view.limits.slot_counts)
    room = view.limits.max_local_batch
    if room is not None and any(batch <= room * n and n <= batch for n in view.limits.slot_counts):
        assert all(-(-batch // count) <= room for count in found.slot_counts)


def test_a_large_batch_needs_the_slots_that_hold_it() -> None:
    """512 samples at 64 a slot: eight slots or nothing, so one of two jobs waits; with elastic batches both run."""
    lim = limits((1, 2, 4, 8, 16), (32, 512), max_local_batch=64)
    picture = snapshot(nodes(4, 4), job("a", lim=lim), job("b", arrived=1, lim=lim))
    plan = decide(MaxBatch(), picture)
    assert [plan.targets[name].num_slots for name in "ab"] == [8, 0]
    assert "at least 8 slots" in plan.targets["b"].reason
    assert all(target.num_slots for target in decide(ElasticBatch(), picture).targets.values())


def test_a_small_batch_does_not_scale_where_an_elastic_one_does() -> None:
    lim = limits((1, 2, 4), (32, 512))
    points = [point(n, b, 0.02 + 0.001 * b / n + 0.03 * (n > 1), 0.03 * (n > 1)) for n in (1, 2, 4) for b in (32, 512)]
    picture = snapshot(nodes(4), measured(job("a", lim=lim), *points))
    assert decide(MinBatch(), picture).targets["a"].num_slots == 1
    assert decide(ElasticBatch(), picture).targets["a"].num_slots == 4


def test_a_batch_that_no_count_holds_is_accumulated() -> None:
    lim = limits((1, 2), (32, 512), max_local_batch=64)
    assert at_one_batch(lim, 512).slot_counts == (1, 2)


def test_a_job_that_comes_from_another_policy_takes_the_batch_in_place_and_is_told_why() -> None:
    view = job("a", lim=limits((1, 2), (32, 512)))
    (slot, *_) = snapshot(nodes(2), view).slots()
    plan = decide(MinBatch(), snapshot(nodes(2), holding(view, slot, batch=128)))
    assert plan.targets["a"].global_batch == 32
    assert "global batch 128 -> 32: the smallest of its range" in plan.targets["a"].reason


def test_only_the_drop_form_turns_jobs_away() -> None:
    lim = limits((2,), (16, 64))
    picture = snapshot(nodes(2), job("a", lim=lim), job("b", arrived=1, lim=lim))
    for policy in (MinBatch(), MaxBatch(), RandomBatch()):
        assert decide(policy, picture).turned_away == ()
        assert decide(registry.get(f"{policy.name}_drop"), picture).turned_away == ("b",)
