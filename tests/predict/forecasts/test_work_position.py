"""The scale of totals, and what is said without any history."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.predict.forecasts.work_position import PROBABILITIES, lindy, position, total_at

SHARES = st.floats(0.0, 1.0)


@given(SHARES, SHARES, st.floats(1.0, 1e9))
def test_a_total_comes_back_from_its_position(first: float, second: float, most: float) -> None:
    done, total = sorted((first * most, second * most))
    if most - done < 1e-6 * most:
        return  # nothing is left: there is one position only
    assert float(total_at(position(total, done, most), done, most)) == pytest.approx(total, rel=1e-6, abs=1e-6 * most)


def test_the_ends_of_the_scale_are_what_is_done_and_the_limit() -> None:
    assert position(np.asarray([50.0, 100.0, np.inf]), 50.0, 100.0).tolist() == [0.0, 1.0, 1.0]


@given(st.floats(0.0, 0.99), st.floats(0.0, 0.99))
def test_the_prior_never_shortens_a_job_that_goes_on(one: float, other: float) -> None:
    early, late = sorted((one, other))
    assert (lindy(np.asarray(PROBABILITIES), late, 1.0) >= lindy(np.asarray(PROBABILITIES), early, 1.0) - 1e-12).all()


def test_the_prior_is_as_it_is_stated() -> None:
    """P(T > t | T > d) = (d + s) / (t + s) with s = half the limit: two in three that are half done go to the limit."""
    assert lindy(np.asarray([0.2, 0.4]), 50.0, 100.0).tolist() == [75.0, 100.0]
    assert lindy(0.5, 0.0, 100.0) == pytest.approx(50.0)
