"""The dynamic program against brute force over every assignment."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.policy.dynamic_program import best_counts
from tests.policy.strategies import BUSY

tables = st.lists(
    st.dictionaries(st.integers(1, 6), st.floats(-2, 10, allow_nan=False), min_size=1, max_size=5), max_size=4
)


@settings(BUSY, max_examples=300)
@given(values=tables, capacity=st.integers(0, 12))
def test_no_assignment_is_worth_more(values: list[dict[int, float]], capacity: int) -> None:
    feasible = [counts for counts in product(*values) if sum(counts) <= capacity]
    if not feasible:
        with pytest.raises(ValueError, match="do not fit"):
            best_counts(values, capacity, [None] * len(values))
        return
    counts, total = best_counts(values, capacity, [None] * len(values))
    assert tuple(counts) in feasible
    assert total == pytest.approx(sum(table[count] for table, count in zip(values, counts, strict=True)))
    best = max(sum(table[n] for table, n in zip(values, counts, strict=True)) for counts in feasible)
    assert total == pytest.approx(best, abs=1e-7)


def test_among_equals_a_job_keeps_what_it_has_else_takes_the_smallest() -> None:
    equal = {1: 1.0, 2: 1.0, 3: 1.0}
    assert best_counts([equal, equal], 6, [None, 2])[0] == [1, 2]
    assert best_counts([equal], 6, [3])[0] == [3]


def test_paper_example_shape_two_jobs_share_by_marginal_gain() -> None:
    """One scales, one does not: the slots go where they speed up more, and none is left."""
    scales = {n: float(n) for n in range(1, 5)}
    flat = {n: 1.0 + 0.1 * n for n in range(1, 5)}
    assert best_counts([flat, scales], 5, [None, None])[0] == [1, 4]
