"""The dynamic program against brute force over every assignment."""

from __future__ import annotations

from itertools import product
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.policy.saxena.dynamic_program import best_counts
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


def by_the_book(
    values: list[dict[int, float]], capacity: int, prefer: list[int | None]
) -> tuple[list[int], float] | None:
    """The recurrence as the paper writes it, cell by cell; ties go as `best_counts` promises."""
    table = [[0.0] * (capacity + 1)]
    picks: list[list[int | None]] = []
    for options, kept in zip(values, prefer, strict=True):
        row: list[float] = []
        picked: list[int | None] = []
        for k in range(capacity + 1):
            found = [(table[-1][k - g] + options[g] + (1e-9 if g == kept else 0.0), -g) for g in options if g <= k]
            value, pick = max(found, default=(-inf, 0))
            row.append(value)
            picked.append(-pick if value > -inf else None)
        table.append(row)
        picks.append(picked)
    answer: list[int] = []
    k = capacity
    for picked in reversed(picks):
        if picked[k] is None:
            return None
        answer.insert(0, picked[k] or 0)
        k -= answer[0]
    return answer, sum(table[count] for table, count in zip(values, answer, strict=True))


whole = st.lists(
    st.dictionaries(st.integers(1, 9), st.integers(-3, 9).map(float), min_size=1, max_size=6), max_size=6
)  # whole numbers: many ties


@settings(BUSY, max_examples=300)
@given(
    values=whole, capacity=st.integers(0, 30), prefer=st.lists(st.none() | st.integers(1, 9), min_size=6, max_size=6)
)
def test_it_is_the_recurrence_to_the_last_tie(
    values: list[dict[int, float]], capacity: int, prefer: list[int | None]
) -> None:
    want = by_the_book(values, capacity, prefer[: len(values)])
    if want is None:
        with pytest.raises(ValueError, match="do not fit"):
            best_counts(values, capacity, prefer[: len(values)])
    else:
        assert best_counts(values, capacity, prefer[: len(values)]) == want


def test_four_hundred_slots_among_three_hundred_jobs_take_no_time_to_speak_of() -> None:
    """The table spans only what is left beyond everybody's smallest count."""
    values = [{count: count ** (0.3 + 0.002 * job) for count in range(1, 33)} for job in range(300)]
    counts, total = best_counts(values, 400, [None] * 300)
    assert sum(counts) == 400
    assert total == pytest.approx(sum(table[count] for table, count in zip(values, counts, strict=True)))
