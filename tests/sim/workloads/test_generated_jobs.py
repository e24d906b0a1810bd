"""The workload that needs no data."""

from __future__ import annotations

from itertools import pairwise

import pytest

from elastic_core.sim.workloads.catalogue import ENTRIES, first
from elastic_core.sim.workloads.clusters import PRESETS, describe, preset
from elastic_core.sim.workloads.generated_jobs import KINDS, generated


def test_the_same_seed_gives_the_same_jobs_and_another_seed_others() -> None:
    assert generated(3) == generated(3)
    assert generated(3) != generated(4)


def test_every_kind_of_job_turns_up_and_can_run_on_the_default_cluster() -> None:
    jobs = generated(0, num_jobs=200).jobs
    assert {job.task for job in jobs} == set(KINDS)
    largest = max(node.num_slots for node in preset("small-mixed"))
    assert all(job.limits.min_slots <= largest for job in jobs)
    assert all(job.limits.min_batch <= job.limits.requested_batch <= job.limits.max_batch for job in jobs)
    assert all(a.submitted_at < b.submitted_at for a, b in pairwise(jobs))


def test_the_mean_gap_between_arrivals_is_what_was_asked_for() -> None:
    jobs = generated(1, num_jobs=4000, mean_gap=100.0).jobs
    assert jobs[-1].submitted_at / len(jobs) == pytest.approx(100.0, rel=0.2)


def test_first_keeps_the_first_jobs_and_says_so() -> None:
    few = first(generated(0), 5)
    assert [job.job_id for job in few.jobs] == [job.job_id for job in generated(0).jobs[:5]]
    assert few.name.endswith("first 5 jobs")
    assert first(generated(0), 10**6) == generated(0)


def test_every_workload_names_a_cluster_that_exists() -> None:
    assert {entry.cluster for entry in ENTRIES.values()} <= set(PRESETS)
    assert describe(preset("sia-heterogeneous")) == "64 slots: 24 t4, 24 rtx, 16 a100"
