"""Which cases of a test `make test` tries."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.effort import spread


@given(st.integers(1, 300), st.integers(1, 300))
def test_cases_that_are_tried_are_as_many_as_was_said_and_lie_evenly(cases: int, most: int) -> None:
    places = sorted(spread(cases, most))
    assert len(places) == min(cases, most)
    assert places[0] == 0
    assert places[-1] == (cases - 1 if most > 1 else 0)
    distances = {later - earlier for earlier, later in pairwise(places)}
    assert not distances or max(distances) - min(distances) <= 1
