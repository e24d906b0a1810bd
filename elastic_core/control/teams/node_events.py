"""What happened to nodes, for a timeline: set aside, taken back, lost while a job held slots of them.

From the record of actions, from the nodes themselves (what the platform did by itself) and from leases. When a node
that held nothing left, or when one came, nothing keeps.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from sqlalchemy import select

from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.tables import AuditRow, LeaseRow, NodeRow
from elastic_core.control.teams.permissions import Action
from elastic_core.protocol.cluster.cluster_timeline import LOST, SET_ASIDE, TAKEN_BACK, NodeEvent

MOST_EVENTS = 500
WHAT = {Action.SET_ASIDE.value: SET_ASIDE, Action.TAKE_BACK.value: TAKEN_BACK}
SUBJECT = "node "  # how the record of an action on one begins
LEFT = "slots left the cluster: "  # how the reason of a lease begins that ended so


def node_events(tx: Tx, since: float, until: float | None = None) -> list[NodeEvent]:
    """Those at or after `since` (Unix seconds) and not after `until`, in order; of more than `MOST_EVENTS` the last."""
    end = sys.float_info.max if until is None else until
    events = (*_standing(tx, since, end), *_lost(tx, since, end), *_recorded(tx, since, end))
    found = {(event.at, event.node, event.what): event for event in events}
    return [found[key] for key in sorted(found)][-MOST_EVENTS:]


def _standing(tx: Tx, since: float, until: float) -> Iterator[NodeEvent]:
    changed = NodeRow.set_aside_at.between(since, until) | NodeRow.trusted_since.between(since, until)
    for row in tx.session.scalars(select(NodeRow).where(changed)):
        if row.set_aside_at is not None and since <= row.set_aside_at <= until:
            why = f"{row.set_aside_reason}, by {row.set_aside_by}"
            yield NodeEvent(at=row.set_aside_at, node=row.name, what=SET_ASIDE, why=why)
        if row.trusted_since is not None and since <= row.trusted_since <= until:
            yield NodeEvent(at=row.trusted_since, node=row.name, what=TAKEN_BACK, why="")


def _recorded(tx: Tx, since: float, until: float) -> Iterator[NodeEvent]:
    query = (
        select(AuditRow)
        .where(AuditRow.at.between(since, until), AuditRow.action.in_(WHAT), AuditRow.done)
        .where(AuditRow.subject.startswith(SUBJECT))
        .order_by(AuditRow.id.desc())
        .limit(MOST_EVENTS)
    )
    for row in tx.session.scalars(query):
        why = f"{row.detail}, by {row.actor}" if row.detail else f"by {row.actor}"
        yield NodeEvent(at=row.at, node=row.subject.removeprefix(SUBJECT), what=WHAT[row.action], why=why)


def _lost(tx: Tx, since: float, until: float) -> Iterator[NodeEvent]:
    query = (
        select(LeaseRow.fenced_at, LeaseRow.fence_reason, LeaseRow.job_id)
        .where(LeaseRow.fenced_at.between(since, until), LeaseRow.fence_reason.startswith(LEFT))
        .order_by(LeaseRow.fenced_at.desc())
        .limit(MOST_EVENTS)
    )
    held: dict[tuple[float, str], list[str]] = {}
    for at, reason, job_id in tx.session.execute(query):
        assert at is not None
        assert reason is not None
        for node in {slot.rpartition(":")[0] for slot in reason.removeprefix(LEFT).split(", ")}:
            held.setdefault((at, node), []).append(job_id)
    for (at, node), jobs in held.items():
        yield NodeEvent(at=at, node=node, what=LOST, why=f"it left the cluster; held by {', '.join(sorted(jobs)[:5])}")
