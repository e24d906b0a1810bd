"""The pool as the ledger holds it: its nodes and its queues."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from sqlalchemy import case, func, select
from sqlalchemy.dialects.postgresql import JSONB

from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.tables import NodeRow, QueueRow
from elastic_core.domain import Node, Queue
from elastic_core.settings import Settings
from elastic_core.spec import QueueSpec

# As columns: rows of many nodes took longer to make than to read, under the lock that submissions hold.
_NODES = select(
    NodeRow.name, NodeRow.type, NodeRow.num_slots, NodeRow.price_per_slot_hour, NodeRow.present,
    case((NodeRow.set_aside_at.is_not(None), func.coalesce(NodeRow.set_aside_reason, "")), else_=""),
).order_by(NodeRow.name)  # fmt: skip
# By name: until when each is there, null where nobody says. Null where there is none.
SET_ASIDE = select(func.jsonb_object_agg(NodeRow.name, NodeRow.leaves_at, type_=JSONB)).where(
    NodeRow.set_aside_at.is_not(None)
)
_QUEUES = select(QueueRow).order_by(QueueRow.name)


def nodes(tx: Tx) -> tuple[Node, ...]:
    return tuple(
        Node(name=name, type=kind, num_slots=slots, price_per_slot_hour=price, present=present, set_aside=set_aside)
        for name, kind, slots, price, present, set_aside in tx.session.execute(_NODES)
    )


def queue_specs(tx: Tx) -> tuple[QueueSpec, ...]:
    """With members and quotas, by name."""
    return tuple(map(_queue_spec, tx.session.scalars(_QUEUES)))


def queue_spec(tx: Tx, name: str) -> QueueSpec:
    """A queue without any rules where the cluster has none of this name (any more)."""
    row = tx.session.get(QueueRow, name)
    return QueueSpec.model_construct(name=name) if row is None else _queue_spec(row)


def nodes_to_decide_on(tx: Tx) -> tuple[Node, ...]:
    """Those that are set aside are not there for who decides: jobs on them are to be elsewhere."""
    return tuple(replace(node, present=False) if node.set_aside else node for node in nodes(tx))


def set_aside_nodes(tx: Tx) -> Mapping[str, float | None]:
    """By name: until when each is there, None where nobody says."""
    return tx.session.scalar(SET_ASIDE) or {}


def leave_by(aside: Mapping[str, float | None], nodes: Iterable[str], settings: Settings) -> float | None:
    """When at the latest who is on these nodes has to be asked for a boundary, so that it is committed before the first
    of them goes; None where none is known to go. `aside`: as `set_aside_nodes` says.

    A heartbeat brings the word, and `grace_seconds` are what processes have for a boundary wherever they have to end.
    """
    times = [at for node in nodes if (at := aside.get(node)) is not None]
    return min(times) - settings.grace_seconds - settings.longest_between_heartbeats() if times else None


def queues(tx: Tx) -> tuple[Queue, ...]:
    """What a decision has to know of them, by name."""
    known = (queue.for_policies() for queue in queue_specs(tx))
    return tuple(queue for queue in known if queue is not None)


def _queue_spec(row: QueueRow) -> QueueSpec:
    return QueueSpec.model_validate({"name": row.name, "guaranteed": row.guaranteed, **row.rules})
