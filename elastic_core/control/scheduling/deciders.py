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
from elastic_core.policy import registry


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
    """`Aside` for what nobody waits for: one at a time. What comes meanwhile is dropped, since who asks asks again."""

    def __init__(self) -> None:
        self._busy = Lock()

    def __call__(self, work: Callable[[], None]) -> None:
        if self._busy.acquire(blocking=False):
            try:
                Thread(target=self._do, args=(work,), name="decides aside", daemon=True).start()
            except RuntimeError:  # no more threads: without the lock back nothing would ever be done aside again
                self._busy.release()
                raise

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            self._busy.release()


class Pace:
    """A pause follows each decision that nobody asked for: as long as it took, up to `MOST_PAUSE`.

    Else, where decisions take long and one event follows another, decisions would be all that a control plane does.
    Those of less than `LONG_SECONDS`, or about few jobs, may follow each other at once, on the way of whoever caused
    them: few jobs cause few, and are to have slots soon on a machine that is slow, too.
    """

    LONG_SECONDS = 1.0
    MANY_JOBS = 200
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
    def many(self) -> bool:
        """The last decision was about many jobs."""
        return self._jobs >= self.MANY_JOBS

    @property
    def holds(self) -> bool:
        """The last decision took long, was about many jobs, and its pause is not over."""
        return self._took >= self.LONG_SECONDS and self.many and self.left > 0.0
