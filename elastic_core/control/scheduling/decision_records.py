"""A decision is recorded and its plan comes into force, in one transaction; and what is read of those before.

The scheduling lock is what commits, exits and people's actions wait for. So whatever can be done before it is: what the
plan expects of jobs is thought out, and the record with its inputs, megabytes with a thousand jobs, is written first.
Where events came meanwhile and the plan is dropped, so is the record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from sqlalchemy import select, update
from sqlalchemy.dialects.postgresql import insert

from elastic_core.control.ledger import forecast_rows
from elastic_core.control.ledger.database import Ledger, Tx
from elastic_core.control.ledger.tables import KEPT, DecisionRow, SchedulingRow
from elastic_core.control.scheduling import enforce, expectations
from elastic_core.domain import Plan, Snapshot, from_json, to_json
from elastic_core.errors import NotFound
from elastic_core.protocol.forecasts import Forecast


@dataclass(frozen=True, slots=True)
class Decision:
    snapshot: Snapshot
    plan: Plan
    wanted: str
    failure: str | None
    seconds: float


class Written(Enum):
    """What became of a plan."""

    DROPPED = "dropped"  # events came meanwhile
    LATE = "late"  # in force, and they are to be decided on
    OF_NOW = "of now"


class _TakenBack(Exception):
    """The plan does not come into force, and its record is rolled back."""

    def __init__(self, written: Written) -> None:
        self.written = written


@dataclass(frozen=True, slots=True)
class _Record:
    decision_id: int
    forecasts: Mapping[str, Forecast]  # by job, those that are worth keeping


def write(ledger: Ledger, decided: Decision, late: bool, settled: enforce.Settled) -> Written:
    """`late`: the plan comes into force although events came meanwhile."""
    try:
        return ledger.change_after(
            lambda tx: _record(tx, decided, late),
            lambda tx, record: _put_in_force(tx, record, decided, late, settled),
        )
    except _TakenBack as taken_back:
        return taken_back.written


def _record(tx: Tx, decided: Decision, late: bool) -> _Record:
    """Before the lock."""
    snapshot, plan = decided.snapshot, decided.plan
    written = _becomes(tx.session.scalars(select(SchedulingRow.version)).one(), snapshot, late)
    if written is Written.DROPPED:
        raise _TakenBack(written)
    record = insert(DecisionRow).values(
        version=snapshot.version, at=tx.now, trigger="", policy=plan.policy, wanted=decided.wanted,
        failure=decided.failure, seconds=decided.seconds, snapshot=to_json(snapshot), plan=to_json(plan), actions=[],
    )  # fmt: skip
    once = record.on_conflict_do_nothing(index_elements=[DecisionRow.version]).returning(DecisionRow.id)
    decision_id = tx.session.scalars(once).one_or_none()
    if decision_id is None:
        raise _TakenBack(written)  # decided by another process, since this one saw that it was to be
    return _Record(decision_id, expectations.worth_keeping(tx, snapshot, plan, decision_id))


def _put_in_force(tx: Tx, record: _Record, decided: Decision, late: bool, settled: enforce.Settled) -> Written:
    """Under the lock."""
    row, plan, version = tx.scheduling(), decided.plan, decided.snapshot.version
    written = _becomes(row.version, decided.snapshot, late)
    if written is Written.DROPPED or row.decided_version >= version:
        raise _TakenBack(written)
    actions, check_at = enforce.enforce(tx, decided.snapshot, plan, record.decision_id, settled)
    done = update(DecisionRow).where(DecisionRow.id == record.decision_id)
    tx.session.execute(done.values(at=tx.now, trigger=row.trigger, actions=actions))
    forecast_rows.add(tx, record.forecasts)
    if decided.failure is None:  # else the wanted policy finds its own state again next time
        row.policy, row.policy_state = decided.wanted, dict(plan.state)
    row.decided_version = version
    row.wake_at = min((t for t in (plan.wake_at, check_at) if t is not None), default=None)
    return written


def _becomes(version: int, snapshot: Snapshot, late: bool) -> Written:
    """`version`: the ledger's of now."""
    return Written.OF_NOW if version == snapshot.version else Written.LATE if late else Written.DROPPED


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a decision was made from and came to, as the ledger holds it."""

    decision_id: int
    trigger: str
    policy: str
    snapshot: Snapshot
    plan: Plan
    kept: Plan | None  # the plan before, where that stayed


def recorded(tx: Tx, decision_id: int) -> Recorded:
    """Raises `NotFound` for a decision that the ledger does not hold, or that kept a plan which it does not hold."""
    row = tx.row(DecisionRow, decision_id)
    if row is None:
        raise NotFound(
            f"there is no decision {decision_id}, or none any more (ELASTIC_KEEP_DAYS, ELASTIC_KEEP_DECISIONS); "
            "`elastic jobs explain JOB` names the last one of a job"
        )
    before = _last_decision(tx, before=row.id) if row.policy == KEPT else None
    if row.policy == KEPT and before is None:
        raise NotFound(f"decision {row.id} kept the plan before it, which is not in the ledger any more")
    return Recorded(
        decision_id, row.trigger, row.policy, from_json(Snapshot, row.snapshot), from_json(Plan, row.plan),
        None if before is None else from_json(Plan, before.plan),
    )  # fmt: skip


def last_plan(tx: Tx) -> Plan | None:
    """None after a decision that failed: what stays stays once."""
    last = _last_decision(tx)
    return None if last is None or last.failure is not None else from_json(Plan, last.plan)


def _last_decision(tx: Tx, before: int | None = None) -> DecisionRow | None:
    chosen = select(DecisionRow).order_by(DecisionRow.id.desc()).limit(1)
    return tx.session.scalar(chosen if before is None else chosen.where(DecisionRow.id < before))
