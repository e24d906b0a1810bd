"""Answers that are kept by their question, where many are asked for at once and those not known are found together.

Only for pure functions: what is remembered, and with what other questions one came, changes no answer. The answers
asked for last stay: at least half of `most` of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

Question = TypeVar("Question", bound=Hashable)
Answer = TypeVar("Answer")


class Remembered(Generic[Question, Answer]):
    def __init__(self, find: Callable[[Sequence[Question]], Sequence[Answer]], most: int) -> None:
        """`find`: the answers to some questions, in their order."""
        self._find, self._most = find, most
        # Two generations instead of an order of use: one look at each question, which is a long tuple to hash.
        self._new: dict[Question, Answer] = {}
        self._old: dict[Question, Answer] = {}

    def answer(self, question: Question) -> Answer:
        return self.all([question])[0]

    def all(self, questions: Sequence[Question]) -> list[Answer]:
        new, old = self._new, self._old  # of one moment: another thread may ask, too
        answers_in_order: list[Answer | None] = [None] * len(questions)
        missing: dict[Question, list[int]] = {}
        for place, question in enumerate(questions):
            try:
                answers_in_order[place] = new[question]
            except KeyError:
                missing.setdefault(question, []).append(place)
        if missing:
            unknown = [question for question in missing if question not in old]
            answers = dict(zip(unknown, self._find(unknown), strict=True)) if unknown else {}
            for question, places in missing.items():
                answer = answers[question] if question in answers else old[question]
                new[question] = answer
                for place in places:
                    answers_in_order[place] = answer
            if len(new) > self._most // 2:
                self._new, self._old = {}, new
        return answers_in_order  # type: ignore[return-value]  # every place was filled
