"""Resizes of large states take longer, as far as measurements say so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.predict.speed.resize_line import ResizeLine

MIB, GIB = 2**20, 2**30
MEASURED = st.lists(st.tuples(st.floats(0.0, 1e4), st.none() | st.integers(0, 100 * GIB)), min_size=1, max_size=20)


def test_sizes_that_differ_by_gibibytes_say_what_a_byte_costs() -> None:
    line = ResizeLine.fit([(0.5 + 2.0 * gib, gib * GIB) for gib in (0, 1, 2, 4, 8)])
    assert line.per_gib == pytest.approx(2.0, rel=0.05)
    assert line.seconds(6 * GIB) == pytest.approx(12.5, rel=0.05)


def test_small_states_say_next_to_nothing_about_a_large_one() -> None:
    line = ResizeLine.fit([(0.3, 1 * MIB), (0.9, 8 * MIB), (0.4, 2 * MIB), (0.8, 6 * MIB)])
    assert line.seconds(4 * MIB) == pytest.approx(0.6, abs=0.05)
    assert line.seconds(10 * GIB) < 20  # through the points themselves: over 800 s


def test_one_resize_that_took_an_hour_makes_no_slope() -> None:
    usual = [(4.0 + n / 10, n * 10 * MIB) for n in range(10)]
    line = ResizeLine.fit([*usual, (3600.0, GIB)])
    assert line.seconds(GIB) < 10
    assert line.seconds(0) == pytest.approx(4.5, abs=0.5)


def test_a_state_of_unknown_size_is_of_the_usual_one() -> None:
    line = ResizeLine.fit([(1.0, GIB), (5.0, 5 * GIB), (3.0, None), (3.0, 3 * GIB)])
    assert line.seconds(None) == pytest.approx(line.seconds(3 * GIB))


def test_without_any_size_every_job_takes_as_long_as_the_median_one() -> None:
    line = ResizeLine.fit([(1.0, None), (2.0, None), (50.0, None)])
    assert [line.seconds(None), line.seconds(GIB)] == [2.0, 2.0]


@given(measured=MEASURED, sizes=st.tuples(st.integers(0, 100 * GIB), st.integers(0, 100 * GIB)))
def test_no_resize_takes_less_than_nothing_nor_a_larger_state_less_time(
    measured: list[tuple[float, int | None]], sizes: tuple[int, int]
) -> None:
    line = ResizeLine.fit(measured)
    small, large = sorted(sizes)
    assert 0.0 <= line.seconds(small) <= line.seconds(large)
