"""The pool as the ledger holds it: its nodes and its queues."""

from __future__ import annotations

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
        )
        for row in rows
    )


def queues(tx: Tx) -> tuple[Queue, ...]:
    rows = tx.session.scalars(select(QueueRow).order_by(QueueRow.name))
    return tuple(Queue(name=row.name, guaranteed=row.guaranteed) for row in rows)
