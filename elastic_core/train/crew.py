"""The workers of a group that come and go while it lives, as rank 0 and the agent tell each other through the run dir.

Ahead of a growth rank 0 names slots in wanted.json, and the agent starts a worker for each. It loads torch and the
task's code, touches no device, says so in waiting-<n>.json and waits until the order in force names its slot; it ends
when the slot is wanted no more. It holds nothing: the slot is the group's from the commit on, or never.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence

from elastic_core.control.contract import LaunchOrder
from elastic_core.domain import Slot, from_json, to_json
from elastic_core.launch.process import ProcessId
from elastic_core.launch.rundir import RunDir
from elastic_core.launch.workers import Place, slots_of
from elastic_core.train.heartbeat import Wish, Wishes

PATIENCE_SECONDS = 60.0  # for workers to be ready, on a busy machine; then new processes replace all at the boundary
POLL_SECONDS = 0.02


class Crew:
    """Rank 0's side. Used by the heartbeat's threads and, at a boundary, by training's."""

    def __init__(self, run_dir: RunDir, clock: Callable[[], float] = time.monotonic) -> None:
        self._run_dir = run_dir
        self._clock = clock
        self._lock = threading.Lock()
        self._request = 0
        self._wanted: tuple[Slot, ...] = ()
        self._since = 0.0
        self._failed = False
        self._counted_on = False  # a commit may just be giving us the slots: who waits must not be let go

    def want(self, slots: Sequence[Slot]) -> bool:
        """Have workers started for these slots, and no others; whether a boundary is worth reaching now.

        It is not while they load, for `PATIENCE_SECONDS` at most. Who has not come by then is given up for good.
        """
        with self._lock:
            if self._counted_on:
                return True
            if tuple(slots) != self._wanted:
                self._ask(tuple(slots))
            if not self._failed and self._wanted != self._waiting():
                self._failed = self._clock() - self._since > PATIENCE_SECONDS
                return self._failed
            return True

    def rest(self) -> None:
        """Nothing is wanted now. Who waits may be wanted again soon, and is let go after `PATIENCE_SECONDS`."""
        with self._lock:
            if self._wanted and not self._counted_on and self._clock() - self._since > PATIENCE_SECONDS:
                self._ask(())

    def ready(self) -> tuple[Slot, ...] | None:
        """Slots for which a worker waits, and does so until `adopt`; None where some did not come when asked."""
        with self._lock:
            self._counted_on = True
            return None if self._failed else self._waiting()

    def adopt(self, order: LaunchOrder) -> None:
        """This order is in force, and in order.json: the workers that it names wait no more."""
        with self._lock:
            self._counted_on = False
            if set(self._wanted) & set(order.allocation.slots):
                self._ask(())

    def gone(self, slots: Sequence[Slot]) -> bool:
        """Nothing is left on these slots, says the agent."""
        living = {worker["slot"] for worker in self._run_dir.read("workers.json") or ()}
        return living.isdisjoint(_name(slot) for slot in slots)

    def _ask(self, wanted: tuple[Slot, ...]) -> None:
        self._request += 1
        self._wanted, self._since = wanted, self._clock()
        self._run_dir.write("wanted.json", {"request": self._request, "slots": to_json(wanted)})

    def _waiting(self) -> tuple[Slot, ...]:
        said = [self._run_dir.read(path.name) for path in self._run_dir.path.glob("waiting-*.json")]
        live = {one["slot"] for one in said if one and ProcessId(one["pid"], one["start_time"]).alive()}
        return tuple(slot for slot in self._wanted if _name(slot) in live)


def wait_for_order(run_dir: RunDir, number: int, place: str, wishes: Wishes) -> tuple[LaunchOrder, Slot] | None:
    """Wait until the order in force names the slot `place` ("node:index"); None when it is wanted no more."""
    me, name, told = ProcessId.of(os.getpid()), f"waiting-{number}.json", False
    assert me is not None
    try:
        while wishes.current[0] is Wish.NONE:
            wanted = run_dir.read("wanted.json")  # before the order, which rank 0 writes first
            order = run_dir.read("order.json")
            if order is None or wanted is None:
                return None
            if place in map(str, slots_of(order)):
                joined = from_json(LaunchOrder, order)
                return joined, next(slot for slot in joined.allocation.slots if _name(slot) == place)
            if place not in [str(Place(**slot)) for slot in wanted["slots"]]:
                return None
            if not told:
                run_dir.write(name, {**me._asdict(), "slot": place})
                told = True
            time.sleep(POLL_SECONDS)
        return None
    finally:
        (run_dir.path / name).unlink(missing_ok=True)


def _name(slot: Slot) -> str:
    return str(Place(slot.node, slot.index, slot.type))
