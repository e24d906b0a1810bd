"""Answers kept by their question: found together, once, and for as long as they are asked for."""

from __future__ import annotations

from collections.abc import Sequence

from elastic_core.predict.remembered import Remembered


class Squares:
    def __init__(self, most: int) -> None:
        self.asked: list[list[int]] = []
        self.remembered: Remembered[int, int] = Remembered(self._find, most)

    def _find(self, numbers: Sequence[int]) -> list[int]:
        self.asked.append(list(numbers))
        return [number**2 for number in numbers]


def test_what_is_not_known_is_found_together_and_once() -> None:
    squares = Squares(most=100)
    assert squares.remembered.all([3, 1, 3, 2]) == [9, 1, 9, 4]
    assert squares.remembered.all([2, 5, 3]) == [4, 25, 9]
    assert squares.remembered.answer(5) == 25
    assert squares.asked == [[3, 1, 2], [5]]


def test_what_was_asked_for_last_stays_and_the_rest_goes() -> None:
    squares = Squares(most=8)
    for number in range(100):
        squares.remembered.all([number, 1000])
    assert sum(1000 in asked for asked in squares.asked) == 1
    squares.remembered.answer(0)
    assert squares.asked[-1] == [0]
    assert len(squares.remembered._new) + len(squares.remembered._old) <= 9


def test_more_questions_at_once_than_are_kept_are_all_answered() -> None:
    assert Squares(most=4).remembered.all(list(range(10))) == [number**2 for number in range(10)]
