"""What jobs have spent: the slots that they held, by the seconds that they held them and the prices of their nodes.

Slots count from their grant until they are free again, however much of that was training. Prices are those of now: a
price that changed counts for the past as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import select, text

from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.tables import NodeRow

SPENT = text("""
    SELECT wanted.id, paid.amount
    FROM unnest(CAST(:jobs AS text[])) AS wanted (id)
    CROSS JOIN LATERAL (
        SELECT sum((coalesce(h.released_at, :now) - l.granted_at) * n.price_per_slot_hour / 3600) AS amount
        FROM leases l
        JOIN lease_slots h ON h.epoch = l.epoch JOIN slots s ON s.id = h.slot JOIN nodes n ON n.name = s.node
        WHERE l.job_id = wanted.id AND n.price_per_slot_hour > 0
    ) AS paid
    WHERE paid.amount IS NOT NULL
""")


_PRICES = select(NodeRow.name, NodeRow.price_per_slot_hour)


def slot_prices(tx: Tx) -> dict[str, float]:
    """Of a slot an hour, by node."""
    return {name: price for name, price in tx.session.execute(_PRICES)}


def spent(tx: Tx, job_ids: Sequence[str]) -> Mapping[str, float]:
    """By job, in the currency of the nodes' prices; absent where nothing was spent."""
    rows = tx.session.execute(SPENT, {"jobs": list(job_ids), "now": tx.now})
    return {job_id: float(amount) for job_id, amount in rows}
