"""How many jobs of a queue, and of one user in it, may be active at once: asked where a job becomes active.

Under the scheduling lock, so two submissions at once do not both take the last place. Quotas bind everybody, the
operator too, who can change them. Slots at once are a matter of every decision: `policy.rules.slot_quotas`.
"""

from __future__ import annotations

from sqlalchemy import func, select

from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.nodes import queue_spec
from elastic_core.control.ledger.tables import JobRow
from elastic_core.domain import JobState
from elastic_core.errors import UserError
from elastic_core.spec.pool_check import NO_SHARE
from elastic_core.text import plural


def check_room(tx: Tx, queue_name: str, user: str | None, more: int = 1) -> None:
    """Raises `UserError` where so many more active jobs would be too many."""
    queue = queue_spec(tx, queue_name)
    if queue.max_jobs is not None and (active := _active(tx, queue_name)) + more > queue.max_jobs:
        raise _full(queue_name, more, f"{plural(active, 'job')} of it are active", f"max_jobs is {queue.max_jobs}")
    most = queue.max_jobs_per_user
    if most is not None and user is not None and (active := _active(tx, queue_name, user)) + more > most:
        seen = f"{plural(active, 'job')} of {user!r} in it are active"
        raise _full(queue_name, more, seen, f"max_jobs_per_user is {most}")


def _full(queue: str, more: int, seen: str, allowed: str) -> UserError:
    wanted, some = ("one more job", "one") if more == 1 else (f"{more} more jobs", "some")
    return UserError(
        f"the queue {queue!r} has no room for {wanted}: {seen}, and its {allowed}. Wait until {some} "
        f"{'has' if more == 1 else 'have'} ended, cancel {some}, or ask the operator for a larger quota"
    )


def _active(tx: Tx, queue: str, user: str | None = None) -> int:
    named = func.coalesce(JobRow.spec["queue"].astext, NO_SHARE)  # specs of old releases name none
    query = select(func.count()).where(JobRow.state == JobState.ACTIVE, named == queue)
    if user is not None:
        query = query.where(JobRow.submitted_by == user)
    return int(tx.session.scalar(query) or 0)
