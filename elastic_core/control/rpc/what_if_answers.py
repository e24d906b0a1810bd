"""Answers to what-if questions for as long as somebody turns their pages, and how long the next one may take.

Both are this process's: a page that another API server answered, or that is too old, has to be asked for anew.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from secrets import token_hex
from threading import Lock
from time import monotonic

from elastic_core.errors import NotFound
from elastic_core.protocol.rest.what_if import WhatIfAnswer, WhatIfExpected, usual_seconds

MOST_KEPT = 16
KEPT_SECONDS = 900.0


@dataclass(slots=True)
class KeptAnswers:
    """The newest, whole."""

    clock: Callable[[], float] = monotonic
    _answers: OrderedDict[str, tuple[float, WhatIfAnswer]] = field(default_factory=OrderedDict)
    _lock: Lock = field(default_factory=Lock)

    def keep(self, answer: WhatIfAnswer) -> str:
        """The id under which it is kept."""
        answer_id = token_hex(8)
        with self._lock:
            self._answers[answer_id] = self.clock(), replace(answer, answer_id=answer_id)
            while len(self._answers) > MOST_KEPT:
                self._answers.popitem(last=False)
        return answer_id

    def page(self, answer_id: str, offset: int, limit: int) -> WhatIfAnswer:
        """Raises `NotFound` for one that is not kept, or not any more."""
        with self._lock:
            since, answer = self._answers.get(answer_id, (0.0, None))
        if answer is None or self.clock() - since > KEPT_SECONDS:
            raise NotFound(
                f"the what-if answer {answer_id!r} is not kept here: the newest {MOST_KEPT} are, for "
                f"{KEPT_SECONDS / 60:g} minutes, by the API server that gave them. Ask the question again"
            )
        return replace(answer, offset=offset, jobs=answer.jobs[offset : offset + limit])


@dataclass(slots=True)
class Pace:
    """How this machine does beside what is usual, by the last answer; and what starting the process takes."""

    _factor: float = 1.0
    _start: float = 5.0

    def learn(self, answer: WhatIfAnswer, wall_seconds: float) -> None:
        if answer.complete and answer.total:
            usual = len(answer.course_seconds) * usual_seconds(answer.total)
            self._factor = sum(answer.course_seconds) / usual
        self._start = max(0.0, wall_seconds - answer.took_seconds)

    def expected(self, jobs: int, most_seconds: float) -> WhatIfExpected:
        course = min(self._factor * usual_seconds(jobs), most_seconds)
        return WhatIfExpected(jobs=jobs, start_seconds=self._start, course_seconds=course, most_seconds=most_seconds)
