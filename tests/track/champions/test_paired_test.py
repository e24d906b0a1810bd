"""Better by more than chance: what a paired test over held-out samples says of two models."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest

from elastic_core.errors import UserError
from elastic_core.track.champions.paired_test import MOST_PERMUTED, compared

ALPHA = 0.05


@given(st.lists(st.floats(-100, 100), min_size=1, max_size=40))
def test_a_model_is_not_better_than_itself(figures):
    assert compared(figures, figures, "max", ALPHA).p_value == 1.0


@given(
    st.lists(st.floats(-100, 100), min_size=2, max_size=30), st.lists(st.floats(-100, 100), min_size=30, max_size=30)
)
def test_less_is_better_is_more_of_the_negatives_is_better(new, old):
    old = old[: len(new)]
    least = compared(new, old, "min", ALPHA).p_value
    assert least == compared([-x for x in new], [-x for x in old], "max", ALPHA).p_value
    assert 0 < least <= 1


@pytest.mark.parametrize(("gained", "lost"), [(9, 1), (6, 4), (3, 9), (12, 0)])
def test_of_right_and_wrong_it_is_mcnemars_exact_test(gained, lost):
    """Only samples that the models tell differently count: as many heads of as many fair coins."""
    new = [1.0] * gained + [0.0] * lost + [1.0] * 50
    old = [0.0] * gained + [1.0] * lost + [1.0] * 50
    want = binomtest(gained, gained + lost, alternative="greater").pvalue
    assert compared(new, old, "max", ALPHA).p_value == pytest.approx(want, abs=0.02)


@pytest.mark.nightly
def test_chance_alone_passes_as_often_as_alpha_says():
    """Of two models that are equally good, over many held-out sets."""
    rng = np.random.default_rng(1)
    passed = sum(
        compared(rng.normal(size=20).tolist(), rng.normal(size=20).tolist(), "max", ALPHA).significant
        for _ in range(300)
    )
    assert binomtest(passed, 300, ALPHA).pvalue > 0.001, passed


def test_very_many_samples_are_told_by_the_t_test_and_words_say_what_was_found():
    rng = np.random.default_rng(2)
    old = rng.normal(size=MOST_PERMUTED + 1)
    told = compared((old + 0.05 + 0.1 * rng.normal(size=len(old))).tolist(), old.tolist(), "max", ALPHA)
    assert told.significant
    assert str(told).endswith(f"< alpha 0.05 over {MOST_PERMUTED + 1} held-out samples")


@pytest.mark.parametrize(
    ("new", "old", "why"),
    [([1.0], [1.0, 2.0], "gave 1 figures of the new model and 2 of the champion"), ([], [], "gave 0 figures"),
     ([math.nan], [1.0], "not finite")],
)  # fmt: skip
def test_what_are_no_pairs_of_numbers_is_refused(new, old, why):
    with pytest.raises(UserError, match=why):
        compared(new, old, "max", ALPHA)
