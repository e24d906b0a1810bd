"""The gradient noise scale, against gradients whose mean and covariance are known."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.train.gradients.learning_rate import adascale_gain, batch_factor, noise_decay
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
