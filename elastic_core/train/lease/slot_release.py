"""Giving back the slots that the lease lost when it passed on: once the workers there are gone, says the agent.

Until then the ledger holds them beside the new lease. A process group that ends first need not: its end frees them.
"""

from __future__ import annotations

import logging
import threading

from elastic_core.domain import Slot
from elastic_core.errors import ElasticError
from elastic_core.train.lease.lease_heartbeat import LeaseHeartbeat
from elastic_core.train.lease.standby_workers import StandbyWorkers

_POLL_SECONDS = 0.02
_log = logging.getLogger(__name__)


class SlotRelease:
    """Rank 0's. `heartbeat` knows the token in force, `standby` which workers still live."""

    def __init__(self, heartbeat: LeaseHeartbeat, standby: StandbyWorkers) -> None:
        self._heartbeat = heartbeat
        self._standby = standby
        self._closed = threading.Event()

    def close(self) -> None:
        self._closed.set()

    def release_when_left(self, slots: tuple[Slot, ...]) -> None:
        """Returns at once; a thread waits."""
        threading.Thread(target=self._release, args=(slots,), name="slot-release", daemon=True).start()

    def _release(self, slots: tuple[Slot, ...]) -> None:
        while not self._closed.wait(_POLL_SECONDS):
            if not self._standby.workers_gone(slots):
                continue
            try:
                self._heartbeat.trainer.release_slots(slots)
                return
            except ElasticError as error:  # the lease may have passed on once more; later its end frees them
                _log.warning("slots that are left could not be given back yet: %s", error)
                self._closed.wait(self._heartbeat.interval)
