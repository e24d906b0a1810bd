"""How far apart trainers' heartbeats are: as set, or further apart where those of all jobs together would be too many.

A heartbeat is a transaction. A thousand jobs that send one every two seconds would be 500 a second beside all else that
the ledger does; so each answer says when the next is wanted. Reports of what was measured keep the same distance. The
lease bounds it: several heartbeats in a row may be lost before it ends.
"""

from __future__ import annotations

from sqlalchemy import func, select

from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.tables import LeaseRow
from elastic_core.settings import Settings

COUNT_EVERY_SECONDS = 1.0
_OF_LEASE = 0.25  # of a lease's life, at most
_LIVE = select(func.count()).select_from(LeaseRow).where(LeaseRow.released_at.is_(None))


class HeartbeatPace:
    """Of one control plane; safe to use from many threads."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._counted: tuple[float, int] | None = None  # when, and how many leases are held

    def seconds(self, tx: Tx) -> float:
        """Until a job's next heartbeat."""
        counted = self._counted
        if counted is None or not 0 <= tx.now - counted[0] < COUNT_EVERY_SECONDS:
            self._counted = counted = tx.now, tx.session.execute(_LIVE).scalar_one()
        return seconds_between(counted[1], self._settings)


def seconds_between(live: int, settings: Settings) -> float:
    """Of each of so many jobs."""
    wanted, most = settings.heartbeat_seconds, _OF_LEASE * settings.lease_seconds
    return max(wanted, min(live / settings.heartbeats_per_second, most))
