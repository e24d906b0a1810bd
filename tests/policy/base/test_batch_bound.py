"""Which batches a live job may have: its base until noise was measured, then as far as a sample keeps its worth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.domain import JobView, Slot
from elastic_core.policy.base.batch_bound import STEPS_LEFT, BatchBound, bounded, efficiency_in_words
from elastic_core.predict.speed.efficiency import efficiency
from tests.policy.builders import holding, job, limits, measured, point

LIVE = limits((1, 2, 4), batch=(16, 1024), base_batch=64, min_efficiency=0.8)


def trained(noise: float | None, **more: Any) -> JobView:
    return measured(job("a", lim=LIVE, noise_scale=noise, **more), point(2, 64, 0.1))


def allowed(view: JobView) -> tuple[int, int]:
    return bounded(view).limits.min_batch, bounded(view).limits.max_batch


def test_without_measured_noise_a_job_stays_at_its_base_batch() -> None:
    assert allowed(trained(None)) == (64, 64)


def test_noise_before_the_first_own_report_starts_nobody_beyond_the_base() -> None:
    assert allowed(job("a", lim=LIVE, noise_scale=10_000.0)) == (64, 64)


@given(noise=st.floats(0.0, 1e6), least=st.floats(0.05, 1.0))
def test_the_largest_batch_leaves_a_sample_its_least_worth_and_the_next_of_the_grid_would_not(
    noise: float, least: float
) -> None:
    lim = replace(LIVE, max_batch=10**9, min_efficiency=least)
    view = replace(trained(noise, total_samples=10**12), limits=lim)
    low, high = allowed(view)
    assert low == 16
    assert high == 64 or efficiency(high, 64, noise) >= least * (1 - 1e-9)
    assert efficiency(high * 2**0.25 + 1, 64, noise) < least


def test_more_noise_allows_more_up_to_the_users_own_limit() -> None:
    highs = [allowed(trained(noise))[1] for noise in (0.0, 100.0, 1000.0, 1e6)]
    assert highs == sorted(highs)
    assert highs[0] == 76  # 64 / 0.8, rounded down to the grid
    assert highs[-1] == 1024


@pytest.mark.parametrize(("left", "high"), [(10**6, 1024), (STEPS_LEFT * 256, 256), (STEPS_LEFT * 64, 64), (1, 64)])
def test_a_batch_at_which_too_few_steps_remain_is_not_grown_to(left: int, high: int) -> None:
    assert allowed(trained(1e6, total_samples=left)) == (16, high)


def test_a_job_that_nears_its_end_keeps_the_batch_that_it_has() -> None:
    running = holding(trained(1e6, total_samples=10**6, done_samples=10**6 - 640), Slot("n", 0, "cpu"), batch=512)
    assert allowed(running) == (512, 512)


@pytest.mark.parametrize(("left", "smallest"), [(640, 512), (10**6, 64)])
def test_near_its_end_no_smaller_batch_is_taken_for_nearly_as_fast(left: int, smallest: int) -> None:
    """Else it shrinks decision by decision, each time within what counts as nearly as fast as the batch before."""
    running = holding(trained(1e6, total_samples=10**6, done_samples=10**6 - left), Slot("n", 0, "cpu"), batch=512)
    bound = BatchBound.of(running, left)
    assert bound is not None
    assert bound.range(1e6).reference == smallest


@given(
    noise=st.floats(0.0, 1e5), left=st.integers(1, 10**6), running=st.integers(16, 1024),
    choice=st.floats(0.0, 1.0), base=st.integers(8, 1100),
)  # fmt: skip
def test_a_batch_that_was_chosen_leaves_the_choice_as_it_was(
    noise: float, left: int, running: int, choice: float, base: int
) -> None:
    """So that whoever chooses by value, or by the number of slots, chooses it again."""
    view = replace(trained(noise, total_samples=left), limits=replace(LIVE, base_batch=base))
    low, high = allowed(holding(view, Slot("n", 0, "cpu"), batch=running))
    chosen = low + round(choice * (high - low))
    low_then, high_then = allowed(holding(view, Slot("n", 0, "cpu"), batch=chosen))
    assert (low_then, high_then) == (low, high)


def test_where_no_end_is_known_as_much_again_is_to_come() -> None:
    young = trained(1e6, total_samples=None, done_samples=STEPS_LEFT * 128)
    assert allowed(young) == (16, 128)


def test_the_slots_that_a_job_cannot_do_without_are_fed() -> None:
    wide = replace(LIVE, slot_counts=(128, 256), max_batch=1024)
    assert allowed(replace(trained(None), limits=wide)) == (64, 128)


def test_jobs_without_a_base_batch_are_bound_by_their_range_alone() -> None:
    free = job("a", lim=limits((1, 2), batch=(16, 1024), min_efficiency=1.0), total_samples=1)
    assert bounded(free) is free
    assert BatchBound.of(free, 1.0) is None


def test_the_cost_of_a_larger_batch_is_said() -> None:
    view = trained(2190.0)
    assert efficiency_in_words(view, 512, 2190.0) == ", where a sample is worth 0.83 of one at batch 64"
    assert efficiency_in_words(view, 64, 2190.0) == ""
    assert efficiency_in_words(view, 128, None) == ", over its base batch 64 to give every slot its samples"
