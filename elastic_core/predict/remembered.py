"""Answers that are kept by their question, where many are asked for at once and those not known are found together.

Only for pure functions: what is remembered, and with what other questions one came, changes no answer. The answers
asked for last stay: at least half of `most` of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

Question = TypeVar("Question", bound=Hashable)
Answer = TypeVar("Answer")


class _Asked:
    """A question whose hash is reckoned once: it may be a long tuple of measurements, which would be hashed anew at
    every look into a dictionary."""

    __slots__ = ("_hash", "question")

    def __init__(self, question: Hashable) -> None:
        self.question, self._hash = question, hash(question)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Asked) and self.question == other.question


class Remembered(Generic[Question, Answer]):
    def __init__(self, find: Callable[[Sequence[Question]], Sequence[Answer]], most: int) -> None:
        """`find`: the answers to some questions, in their order."""
        self._find, self._most = find, most
        # Two generations instead of an order of use.
        self._new: dict[_Asked, Answer] = {}
        self._old: dict[_Asked, Answer] = {}

    def answer(self, question: Question) -> Answer:
        return self.all([question])[0]

    def all(self, questions: Sequence[Question]) -> list[Answer]:
        new, old = self._new, self._old  # of one moment: another thread may ask, too
        asked = [_Asked(question) for question in questions]
        missing = dict.fromkeys(one for one in asked if one not in new)
        found: dict[_Asked, Answer] = {one: old[one] for one in missing if one in old}
        unknown = [one for one in missing if one not in found]
        if unknown:
            answers = self._find([one.question for one in unknown])  # type: ignore[misc]  # as they were asked
            found.update(zip(unknown, answers, strict=True))
        in_order = [found[one] if one in found else new[one] for one in asked]
        new.update(found)
        if len(new) > self._most // 2:
            self._new, self._old = {}, new
        return in_order
