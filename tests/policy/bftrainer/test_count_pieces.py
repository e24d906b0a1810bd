"""Which counts a job may be given, and what a resize to them costs."""

from __future__ import annotations

import pytest

from elastic_core.policy.bftrainer.count_pieces import pieces_of


def spans(objective: dict[int, float], held: int | None = None) -> list[tuple[int, int, float]]:
    return [(piece.low, piece.high, piece.lost) for piece in pieces_of("t4", objective, held, 30.0, 20.0)]


def test_a_run_of_counts_is_cut_at_powers_of_two() -> None:
    assert spans({n: 1.0 for n in range(1, 11)}, held=None) == [(1, 2, 30), (2, 4, 30), (4, 8, 30), (8, 10, 30)]


def test_counts_in_a_gap_belong_to_no_piece() -> None:
    assert spans({1: 1.0, 2: 2.0, 4: 3.0, 8: 4.0}) == [(1, 2, 30), (4, 4, 30), (8, 8, 30)]


def test_the_held_count_is_a_piece_of_its_own_that_costs_nothing() -> None:
    assert spans({n: 1.0 for n in range(1, 9)}, held=3) == [(1, 2, 20), (3, 3, 0), (4, 8, 30)]


def test_between_its_ends_a_piece_is_linear() -> None:
    (piece,) = pieces_of("t4", {4: 10.0, 5: 17.0, 6: 18.0, 7: 19.0, 8: 20.0}, None, 0.0, 0.0)
    assert [piece.at(n) for n in range(4, 9)] == [10.0, 12.5, 15.0, 17.5, 20.0]


@pytest.mark.parametrize("held", [None, 4, 5, 7, 8])
def test_what_is_held_changes_no_value(held: int | None) -> None:
    """A count that looked worse before it was held, or its neighbour, would be left again at the next decision."""
    objective = {4: 10.0, 5: 17.0, 6: 18.0, 7: 19.0, 8: 20.0}
    values = {
        n: piece.at(n) for piece in pieces_of("t4", objective, held, 0.0, 0.0) for n in range(piece.low, piece.high + 1)
    }
    assert values == {4: 10.0, 5: 12.5, 6: 15.0, 7: 17.5, 8: 20.0}
