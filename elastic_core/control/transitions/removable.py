"""Which checkpoints may be deleted. The ledger says so, `elastic_core.state` deletes, and tells it (`swept`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import select, update

from elastic_core.control.ledger import lineage
from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.feed import emit
from elastic_core.control.ledger.tables import CheckpointRow, JobRow
from elastic_core.control.ledger.views import checkpoint_record, spec_of
from elastic_core.domain import JobState, from_json
from elastic_core.protocol.events import SWEPT, EventKind
from elastic_core.protocol.records import CheckpointRecord, JobFacts

SWEEP_GRACE_SECONDS = 120.0  # a restore that has begun may still read what was the head until a moment ago


def removable(tx: Tx) -> tuple[CheckpointRecord, ...]:
    """Beyond `keep_last` and `keep_best` of each lineage; never a start of a segment to come, a registered one or one
    that another job warm-starts from."""
    rows: dict[str, list[CheckpointRow]] = {}
    query = select(CheckpointRow).where(CheckpointRow.swept_at.is_(None)).order_by(CheckpointRow.id)
    for row in tx.session.scalars(query):
        rows.setdefault(row.job_id, []).append(row)
    jobs = {job.id: job for job in tx.session.scalars(select(JobRow).where(JobRow.id.in_(list(rows))))}
    starts = select(JobRow.warm_start).where(JobRow.warm_start.is_not(None), JobRow.state == JobState.ACTIVE)
    warm = set(tx.session.scalars(starts))
    removable_records: list[CheckpointRecord] = []
    for job_id, job_rows in rows.items():
        retained = _retained_ids(tx, jobs[job_id], job_rows)
        removable_records += [
            checkpoint_record(row)
            for row in job_rows
            if row.id not in retained and row.uri not in warm and tx.now - row.committed_at > SWEEP_GRACE_SECONDS
        ]
    return tuple(removable_records)


def _retained_ids(tx: Tx, job: JobRow, rows: Sequence[CheckpointRow]) -> set[int]:
    spec, facts = spec_of(job), from_json(JobFacts, job.facts)
    good = [row for row in rows if not row.bad]
    retained = {job.head_id} if job.head_id is not None else set()
    for number in {row.lineage for row in good}:
        retained |= set([row.id for row in good if row.lineage == number][-spec.checkpoints.keep_last :])
    retained |= {row.id for row in lineage.newest_usable(tx, job.head_id, spec.checkpoints.keep_last)}
    retained |= {row.id for row in _best(good, facts)[: spec.checkpoints.keep_best]}
    # The last one by its uri or, in older ledgers, its number; all that there were by their uris.
    registered = {str(job.results.get("registered_checkpoint", "")), *job.results.get("registered_checkpoints", ())}
    return retained | {row.id for row in rows if registered & {str(row.id), row.uri}}


def _best(rows: Iterable[CheckpointRow], facts: JobFacts) -> list[CheckpointRow]:
    ranked = [row for row in rows if isinstance(row.metrics.get(facts.metric), int | float)]
    return sorted(ranked, key=lambda row: row.metrics[facts.metric], reverse=facts.metric_mode == "max")


def swept(tx: Tx, checkpoint_ids: Sequence[int]) -> None:
    not_swept = (CheckpointRow.id.in_(checkpoint_ids), CheckpointRow.swept_at.is_(None))
    mark = update(CheckpointRow).where(*not_swept).values(swept_at=tx.now)
    uris: dict[str, list[str]] = {}
    for job_id, uri in tx.session.execute(mark.returning(CheckpointRow.job_id, CheckpointRow.uri)):
        uris.setdefault(job_id, []).append(uri)
    for job_id, job_uris in sorted(uris.items()):
        emit(tx, EventKind.CHECKPOINTS_RETIRED, job_id, {"uris": job_uris, "why": SWEPT})
