"""Who asks a policy for its plan, and where: in a process of its own under a deadline (`policy_process`), as every
policy is asked in production, or in this very process, for simulations and for tests of all that is around it. And how
soon after a decision another one is made."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import inf
from random import Random
from threading import Lock, Thread
from typing import Protocol

from elastic_core.domain import Plan, Snapshot
from elastic_core.logs import get_logger
from elastic_core.policy import registry

log = get_logger(__name__)


class Decider(Protocol):
    def decide(self, policy: str, snapshot: Snapshot) -> Plan:
        """The plan of the policy of that name, with the snapshot's version as the seed. Not checked yet."""

    def close(self) -> None: ...


class DecidesHere:
    """Without a deadline: whoever asks waits as long as the policy takes."""

    def decide(self, policy: str, snapshot: Snapshot) -> Plan:
        return registry.get(policy).decide(snapshot, Random(snapshot.version))

    def close(self) -> None:
        pass


Aside = Callable[[Callable[[], None]], None]


def at_once(work: Callable[[], None]) -> None:
    """`Aside` for simulations and tests: it is done when this returns."""
    work()


class InAThread:
    """`Aside` for what nobody waits for: one after another, and of what is the same one is in the queue. What fails is
    logged: the next event, or reconciliation, makes it up."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._queue: list[Callable[[], None]] = []
        self._works = False

    def __call__(self, work: Callable[[], None]) -> None:
        with self._lock:
            if work not in self._queue:
                self._queue.append(work)
            if self._works:
                return
            Thread(target=self._work, name="decides aside", daemon=True).start()
            self._works = True  # not where there are no more threads: the next one to come tries again

    def _work(self) -> None:
        while (work := self._next()) is not None:
            try:
                work()
            except Exception:
                log.exception("a decision aside failed; the next event or reconciliation makes it up")

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            self._works = bool(self._queue)
            return self._queue.pop(0) if self._queue else None


class Pace:
    """A pause follows each decision that nobody asked for: as long as it took, up to `MOST_PAUSE`.

    Else, where decisions take long and one event follows another, decisions would be all that a control plane does.
    Those of less than `LONG_SECONDS`, or about few jobs, may follow each other at once, on the way of whoever caused
    them: few jobs cause few, and are to have slots soon on a machine that is slow, too.
    """

    LONG_SECONDS = 1.0
    MANY_JOBS = 200
    FEW_JOBS = 50  # of as many, and more, something is undecided at any time
    MOST_PAUSE = 5.0  # seconds

    def __init__(self) -> None:
        self._ended, self._took, self._jobs = -inf, 0.0, 0

    def note(self, began: float, jobs: int) -> None:
        """A decision about so many jobs that began then, by `time.monotonic`, is over."""
        self._ended, self._jobs = time.monotonic(), jobs
        self._took = self._ended - began

    @property
    def left(self) -> float:
        """Seconds of the pause after the last decision."""
        return max(0.0, self._ended + min(self._took, self.MOST_PAUSE) - time.monotonic())

    @property
    def few(self) -> bool:
        """The last decision was about few jobs."""
        return self._jobs < self.FEW_JOBS

    @property
    def many(self) -> bool:
        """The last decision was about many jobs."""
        return self._jobs >= self.MANY_JOBS

    @property
    def holds(self) -> bool:
        """The last decision took long, was about many jobs, and its pause is not over."""
        return self._took >= self.LONG_SECONDS and self.many and self.left > 0.0
