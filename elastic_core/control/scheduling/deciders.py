"""Who asks a policy for its plan, and where: in a process of its own under a deadline (`policy_process`), as every
policy is asked in production, or in this very process, for simulations and for tests of all that is around it."""

from __future__ import annotations

from collections.abc import Callable
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
            Thread(target=self._do, args=(work,), name="decides aside", daemon=True).start()

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        finally:
            self._busy.release()
