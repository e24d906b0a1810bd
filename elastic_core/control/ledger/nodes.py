"""The pool as the ledger holds it: its nodes and its queues."""

from __future__ import annotations

from dataclasses import replace

from sqlalchemy import select

from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.tables import NodeRow, QueueRow
from elastic_core.domain import Node, Queue


def nodes(tx: Tx) -> tuple[Node, ...]:
    rows = tx.session.scalars(select(NodeRow).order_by(NodeRow.name))
    return tuple(
        Node(
            name=row.name,
            type=row.type,
            num_slots=row.num_slots,
            price_per_slot_hour=row.price_per_slot_hour,
            present=row.present,
            set_aside=row.set_aside_reason or "" if row.set_aside_at is not None else "",
        )
        for row in rows
    )


def nodes_to_decide_on(tx: Tx) -> tuple[Node, ...]:
    """Those that are set aside are not there for who decides: jobs on them are to be elsewhere."""
    return tuple(replace(node, present=False) if node.set_aside else node for node in nodes(tx))


def set_aside_nodes(tx: Tx) -> frozenset[str]:
    return frozenset(tx.session.scalars(select(NodeRow.name).where(NodeRow.set_aside_at.is_not(None))))


def queues(tx: Tx) -> tuple[Queue, ...]:
    rows = tx.session.scalars(select(QueueRow).order_by(QueueRow.name))
    return tuple(Queue(name=row.name, guaranteed=row.guaranteed) for row in rows)
