"""One answer for all who ask the same: kept for a moment, and where making one takes long, nobody waits for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from elastic_core.logs import get_logger

Answer = TypeVar("Answer")
KEEP_SECONDS = 1.0  # at least, and
KEEP_TIMES = 4.0  # as long as making it took: answers take no more than a fifth of a core, however many jobs there are
WAIT_SECONDS = 0.5  # of making one, from which on who asks gets the last one while the next is made
STALE_TIMES = 2.0  # as long as it is kept: an older one, at which nobody has looked for so long, is forgotten
log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class _Made(Generic[Answer]):
    answer: Answer
    began: float  # when its making did, by `time.monotonic`


class KeptAnswers(Generic[Answer]):
    """`make` is asked for the answer to a question. Safe to use from many threads; one at a time makes an answer."""

    def __init__(self, make: Callable[[int], Answer]) -> None:
        self._make = make
        self._lock = threading.Lock()
        self._made: dict[int, _Made[Answer]] = {}
        self._took = 0.0

    def read(self, question: int) -> Answer:
        made = self._made.get(question)
        if made is not None and self._age(made) <= self._kept_seconds():
            return made.answer
        usable = made is not None and self._usable(made)
        if not self._lock.acquire(blocking=not usable):
            assert made is not None
            return made.answer  # another request is making the next one
        if made is not None and usable and self._took >= WAIT_SECONDS:
            try:
                threading.Thread(target=self._make_aside, args=(question,), name="page", daemon=True).start()
            except RuntimeError:  # no more threads: without the lock back nobody would ever make one again
                self._lock.release()
                raise
            return made.answer
        try:
            return self._make_next(question)
        finally:
            self._lock.release()

    def _make_aside(self, question: int) -> None:
        """It holds the lock already."""
        try:
            self._make_next(question)
        except Exception:
            log.exception("an answer cannot be made: who asks next tries again", question=question)
        finally:
            self._lock.release()

    def _make_next(self, question: int) -> Answer:
        made = self._made.get(question)
        if made is None or self._age(made) > self._kept_seconds():  # else another made it, while this one waited
            began = time.monotonic()
            made = _Made(self._make(question), began)
            self._took = time.monotonic() - began
            self._made = {asked: kept for asked, kept in self._made.items() if self._usable(kept)} | {question: made}
        return made.answer

    def _usable(self, made: _Made[Answer]) -> bool:
        return self._age(made) <= STALE_TIMES * self._kept_seconds()

    def _kept_seconds(self) -> float:
        """From the beginning of its making."""
        return max(KEEP_SECONDS, self._took * (1 + KEEP_TIMES))

    @staticmethod
    def _age(made: _Made[Answer]) -> float:
        return time.monotonic() - made.began
