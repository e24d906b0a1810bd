"""What jobs have spent: the slots that they held, by the seconds that they held them and the prices of their nodes.

Slots count from their grant until they are free again, however much of that was training. Prices are those of now: a
price that changed counts for the past as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import select, text

from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.tables import NodeRow

# Whether a slot of a live lease is free is no condition: PostgreSQL, before it has counted what the tables hold, would
# read the index of all held slots for each lease.
SPENT = text("""
    SELECT held.job_id, sum(held.seconds * n.price_per_slot_hour / 3600)
    FROM (
        SELECT job_id, node, seconds FROM held_seconds WHERE job_id = ANY(:jobs)
        UNION ALL
        SELECT l.job_id, s.node, CASE WHEN h.released_at IS NULL THEN :now - l.granted_at ELSE 0 END
        FROM leases l JOIN lease_slots h ON h.epoch = l.epoch JOIN slots s ON s.id = h.slot
        WHERE l.job_id = ANY(:jobs) AND l.released_at IS NULL
    ) AS held
    JOIN nodes n ON n.name = held.node AND n.price_per_slot_hour > 0
    GROUP BY held.job_id
""")


_PRICES = select(NodeRow.name, NodeRow.price_per_slot_hour)


def slot_prices(tx: Tx) -> dict[str, float]:
    """Of a slot an hour, by node."""
    return {name: price for name, price in tx.session.execute(_PRICES)}


def spent(tx: Tx, job_ids: Sequence[str]) -> Mapping[str, float]:
    """By job, in the currency of the nodes' prices; absent where nothing was spent."""
    rows = tx.session.execute(SPENT, {"jobs": list(job_ids), "now": tx.now})
    return {job_id: float(amount) for job_id, amount in rows}
