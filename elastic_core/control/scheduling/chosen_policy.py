"""Which policy decides: the one that an operator has set while jobs run, else the configured one.

A change is a scheduling event, so the new policy decides at once. It finds no state: what the ledger keeps is that of
the policy that decided last, and is handed only to that one.
"""

from __future__ import annotations

from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.feed import emit
from elastic_core.policy import registry
from elastic_core.protocol.events import EventKind
from elastic_core.protocol.records import PolicyInForce

THE_POOL = ""  # where events name their job: this one is of none


def in_force(tx: Tx) -> PolicyInForce:
    chosen, configured = tx.scheduling().chosen_policy, tx.settings.policy
    return PolicyInForce(policy=chosen or configured, configured=configured, set_by_operator=chosen is not None)


def choose(tx: Tx, name: str | None) -> None:
    """Under the scheduling lock. Raises `UserError` for a policy that does not exist."""
    if name is not None:
        registry.get(name)
    row, before = tx.scheduling(), in_force(tx).policy
    row.chosen_policy = name
    now = in_force(tx).policy
    if now != before:
        tx.trigger = f"the policy is {now} from now on, it was {before}"
        emit(tx, EventKind.POLICY_CHANGED, THE_POOL, {"policy": now, "before": before})
