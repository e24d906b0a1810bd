"""The gradient noise scale, against gradients whose mean and covariance are known."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.train.gradients.learning_rate import (
    WORK_UNITS,
    adascale_gain,
    batch_factor,
    gain,
    noise_decay,
    on_grid,
    step_work,
)
from elastic_core.train.gradients.noise import NoiseEstimate, NoiseState, Part, estimate

positive = st.floats(1e-3, 1e3)


@pytest.mark.parametrize("sizes", [(8, 8), (5, 11), (1, 2, 29), (3, 0, 4)])
def test_estimates_are_unbiased_for_equal_and_ragged_parts(sizes):
    rng = np.random.default_rng(0)
    mean, spread, trials = np.array([1.0, -2.0, 0.5]), np.array([2.0, 1.0, 3.0]), 20_000
    samples = mean + spread * rng.standard_normal((trials, sum(sizes), 3))
    edges = np.cumsum([0, *sizes])
    parts = [samples[:, a:b].mean(axis=1) if b > a else None for a, b in pairwise(edges)]
    whole = (samples.mean(axis=1) ** 2).sum(axis=1)
    squares = [np.zeros(trials) if part is None else (part**2).sum(axis=1) for part in parts]
    found = [
        estimate([Part(n, float(square[t])) for n, square in zip(sizes, squares, strict=True)], whole[t])
        for t in range(trials)
    ]
    assert np.mean([e.sqr for e in found]) == pytest.approx((mean**2).sum(), rel=0.05)
    assert np.mean([e.var for e in found]) == pytest.approx((spread**2).sum(), rel=0.05)


def test_one_part_says_nothing():
    assert estimate([Part(32, 1.0)], 1.0) is None
    assert estimate([Part(32, 1.0), Part(0, 0.0)], 1.0) is None


def test_two_small_parts_of_a_batch_give_an_unbiased_estimate_too():
    rng = np.random.default_rng(1)
    mean, spread, trials, size, batch = np.array([1.0, -2.0]), np.array([2.0, 3.0]), 20_000, 3, 24
    samples = mean + spread * rng.standard_normal((trials, batch, 2))
    first, last = samples[:, :size].mean(axis=1), samples[:, -size:].mean(axis=1)
    whole = (samples.mean(axis=1) ** 2).sum(axis=1)
    found = [
        estimate([Part(size, float((a**2).sum())), Part(size, float((b**2).sum()))], float(w), batch)
        for a, b, w in zip(first, last, whole, strict=True)
    ]
    assert np.mean([e.sqr for e in found]) == pytest.approx((mean**2).sum(), rel=0.05)
    assert np.mean([e.var for e in found]) == pytest.approx((spread**2).sum(), rel=0.05)


def test_running_means_are_not_biased_to_their_start():
    state = NoiseState()
    assert state.mean() is None
    for _ in range(3):
        state = state.updated(NoiseEstimate(2.0, 6.0), 0.99)
    assert state.mean() == NoiseEstimate(pytest.approx(2.0), pytest.approx(6.0))
    assert state.updated(None, 0.99) is state


def test_rules_at_four_times_the_base_batch():
    noise = NoiseEstimate(sqr=1.0, var=64.0)  # at base 16 the variance is 4
    assert batch_factor("none", 64, 16) == 1.0
    assert batch_factor("linear", 64, 16) == 4.0
    assert batch_factor("sqrt", 64, 16) == 2.0
    assert batch_factor("adascale", 64, 16, noise) == pytest.approx((4 + 1) / (4 / 4 + 1))
    assert batch_factor("adascale", 64, 16, None) == 1.0


@given(st.floats(0.05, 50), st.integers(1, 4096), positive, positive)
def test_adascale_lies_between_no_gain_and_linear_and_grows_with_the_noise(scale, base, sqr, var):
    gain = adascale_gain(scale, base, NoiseEstimate(sqr, var))
    assert min(1, scale) * (1 - 1e-9) <= gain <= max(1, scale) * (1 + 1e-9)
    noisier = adascale_gain(scale, base, NoiseEstimate(sqr, var * 2))
    assert noisier >= gain - 1e-9 if scale >= 1 else noisier <= gain + 1e-9


def test_adascale_limits():
    assert adascale_gain(8.0, 16, NoiseEstimate(sqr=1.0, var=0.0)) == 1.0  # no noise: a larger batch adds nothing
    assert adascale_gain(8.0, 16, NoiseEstimate(sqr=-0.1, var=5.0)) == 8.0  # nothing but noise
    assert adascale_gain(8.0, 16, NoiseEstimate(sqr=-0.1, var=-5.0)) == 1.0
    assert noise_decay(16, 16) == pytest.approx(0.999)
    assert noise_decay(16_000, 16) == 0.0
    assert math.isclose(noise_decay(4, 16), 0.999)


batch_sizes = st.integers(1, 4096)
noises = st.none() | st.builds(NoiseEstimate, st.floats(-1e3, 1e3), st.floats(-1e3, 1e3))


@given(batch_sizes, batch_sizes, noises)
def test_a_step_counts_for_no_less_than_a_base_step_and_no_more_than_its_samples(batch, base, noise):
    """The other way round below the base batch. The bound on what a job reads follows from the least."""
    low, high = sorted((batch, base))
    assert low <= step_work(batch, base, noise) / WORK_UNITS <= high


@given(st.integers(1, 1024), st.integers(1, 1024), st.integers(2, 8), positive, positive)
def test_a_larger_batch_is_worth_more_a_step_and_less_a_sample(batch, base, times, sqr, var):
    noise = NoiseEstimate(sqr, var)
    small, large = gain(batch, base, noise), gain(batch * times, base, noise)
    assert small * (1 - 1e-9) <= large <= small * times * (1 + 1e-9)


@given(batch_sizes, noises)
def test_a_step_at_the_base_batch_counts_for_itself(base, noise):
    assert gain(base, base, noise) == pytest.approx(1.0)
    assert step_work(base, base, noise) == base * WORK_UNITS


def test_without_an_estimate_the_least_is_taken():
    assert gain(64, 16, None) == 1.0
    assert gain(4, 16, None) == 0.25


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6))
def test_rounding_moves_the_noise_scale_by_a_32nd_of_an_octave_at_most(sqr, var):
    rounded = on_grid(NoiseEstimate(sqr, var))
    assert abs(math.log2(rounded.var / rounded.sqr) - math.log2(var / sqr)) <= 1 / 32 + 1e-9
    assert on_grid(rounded) == rounded


def test_rounding_forgets_the_last_bits_and_keeps_what_is_no_scale():
    a, b = NoiseEstimate(1.234, 567.8), NoiseEstimate(1.234 * (1 + 1e-6), 567.8 * (1 - 1e-6))
    assert gain(64, 16, a) != gain(64, 16, b)
    assert step_work(64, 16, on_grid(a)) == step_work(64, 16, on_grid(b))
    for odd in (None, NoiseEstimate(-1.0, 2.0), NoiseEstimate(1.0, -2.0)):
        assert on_grid(odd) is odd
