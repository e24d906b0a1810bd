"""What policies are told in a mix of jobs that can and cannot be predicted."""

from __future__ import annotations

from math import log

import pytest

from elastic_core.policy.base.remaining_work import CERTAIN
from elastic_core.sim.workloads.server_jobs import generated
from elastic_core.sim.workloads.unpredictable import PredictionErrors, shuffled, with_unpredictable_share

JOBS = generated(3)


def unpredictable(job: object) -> bool:
    return len(job.estimates) > 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 1.0])
def test_the_share_is_exact_and_the_jobs_are_the_same(share: float) -> None:
    mix = with_unpredictable_share(JOBS, share, seed=1)
    assert sum(unpredictable(job) for job in mix.jobs) == round(share * 60)
    assert [(job.job_id, job.physics) for job in mix.jobs] == [(job.job_id, job.physics) for job in JOBS.jobs]
    assert with_unpredictable_share(JOBS, share, seed=1) == mix


def test_estimates_are_near_for_the_one_kind_and_far_off_both_ways_for_the_other() -> None:
    jobs = with_unpredictable_share(JOBS, 0.5, seed=1).jobs
    near = [log(factor) for job in jobs if not unpredictable(job) for _, factor in job.estimates]
    far = [log(factor) for job in jobs if unpredictable(job) for _, factor in job.estimates]
    assert max(map(abs, near)) < 0.25
    assert sum(abs(error) > 1.0 for error in far) > len(far) / 3
    assert 0.4 < sum(error > 0 for error in far) / len(far) < 0.6


def test_a_perfect_classifier_tells_them_apart_and_an_erring_one_is_put_right_by_the_run() -> None:
    for job in with_unpredictable_share(JOBS, 0.5, 1, PredictionErrors(classifier_right=1.0)).jobs:
        assert job.turns_predictable is None
        assert job.predictable is not None
        assert (job.predictable >= CERTAIN) != unpredictable(job)
    for job in with_unpredictable_share(JOBS, 0.5, 1, PredictionErrors(classifier_right=0.0)).jobs:
        assert job.predictable is not None
        assert (job.predictable >= CERTAIN) == unpredictable(job)
        assert job.turns_predictable is not None
        since, certainty = job.turns_predictable
        assert since == 0.25
        assert (certainty >= CERTAIN) != unpredictable(job)


def test_shuffling_keeps_times_and_jobs_and_seed_nought_changes_nothing() -> None:
    assert shuffled(JOBS, 0) is JOBS
    other = shuffled(JOBS, 1)
    assert [job.submitted_at for job in other.jobs] == [job.submitted_at for job in JOBS.jobs]
    assert [job.physics for job in other.jobs] != [job.physics for job in JOBS.jobs]
    assert {id(job.physics) for job in other.jobs} == {id(job.physics) for job in JOBS.jobs}
