"""Who asks a policy for its plan, and where: in a process of its own under a deadline (`policy_process`), as every
policy is asked in production, or in this very process, for simulations and for tests of all that is around it."""

from __future__ import annotations

import time
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


class Coalesced:
    """Work that may be asked for often, and is done once for all who asked meanwhile: in a thread of its own, which
    then rests as long as it took."""

    def __init__(self, work: Callable[[], object], most_pause: float) -> None:
        """`work` raises nothing that anybody should hear of."""
        self._work, self._most_pause = work, most_pause
        self._lock = Lock()
        self._wanted = self._running = False

    def __call__(self) -> None:
        with self._lock:
            self._wanted = True
            if self._running:
                return
            self._running = True
        Thread(target=self._run, name="goes on aside", daemon=True).start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._wanted:
                    self._running = False
                    return
                self._wanted = False
            started = time.monotonic()
            self._work()
            time.sleep(min(time.monotonic() - started, self._most_pause))


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
