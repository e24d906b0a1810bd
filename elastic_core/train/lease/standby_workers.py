"""The workers of a group that come and go while it lives, as rank 0 and the agent tell each other through the run dir.

Before a growth rank 0 names slots in wanted.json, and the agent starts a standby worker for each. It loads torch and
the task's code, touches no device, says so in waiting-<n>.json and waits until the order in force names its slot; it
ends when the slot is requested no more. It holds nothing: the slot is the group's from the commit on, or never.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from elastic_core.domain import Slot
from elastic_core.host.messages import NodeWorkers, OrderInForce, SlotId, StandbyReady, StandbyRequest, WorkerProcesses
from elastic_core.host.process import ProcessId
from elastic_core.host.rundir import RunDir
from elastic_core.protocol.process_groups import LaunchOrder
from elastic_core.train.lease.stop_requests import StopRequest, StopRequests

PATIENCE_SECONDS = 60.0  # for workers to come; then new processes replace all at the boundary
LOADING_SECONDS = 300.0  # instead, while the processes of all of them live: new ones of all workers load no faster
POLL_SECONDS = 0.02


class StandbyWorkers:
    """Rank 0's side. Used by the heartbeat's threads and, at a boundary, by training's."""

    def __init__(self, run_dir: RunDir, clock: Callable[[], float] = time.monotonic) -> None:
        self._run_dir = run_dir
        self._clock = clock
        self._lock = threading.Lock()
        self._requested: tuple[Slot, ...] = ()
        self._requested_at = 0.0
        self._failed = False
        self._commit_under_way = False  # it may be giving us the slots: who waits must not be let go

    def request_workers(self, slots: Sequence[Slot]) -> bool:
        """Have workers started for these slots, and no others; whether a boundary is worth reaching now.

        It is not while they load. Who has not come by the end of our patience is given up for good.
        """
        with self._lock:
            if self._commit_under_way:
                return True
            if tuple(slots) != self._requested:
                self._write_request(tuple(slots))
            if not self._failed and self._requested != self._waiting():
                waited = self._clock() - self._requested_at
                self._failed = waited > LOADING_SECONDS or (waited > PATIENCE_SECONDS and not self._all_live())
                return self._failed
            return True

    def dismiss_unneeded(self) -> None:
        """No more slots are to come now. Who waits may be needed again soon, and is let go after `PATIENCE_SECONDS`."""
        with self._lock:
            if self._requested and not self._commit_under_way and self._clock() - self._requested_at > PATIENCE_SECONDS:
                self._write_request(())

    def ready_slots(self) -> tuple[Slot, ...] | None:
        """Slots for which a worker waits, and does so until `order_adopted`; None where some did not come."""
        with self._lock:
            self._commit_under_way = True
            return None if self._failed else self._waiting()

    def order_adopted(self, order: LaunchOrder) -> None:
        """This order is in force, and in order.json: the workers that it names wait no more."""
        with self._lock:
            self._commit_under_way = False
            if set(self._requested) & set(order.allocation.slots):
                self._write_request(())

    def _all_live(self) -> bool:
        """Those that were asked for, whether they have come or still load."""
        return self._living() >= {str(_slot_id(slot)) for slot in self._requested}

    def _living(self) -> set[str]:
        """Slots on which something is left, say the agents."""
        recorded = [self._run_dir.read(WorkerProcesses), *self._run_dir.read_each(NodeWorkers)]
        return {worker.slot for workers in recorded if workers for worker in workers.workers}

    def _write_request(self, wanted: tuple[Slot, ...]) -> None:
        last = self._run_dir.read(StandbyRequest)  # perhaps of another process, which was rank 0 before
        self._requested, self._requested_at = wanted, self._clock()
        self._run_dir.write(StandbyRequest(1 + (last.request if last else 0), tuple(map(_slot_id, wanted))))

    def _waiting(self) -> tuple[Slot, ...]:
        live = {worker.slot for worker in self._run_dir.read_each(StandbyReady) if worker.alive()}
        return tuple(slot for slot in self._requested if str(_slot_id(slot)) in live)


def wait_for_order(
    run_dir: RunDir, number: int, place: str, stop_requests: StopRequests
) -> tuple[LaunchOrder, Slot] | None:
    """Wait until the order in force names the slot `place` ("node:index"); None when it is requested no more."""
    announced = False
    try:
        while stop_requests.current[0] is StopRequest.NONE:
            wanted = run_dir.read(StandbyRequest)  # before the order, which rank 0 writes first
            order = run_dir.read(OrderInForce)
            if order is None or wanted is None:
                return None
            if place in map(str, order.slots):
                joined = run_dir.order()
                for slot in joined.allocation.slots:  # none where a later order has just replaced the one that named it
                    if str(_slot_id(slot)) == place:
                        return joined, slot
            if place not in map(str, wanted.slots):
                return None
            if not announced:
                run_dir.write(StandbyReady(*ProcessId.current(), place), number)
                announced = True
            time.sleep(POLL_SECONDS)
        return None
    finally:
        run_dir.delete(StandbyReady, number)


def _slot_id(slot: Slot) -> SlotId:
    return SlotId(slot.node, slot.index, slot.type)
