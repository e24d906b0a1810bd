"""Which policy decides: the one that an operator has set while jobs run, else the configured one.

A change is a scheduling event, so the new policy decides at once; where the services were started with another one
configured, as soon as somebody looks. It finds no state: what the ledger keeps is that of the policy that decided last,
and is handed only to that one.
"""

from __future__ import annotations

from sqlalchemy import select

from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.feed import emit
from elastic_core.control.ledger.tables import DecisionRow
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
        _tell(tx, now, before)


def replaced(tx: Tx) -> str | None:
    """The policy that was asked last, where another one is in force since: it was configured while nothing was up."""
    asked = tx.session.scalar(select(DecisionRow.wanted).order_by(DecisionRow.id.desc()).limit(1))
    return None if asked == in_force(tx).policy else asked


def notice(tx: Tx) -> None:
    """Under the scheduling lock. What is undecided is decided by the policy in force anyway."""
    before = replaced(tx)
    if before is not None and not tx.scheduling().is_undecided:
        _tell(tx, in_force(tx).policy, before)


def _tell(tx: Tx, now: str, before: str) -> None:
    tx.trigger = f"the policy is {now} from now on, it was {before}"
    emit(tx, EventKind.POLICY_CHANGED, THE_POOL, {"policy": now, "before": before})
