"""What the ledger need not keep for ever: inputs of old decisions, events that were shown, reports of long ago, old
records of who did what.

What stays whatever its age: jobs, segments, leases, checkpoints and forecasts, which are the history that forecasts,
the simulator and the page are made of; the newest decisions and those that targets name; events of open segments, but
for reports, and those that a reader of the outbox has not seen; and of each job as many reports, spread evenly over its
work, as its history is ever asked for. Of a job that runs, or was over lately, the newest `RECENT_REPORTS` stay as they
came, which are more than decisions (`snapshot.job_reports.RECENT`) and the watch over nodes look at. A decision that is
kept can be made again: where it kept the plan before it, that one stays.

Every step removes one batch in a transaction of its own, without the scheduling lock, and may be repeated at will.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import CursorResult, Row, TextClause, func, select, text

from elastic_core.control.ledger.database import Ledger, Tx
from elastic_core.control.ledger.feed import place_events
from elastic_core.control.ledger.tables import KEPT, AuditRow, DecisionRow, ReaderRow
from elastic_core.domain import JobState
from elastic_core.protocol.events import MLFLOW_READER, TRACES_READER

EVERY_SECONDS = 900.0
BATCH = 1000  # rows of a transaction
REPORTS_BATCH = 20_000  # of reports, for each of which all of the job's are looked at
MOST_BATCHES = 50  # of one kind at a time; what is left, the next time takes up
KEPT_REPORTS = 512  # of a lineage, and half of that at least where there were as many; and as many with metrics
RECENT_REPORTS = 43_200  # of a job: a day's, at one every two seconds
DAY = 86_400.0

DECISIONS = text("""
    DELETE FROM decisions WHERE id IN (
        SELECT id FROM decisions WHERE id < :keep_from AND id NOT IN (SELECT decision_id FROM targets)
        ORDER BY id LIMIT :batch)
""")

# Refusals are counted apart: who asks for what they may not, however often, pushes nobody's deeds off the record.
AUDIT = text("""
    DELETE FROM audit_records WHERE id IN (
        SELECT id FROM audit_records
        WHERE at < :before OR id < :first_done AND done OR id < :first_refused AND NOT done LIMIT :batch)
""")

EVENTS = text("""
    DELETE FROM events WHERE id IN (
        SELECT e.id FROM events e
        WHERE e.position <= :seen AND e.at < :before AND (e.kind = 'observed' OR NOT EXISTS (
            SELECT 1 FROM segments s
            WHERE s.id = e.segment_id AND s.state IN ('created', 'waiting', 'granted', 'running')))
        ORDER BY e.position LIMIT :batch)
""")

# Of each cell the last one stays, and the last one with metrics; and the first of all, with which losses are compared.
# Cells are of equal work, and as wide as a power of two, so that doing it again after the job went on takes nothing
# away that a wider cell would have kept.
REPORTS = text("""
    DELETE FROM observations WHERE id IN (
        SELECT id FROM (
            SELECT id, min(id) OVER (PARTITION BY lineage) AS first, row_number() OVER (
                PARTITION BY lineage, samples / :width, metrics = '{}' ORDER BY id DESC) AS from_last
            FROM observations WHERE job_id = :job AND id <= :until) AS o
        WHERE from_last > 1 AND id > first ORDER BY id LIMIT :batch)
""")

CROWDED = text("""
    SELECT o.job_id, max(o.samples) AS samples, max(o.id) AS until FROM observations o JOIN jobs j ON j.id = o.job_id
    WHERE j.state <> :active AND j.finished_at < :before
    GROUP BY o.job_id HAVING count(*) > :kept ORDER BY o.job_id
""")
# Of jobs that run, or were over within a day. Others were looked at before; what was missed, since nobody reconciled
# for longer, goes once they are of long ago.
GROWING = text("""
    SELECT j.id AS job_id, oldest.samples, oldest.id AS until FROM jobs j CROSS JOIN LATERAL (
        SELECT id, samples FROM observations WHERE job_id = j.id ORDER BY id DESC OFFSET :recent LIMIT 1) AS oldest
    WHERE j.state = :active OR j.finished_at > :yesterday ORDER BY j.id
""")


class Due:
    """Says every so many seconds that it is time; one for all who act through a control plane."""

    def __init__(self, since: float, seconds: float = EVERY_SECONDS) -> None:
        self._since, self._seconds = since, seconds

    def now(self, at: float) -> bool:
        if at - self._since < self._seconds:
            return False
        self._since = at
        return True


@dataclass(frozen=True, slots=True)
class Removed:
    """Numbers of rows."""

    decisions: int = 0
    events: int = 0
    reports: int = 0
    audit_records: int = 0

    def __str__(self) -> str:
        return (
            f"{self.decisions} decisions, {self.events} events, {self.reports} reports of jobs, "
            f"{self.audit_records} audit records"
        )


def remove_old(ledger: Ledger) -> Removed:
    """Remove what is older than `ELASTIC_KEEP_DAYS`, and decisions beyond the newest `ELASTIC_KEEP_DECISIONS`; of audit
    records those older than `ELASTIC_KEEP_AUDIT_DAYS`, and beyond the newest `ELASTIC_KEEP_AUDIT_RECORDS`; and of
    reports what is spread no more evenly than need be."""
    place_events(ledger)  # where nobody reads them, nobody else does
    thinned = ledger.read(_to_thin)
    return Removed(
        decisions=_in_batches(ledger, _remove_decisions),
        events=_in_batches(ledger, _remove_events),
        reports=sum(_in_batches(ledger, _thinning(row), REPORTS_BATCH) for row in thinned),
        audit_records=_in_batches(ledger, _remove_audit_records),
    )


def _in_batches(ledger: Ledger, remove: Callable[[Tx], int], batch: int = BATCH) -> int:
    total = 0
    for _ in range(MOST_BATCHES):
        removed = ledger.write(remove)
        total += removed
        if removed < batch:
            break
    return total


def _before(tx: Tx) -> float:
    return tx.now - tx.settings.keep_days * DAY


def _remove_audit_records(tx: Tx) -> int:
    return _count(
        tx, AUDIT, before=tx.now - tx.settings.keep_audit_days * DAY, first_done=_first_kept_record(tx, done=True),
        first_refused=_first_kept_record(tx, done=False), batch=BATCH,
    )  # fmt: skip


def _first_kept_record(tx: Tx, *, done: bool) -> int:
    """Id of the oldest audit record of its kind that is not one too many."""
    newest = select(AuditRow.id).where(AuditRow.done == done).order_by(AuditRow.id.desc())
    return tx.session.scalar(newest.offset(tx.settings.keep_audit_records - 1).limit(1)) or 0


def _remove_decisions(tx: Tx) -> int:
    return _count(tx, DECISIONS, keep_from=_first_kept(tx), batch=BATCH)


def _first_kept(tx: Tx) -> int:
    """Id of the oldest decision that stays."""
    newest = select(DecisionRow.id).order_by(DecisionRow.id.desc())
    recent = tx.session.scalar(select(func.min(DecisionRow.id)).where(DecisionRow.at >= _before(tx)))
    counted = tx.session.scalar(newest.offset(tx.settings.keep_decisions - 1).limit(1))
    last = tx.session.scalar(newest.limit(1))
    if last is None:
        return 0
    first = min(last, max(last if recent is None else recent, counted or 0))
    if tx.session.get_one(DecisionRow, first).policy != KEPT:
        return first
    return tx.session.scalar(newest.where(DecisionRow.id < first).limit(1)) or first  # the plan that it kept


def _remove_events(tx: Tx) -> int:
    return _count(tx, EVENTS, seen=_seen_by_all(tx), before=_before(tx), batch=BATCH)


def _seen_by_all(tx: Tx) -> int:
    """The position up to which every reader has come that the settings name; without any there is none to wait for."""
    readers = [MLFLOW_READER] if tx.settings.mlflow_uri != "none" else []
    readers += [TRACES_READER] if tx.settings.otlp_traces else []
    if not readers:
        return 2**62
    positions = tx.session.scalars(select(ReaderRow.position).where(ReaderRow.name.in_(readers))).all()
    return min(positions) if len(positions) == len(readers) else 0


def _to_thin(tx: Tx) -> list[Row[Any]]:
    """Jobs with more reports than are kept, the samples of the last that may go, and its id."""
    of_long_ago = {"active": JobState.ACTIVE, "before": _before(tx), "kept": KEPT_REPORTS}
    of_now = {"active": JobState.ACTIVE, "yesterday": tx.now - DAY, "recent": RECENT_REPORTS}
    return [*tx.session.execute(CROWDED, of_long_ago), *tx.session.execute(GROWING, of_now)]


def _thinning(row: Row[Any]) -> Callable[[Tx], int]:
    width = 1
    while row.samples // width >= KEPT_REPORTS:
        width *= 2
    return lambda tx: _count(tx, REPORTS, job=row.job_id, until=row.until, width=width, batch=REPORTS_BATCH)


def _count(tx: Tx, statement: TextClause, **values: object) -> int:
    removed: CursorResult[object] = tx.session.connection().execute(statement, values)
    return removed.rowcount
