"""What heartbeats are answered from beside their own job: looked up once a second for all of them, where they are many.

A heartbeat is a transaction. A thousand jobs that send one every two seconds would be 500 a second beside all else that
the ledger does; so each answer says when the next is wanted: as set, or further apart where those of all jobs together
would be too many. Reports of what was measured keep the same distance. The lease bounds it: several heartbeats in a row
may be lost before it ends.

Which slots are free takes as long to find out as there are slots. What an answer foretells by it is no more than a
guess, which the commit makes good.
"""

from __future__ import annotations

from collections import deque

from sqlalchemy import func, select

from elastic_core.control.ledger import leases
from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.tables import LeaseRow
from elastic_core.policy.plans.free_slots import FreeSlots
from elastic_core.settings import Settings

LOOK_EVERY_SECONDS = 1.0
MANY = 64  # live leases, from which on free slots are not looked up for each heartbeat
MOST_DIFFERING = 1000  # leases whose reports differ from them that are kept in mind
_LIVE = select(func.count()).select_from(LeaseRow).where(LeaseRow.released_at.is_(None))


class SeenLately:
    """Of one control plane; safe to use from many threads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._counted: tuple[float, int] | None = None  # when, and how many leases are held
        self._free: tuple[float, FreeSlots] | None = None
        self._differ: deque[int] = deque(maxlen=MOST_DIFFERING)  # epochs

    def seconds(self, tx: Tx) -> float:
        """Until a job's next heartbeat."""
        return seconds_between(self._live(tx), self._settings)

    def free_slots(self, tx: Tx) -> FreeSlots:
        if self._live(tx) < MANY:
            return leases.free_slots(tx)
        free = self._free
        if free is None or not _lately(free[0], tx):
            self._free = free = tx.now, leases.free_slots(tx)
        return free[1]

    def is_first_difference(self, epoch: int) -> bool:
        """Whether no report of this lease was seen that differs from it: one is logged, however many there are."""
        if epoch in self._differ:
            return False
        self._differ.append(epoch)
        return True

    def _live(self, tx: Tx) -> int:
        counted = self._counted
        if counted is None or not _lately(counted[0], tx):
            self._counted = counted = tx.now, tx.session.execute(_LIVE).scalar_one()
        return counted[1]


def _lately(at: float, tx: Tx) -> bool:
    return 0 <= tx.now - at < LOOK_EVERY_SECONDS


def seconds_between(live: int, settings: Settings) -> float:
    """Of each of so many jobs."""
    together = live / settings.heartbeats_per_second
    return min(max(settings.heartbeat_seconds, together), settings.longest_between_heartbeats())
