"""The work of a job without a declared amount: what its task's finished jobs say, and what it has done already."""

from __future__ import annotations

from itertools import pairwise
from math import inf, isfinite, nan

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elastic_core.predict.work.work_left_predictor import estimate, prior
from tests.policy.strategies import BUSY

works = st.floats(1e-3, 1e12)
histories = st.lists(works, max_size=8)


@settings(BUSY, max_examples=60)
@given(own=histories, others=histories, done=st.lists(st.floats(0, 1e13), min_size=2, max_size=6))
def test_a_job_that_goes_on_is_never_estimated_smaller(
    own: list[float], others: list[float], done: list[float]
) -> None:
    found = [estimate(own, own + others, at) for at in sorted(done)]
    for sooner, later in pairwise(found):
        for name in ("low", "median", "high"):
            assert getattr(later, name) >= getattr(sooner, name) * (1 - 1e-9)


@settings(BUSY, max_examples=60)
@given(own=histories, others=histories, done=st.floats(0, 1e13))
def test_the_interval_is_in_order_and_above_what_is_done(own: list[float], others: list[float], done: float) -> None:
    found = estimate(own, own + others, done)
    assert done <= found.low <= found.median <= found.high < inf
    assert 0 <= found.mean_remaining <= (found.high - done) * (1 + 1e-6) + 1e-9


@settings(BUSY, max_examples=40)
@given(own=histories, done=st.floats(0, 1e6), factor=st.floats(1e-3, 1e3))
@example(own=[307248872307.0, 307248872307.0, 0.001], done=0.0, factor=257.0)  # fourteen orders of magnitude apart
def test_the_unit_of_work_does_not_matter(own: list[float], done: float, factor: float) -> None:
    one, other = (
        estimate(own, own, done, 1.0),
        estimate([w * factor for w in own], [w * factor for w in own], done * factor, factor),
    )
    assert other.median == pytest.approx(one.median * factor, rel=0.05)


def test_without_any_history_the_longer_it_ran_the_longer_it_will_run() -> None:
    """Lindy: twice the work done, twice the work left."""
    early, late = estimate((), (), 1e4), estimate((), (), 2e4)
    assert (late.median - 2e4) / (early.median - 1e4) == pytest.approx(2.0, rel=0.01)
    assert late.mean_remaining / early.mean_remaining == pytest.approx(2.0, rel=0.01)
    assert 0.3 < (early.median - 1e4) / 1e4 < 1.0


def test_jobs_of_a_task_that_were_all_alike_make_a_narrow_interval() -> None:
    found = estimate([1e5] * 5, [1e5] * 5, 0)
    assert found.median == pytest.approx(1e5, rel=0.05)
    assert found.low > 0.8e5
    assert found.high < 1.25e5
    assert estimate([1e5] * 5, [1e5] * 5, 8e4).mean_remaining == pytest.approx(2e4, rel=0.25)


def test_that_jobs_of_one_task_were_alike_says_nothing_of_how_near_another_task_comes() -> None:
    """Sixty clones beside two longer tasks: a job that outlives the clones does not end where one of those did."""
    clones, others = [100.0] * 60, [9_000.0, 40_000.0]
    alike = prior((), (*clones, *others))
    by_task = prior((), (*clones, *others), tasks=("clone",) * 60 + ("b", "c"))
    near, next_to = 9_000.0 * 0.9, 9_000.0 * 1.1
    assert 1.0 - alike.exceeds(next_to, near) > 0.4
    assert 1.0 - by_task.exceeds(next_to, near) < 0.2


def test_tasks_of_one_job_each_are_as_if_none_were_told() -> None:
    works = (100.0, 120.0, 9_000.0)
    assert prior((), works, tasks=("a", "b", "c")).estimate(0.0) == prior((), works).estimate(0.0)


def test_one_finished_job_says_less_than_five() -> None:
    one, five = estimate([1e5], [1e5], 0), estimate([1e5] * 5, [1e5] * 5, 0)
    assert one.median == pytest.approx(1e5, rel=0.2)
    assert np.log(one.high / one.low) > 3 * np.log(five.high / five.low)


def test_a_job_that_outlived_its_like_is_not_about_to_end() -> None:
    found = estimate([1e5] * 5, [1e5] * 5, 4e5)
    assert found.median > 5e5


def test_a_task_of_short_and_long_jobs_is_two_kinds() -> None:
    """Once it has passed the short ones it must be a long one."""
    both = [1e3, 1.1e3, 0.9e3, 1e3] * 4 + [1e6, 0.9e6, 1.1e6]
    assert estimate(both, both, 0).median == pytest.approx(1e3, rel=0.2)
    assert estimate(both, both, 5e3).median == pytest.approx(1e6, rel=0.2)


def test_a_new_task_is_judged_by_the_others() -> None:
    others = [2e4, 3e4, 2.5e4, 4e4, 3.5e4]
    assert 1e4 < estimate((), others, 0).median < 6e4


@pytest.mark.parametrize("seed", range(3))
def test_the_interval_holds_what_it_says(seed: int) -> None:
    """Eight of ten jobs whose task's works are spread by a factor of two end within it, given ten finished ones."""
    rng = np.random.default_rng(seed)
    inside = 0
    for _ in range(60):
        drawn = 1e5 * np.exp(rng.normal(0, 0.7, 11))
        found = estimate(drawn[:-1], drawn[:-1], 0)
        inside += found.low <= drawn[-1] <= found.high
    assert 0.65 <= inside / 60 <= 0.97


def test_the_mean_is_that_of_the_distribution() -> None:
    """Against a sum over the survival function, the total counted up to the interval's end."""
    own = [1e3, 2e3, 5e3, 2e4]
    known, done = prior(tuple(own), tuple(own)), 1.5e3
    found = known.estimate(done)
    grid = np.geomspace(done, found.high, 4000)
    alive = [known.exceeds(work, done) for work in grid]
    assert found.mean_remaining == pytest.approx(float(np.trapezoid(alive, grid)), rel=0.01)
    assert known.exceeds(found.median, done) == pytest.approx(0.5, abs=1e-6)


@pytest.mark.parametrize("odd", [nan, inf, -inf, -1.0, 0.0])
def test_what_cannot_be_a_work_is_passed_over(odd: float) -> None:
    assert estimate([odd, 10.0], [odd, 10.0], odd) == estimate([10.0], [10.0], 0.0)
    assert isfinite(estimate((), (), odd, odd).median)


def median_of(*works: float, cut_off: tuple[float, ...] = ()) -> float:
    return float(prior(works, (), cut_off=cut_off).quantiles(0.0, np.asarray([0.5]))[0])


def test_what_was_cut_off_says_that_jobs_are_longer_and_not_how_long_it_was() -> None:
    """To leave it out, or to take what was done for all of it, would both say less."""
    finished = (90.0, 100.0, 110.0, 900.0, 1000.0, 1100.0)
    told = median_of(*finished, cut_off=(200.0,) * 6)
    assert told > 1.5 * median_of(*finished)
    assert told > 1.5 * median_of(*finished, *(200.0,) * 6)


def test_a_job_that_was_cut_off_before_all_others_ended_says_nothing() -> None:
    works = (900.0, 1000.0, 1100.0, 1200.0)
    assert median_of(*works, cut_off=(1.0, 2.0)) == pytest.approx(median_of(*works), rel=0.05)


def test_shares_are_those_of_kaplan_and_meier() -> None:
    """With hardly any smoothing: of 2, 5, 7, 11 finished and 3, 6 and 12 cut off."""
    known = (2.0, 5.0, 7.0, 11.0) * 16
    told = prior(known, (), cut_off=(3.0, 6.0, 12.0) * 16)
    survives = [told.exceeds(at, 0.0) for at in (4.0, 6.5, 10.0)]
    assert survives == pytest.approx([6 / 7, 6 / 7 * 4 / 5, 6 / 7 * 4 / 5 * 2 / 3], abs=0.06)


def test_where_more_were_cut_off_than_finished_most_are_longer_than_any_that_finished() -> None:
    told = prior((100.0,), (), cut_off=(10_000.0,) * 9)
    assert told.exceeds(10_000.0, 0.0) == pytest.approx(0.9, abs=0.05)
    beyond = told.quantiles(10_000.0, np.asarray([0.1, 0.5]))
    assert 10_000.0 < beyond[0] < beyond[1] < inf


def test_what_was_cut_off_of_other_tasks_counts_where_finished_works_of_other_tasks_do() -> None:
    others = (100.0,) * 4
    blind = prior((), others).exceeds(1000.0, 0.0)
    assert prior((), others, all_cut_off=(5000.0,) * 4).exceeds(1000.0, 0.0) > blind + 0.3
    assert prior((), (), all_cut_off=(5000.0,)).exceeds(1000.0, 0.0) == prior((), ()).exceeds(1000.0, 0.0)


@settings(BUSY, max_examples=40)
@given(own=histories, cut=histories, done=st.lists(st.floats(0, 1e13), min_size=2, max_size=6))
def test_with_jobs_that_were_cut_off_an_estimate_still_grows_with_what_is_done(
    own: list[float], cut: list[float], done: list[float]
) -> None:
    told = prior(tuple(own), tuple(own), cut_off=tuple(cut), all_cut_off=tuple(cut))
    found = [told.estimate(at) for at in sorted(done)]
    assert all(isfinite(each.high) and each.low >= at for each, at in zip(found, sorted(done), strict=True))
    for sooner, later in pairwise(found):
        assert later.median >= sooner.median * (1 - 1e-9)
