"""What a job that chooses its exchange has kept, by its reports, and what it tells others of its task."""

from __future__ import annotations

from dataclasses import replace

import pytest

from elastic_core.comm.tuning import trial
from elastic_core.domain import ProfilePoint
from elastic_core.predict.speed.kept_exchange import (
    TRIAL_REPORTS,
    kept_at,
    own_points,
    shared_points,
    to_share,
)
from tests.policy.builders import limits, point

AUTO, EXACT = limits(comm="auto"), limits()
TWO_NODES = (2, 2, "cpu")


def report(comm: str, step: float, count: int, sync: float = 1.0) -> ProfilePoint:
    return replace(point(2, 64, step, sync, num_nodes=2), comm=comm, count=count)


def test_a_trial_is_as_long_as_the_ranks_make_it() -> None:
    assert TRIAL_REPORTS >= trial.WARM_STEPS + trial.TIMED_STEPS


@pytest.mark.parametrize(
    ("reports", "kept"),
    [
        ([("allreduce", 2.0, 4)], None),
        ([("allreduce", 2.0, 4), ("bytegrad", 0.7, 4), ("powersgd", 0.6, 4)], None),
        ([("allreduce", 2.0, 4), ("bytegrad", 0.7, 4), ("powersgd", 0.6, 8)], "powersgd"),
        ([("allreduce", 2.0, 8), ("bytegrad", 0.7, 16)], "bytegrad"),
        ([("allreduce", 2.0, 64), ("bytegrad", 0.7, 64)], "bytegrad"),
        ([("allreduce", 2.0, 8), ("bytegrad", 2.4, 4)], "allreduce"),
    ],
)
def test_what_reported_more_than_a_trial_can_was_kept(reports: list[tuple[str, float, int]], kept: str | None) -> None:
    assert kept_at([report(*given) for given in reports]) == ({} if kept is None else {TWO_NODES: kept})


def test_ranks_that_hardly_wait_keep_the_exact_sum_from_their_first_report() -> None:
    hardly = report("allreduce", 2.0, 1, sync=0.02)
    assert own_points([hardly], AUTO) == (hardly,)
    assert own_points([replace(hardly, sync_seconds=0.5)], AUTO) == ()


def test_that_others_were_slow_with_the_exact_sum_says_nothing_to_a_job_that_may_choose() -> None:
    alone, slow = point(1, 64, 1.0), report("allreduce", 2.0, 64)
    of_exact_jobs = to_share([alone, slow], EXACT)
    assert of_exact_jobs == (alone, slow)
    assert shared_points(of_exact_jobs, AUTO) == (alone,)
    assert shared_points(of_exact_jobs, EXACT) == (alone, slow)


def test_what_a_job_kept_helps_those_that_choose_and_no_others() -> None:
    alone, slow, quick = point(1, 64, 1.0), report("allreduce", 2.0, 8), report("bytegrad", 0.7, 32)
    told = to_share([alone, slow, quick], AUTO)
    assert told == (alone, replace(quick, comm="auto"))
    assert shared_points((*told, slow), AUTO) == told
    assert shared_points((*told, slow), EXACT) == (alone, slow)
    assert shared_points(told, limits(comm="bytegrad")) == (alone,)


@pytest.mark.parametrize("name", ["diloco", "partial_backward"])
def test_what_most_jobs_may_not_choose_is_shared_under_its_own_name(name: str) -> None:
    alone, quick = point(1, 64, 1.0), report(name, 0.1, 32)
    told = to_share([alone, quick], AUTO)
    assert told == (alone, quick)
    assert shared_points(told, AUTO) == (alone,)
    assert shared_points(told, limits(comm=name)) == (alone, quick)


@pytest.mark.parametrize("options", ["interval=10000", "hierarchical"])
def test_steps_with_other_options_of_an_exchange_are_of_no_use(options: str) -> None:
    alone, quick = point(1, 64, 1.0), report("local_sgd", 0.1, 32)
    plain, with_options = limits(comm="local_sgd"), limits(comm="local_sgd", comm_options=options)
    told = to_share([alone, quick], with_options)
    assert shared_points(told, with_options) == (alone, quick)
    assert shared_points(told, plain) == (alone,)
    assert shared_points(to_share([alone, quick], plain), with_options) == (alone,)
