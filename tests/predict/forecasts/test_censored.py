"""Runs that were cut off say that jobs are longer, never that they were this long."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.predict.forecasts.censored import IMPUTED, completion_weights, imputed_places
from elastic_core.predict.forecasts.work_position import PROBABILITIES

EVENLY = np.asarray(PROBABILITIES)  # quantiles of a total that is uniform on the scale


def test_without_a_censored_run_all_count_the_same() -> None:
    assert completion_weights(np.asarray([0.3, 0.1, 0.9]), np.ones(3, dtype=bool)).tolist() == [1.0, 1.0, 1.0]


def test_a_censored_run_hands_its_weight_to_those_that_went_on() -> None:
    """Kaplan-Meier by hand: of the three beyond 0.2 one was cut off there, so that the two others count for 3 / 2."""
    lengths, completed = np.asarray([0.1, 0.2, 0.5, 0.8]), np.asarray([True, False, True, True])
    assert completion_weights(lengths, completed) == pytest.approx([1.0, 0.0, 1.5, 1.5])


def test_a_completed_run_is_over_before_one_that_was_cut_off_at_its_length() -> None:
    assert completion_weights(np.asarray([0.5, 0.5]), np.asarray([False, True])) == pytest.approx([0.0, 1.0])


@given(st.lists(st.tuples(st.floats(0.01, 1.0), st.booleans()), min_size=2, max_size=40))
def test_a_longer_completed_run_never_counts_less(runs: list[tuple[float, bool]]) -> None:
    lengths, completed = np.asarray([length for length, _ in runs]), np.asarray([done for _, done in runs])
    weights = completion_weights(lengths, completed)
    order = np.lexsort((~completed, lengths))
    kept = weights[order][completed[order]]
    assert (np.diff(kept) >= -1e-12).all()
    assert (weights[~completed] == 0).all()


def test_imputed_totals_are_what_the_model_leaves_beyond_the_censored_one() -> None:
    assert imputed_places(EVENLY, 0.5) == pytest.approx([0.55, 0.65, 0.75, 0.85, 0.95])


@given(st.floats(0.0, 1.0), st.lists(st.floats(0.0, 1.0), min_size=len(PROBABILITIES), max_size=len(PROBABILITIES)))
def test_an_imputed_total_always_exceeds_what_was_done(place: float, quantiles: list[float]) -> None:
    drawn = imputed_places(np.sort(quantiles), place)
    assert len(drawn) == IMPUTED
    assert (drawn >= place - 1e-12).all()
    assert (drawn <= 1.0 + 1e-12).all()


def test_a_run_that_outlived_all_that_was_thought_possible_is_spread_up_to_its_limit() -> None:
    drawn = imputed_places(np.full(len(PROBABILITIES), 0.1), 0.995)
    assert drawn[0] == pytest.approx(0.9955)
    assert drawn[-1] == pytest.approx(0.9995)
