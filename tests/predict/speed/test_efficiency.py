"""Statistical efficiency from the gradient noise scale."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.predict.speed.efficiency import (
    efficiencies,
    efficiency,
    largest_batch,
    work_per_sample,
    works_per_sample,
)

sizes = st.floats(1, 1e6)


@given(base=sizes, noise=st.floats(0, 1e9))
def test_the_base_batch_counts_fully(base: float, noise: float) -> None:
    assert efficiency(base, base, noise) == 1.0


@given(base=sizes, times=st.floats(1, 1000), noise=st.floats(0, 1e9))
def test_a_larger_batch_is_worth_less_a_sample_but_never_less_a_step(base: float, times: float, noise: float) -> None:
    worth = efficiency(base * times, base, noise)
    assert worth <= 1.0 + 1e-12
    assert worth * times >= 1.0 - 1e-9


def test_the_papers_numbers() -> None:
    """McCandlish et al.: at a batch equal to the noise scale a step makes half the progress of a noiseless one."""
    noise = 1000.0
    assert efficiency(1000, 1, noise) == pytest.approx(0.5, rel=0.01)
    assert efficiency(9000, 1, noise) == pytest.approx(0.1, rel=0.01)
    assert efficiency(10, 1, 1e9) == pytest.approx(1.0)


@pytest.mark.parametrize("noise", [None, nan, inf, -inf, -1.0])
def test_without_a_usable_noise_scale_every_sample_counts_the_same(noise: float | None) -> None:
    assert efficiency(512, 32, noise) == 1.0


@given(base=sizes, noise=st.sampled_from([None, nan, inf, -1.0, 0.0, 300.0]))
def test_many_batches_at_once_are_worth_what_each_is_worth(base: float, noise: float | None) -> None:
    batches = np.asarray([1, 32, 4096])
    want = [efficiency(batch, base, noise) for batch in batches.tolist()]
    assert efficiencies(batches, base, noise).tolist() == pytest.approx(want)


@given(base=sizes, noise=st.floats(0, 1e6), least=st.floats(0.01, 1.0))
def test_at_the_largest_batch_a_sample_is_worth_what_is_asked_for(base: float, noise: float, least: float) -> None:
    assert efficiency(largest_batch(least, base, noise), base, noise) == pytest.approx(least, rel=1e-6)
    assert largest_batch(0.0, base, noise) == inf


def test_a_sample_read_is_one_sample_of_work_and_of_progress_what_it_is_worth() -> None:
    assert work_per_sample(512, 64, 100.0, scale_invariant=False) == 1.0
    assert work_per_sample(512, 64, 100.0, scale_invariant=True) == efficiency(512, 64, 100.0) < 0.3
    batches = np.asarray([16, 64, 512])
    assert works_per_sample(batches, 64, 100.0, scale_invariant=False).tolist() == [1.0, 1.0, 1.0]
    assert works_per_sample(batches, 64, 100.0, scale_invariant=True)[0] > 1.0
