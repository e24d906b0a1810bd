"""Which checkpoints may be deleted. The ledger says so, `elastic_core.state` deletes, and tells it (`swept`).

Of a job that ended long ago hardly anything is left to delete, but of what another job needed until now. Such jobs only
grow in number: each time a part of them is looked at, all of them within a day.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from sqlalchemy import ColumnElement, Integer, Row, func, or_, select, update
from sqlalchemy.dialects.postgresql import JSONB

from elastic_core.control.ledger import lineage
from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.feed import emit
from elastic_core.control.ledger.tables import CheckpointRow, JobRow
from elastic_core.control.ledger.views import spec_of
from elastic_core.control.transitions.retention import DAY
from elastic_core.domain import JobState, from_json
from elastic_core.protocol.events import SWEPT, EventKind
from elastic_core.protocol.process_groups import FORK, StoredCheckpoint
from elastic_core.protocol.records import JobFacts

SWEEP_GRACE_SECONDS = 120.0  # a restore that has begun may still read what was the head until a moment ago
TURN_SECONDS, TURNS = 900.0, 96  # of those that ended more than a day ago
# All of a job that keeps many are looked at each time: no more of each than tells whether it is given up.
_METRIC = CheckpointRow.metrics.op("->", return_type=JSONB())(JobRow.facts.op("->>")("metric")).label("metric")
_NOT_SWEPT = (
    select(
        CheckpointRow.id, CheckpointRow.job_id, CheckpointRow.lineage, CheckpointRow.step, CheckpointRow.uri,
        CheckpointRow.bad, CheckpointRow.committed_at, _METRIC,
    )
    .join(JobRow, JobRow.id == CheckpointRow.job_id)
    .where(CheckpointRow.swept_at.is_(None))
    .order_by(CheckpointRow.job_id, CheckpointRow.id)
)  # fmt: skip
_Unswept = Row[*tuple[Any, ...]]
_TURN = func.abs(func.hashtext(JobRow.id), type_=Integer) % TURNS
_FORKED_FROM = JobRow.results[FORK]["uri"].astext


def removable(tx: Tx) -> tuple[StoredCheckpoint, ...]:
    """Beyond `keep_last` and `keep_best` of each lineage; never a start of a segment to come, a registered one or one
    that another active job warm-starts from, or was forked from."""
    lately = or_(JobRow.state == JobState.ACTIVE, JobRow.finished_at > tx.now - DAY)
    looked_at = or_(lately, _has_its_turn(tx))
    jobs = {job.id: job for job in tx.session.scalars(select(JobRow).where(looked_at))}
    rows = tx.session.execute(_NOT_SWEPT.where(looked_at))
    needed = _needed_by_others(tx)
    return tuple(
        StoredCheckpoint(checkpoint_id=row.id, job_id=job_id, step=row.step, uri=row.uri)
        for job_id, of_job in groupby(rows, key=lambda row: row.job_id)
        for row in _given_up(tx, jobs[job_id], list(of_job), needed)
    )


def ended_lately(tx: Tx) -> tuple[str, ...]:
    """Jobs in whose folders litter may have grown old enough to go since they ended: each for a turn on two days."""
    ended = (JobRow.state != JobState.ACTIVE, JobRow.finished_at > tx.now - 2 * DAY)
    query = select(JobRow.id).where(*ended, _has_its_turn(tx))
    return tuple(tx.session.scalars(query.order_by(JobRow.id)))


def _has_its_turn(tx: Tx) -> ColumnElement[bool]:
    return _TURN.in_([int(tx.now / TURN_SECONDS) % TURNS])


def is_given_up(tx: Tx, point: CheckpointRow) -> bool:
    """Whether its files may be deleted at this moment, or are already."""
    rows = tx.session.execute(_NOT_SWEPT.where(CheckpointRow.job_id == point.job_id)).all()
    return point.id in {row.id for row in _given_up(tx, tx.job(point.job_id), rows, _needed_by_others(tx))}


def _needed_by_others(tx: Tx) -> set[str]:
    """Uris of checkpoints from which active jobs started that are not theirs."""
    active = tx.session.execute(select(JobRow.warm_start, _FORKED_FROM).where(JobRow.state == JobState.ACTIVE))
    return {uri for starts in active for uri in starts if uri is not None}


def _given_up(tx: Tx, job: JobRow, rows: Sequence[_Unswept], needed: set[str]) -> list[_Unswept]:
    """`rows`: all of the job's that were not swept."""
    retained = _retained_ids(job, rows)
    rest = [
        row
        for row in rows
        if row.id not in retained and row.uri not in needed and tx.now - row.committed_at > SWEEP_GRACE_SECONDS
    ]
    if not rest:
        return []
    starts = lineage.newest_usable_ids(tx, job, job.head_id, spec_of(job).checkpoints.keep_last)
    return [row for row in rest if row.id not in starts]


def _retained_ids(job: JobRow, rows: Sequence[_Unswept]) -> set[int]:
    """But for those that a restore would fall back to."""
    spec, facts = spec_of(job), from_json(JobFacts, job.facts)
    good = [row for row in rows if not row.bad]
    retained = {job.head_id} if job.head_id is not None else set()
    for number in {row.lineage for row in good}:
        retained |= set([row.id for row in good if row.lineage == number][-spec.checkpoints.keep_last :])
    retained |= {row.id for row in _best(good, facts)[: spec.checkpoints.keep_best]}
    # The last one by its uri or, in older ledgers, its number; all that there were by their uris.
    registered = {str(job.results.get("registered_checkpoint", "")), *job.results.get("registered_checkpoints", ())}
    return retained | {row.id for row in rows if registered & {str(row.id), row.uri}}


def _best(rows: Iterable[_Unswept], facts: JobFacts) -> list[_Unswept]:
    ranked = [row for row in rows if isinstance(row.metric, int | float)]
    return sorted(ranked, key=lambda row: float(row.metric), reverse=facts.metric_mode == "max")


def swept(tx: Tx, checkpoint_ids: Sequence[int]) -> None:
    not_swept = (CheckpointRow.id.in_(checkpoint_ids), CheckpointRow.swept_at.is_(None))
    mark = update(CheckpointRow).where(*not_swept).values(swept_at=tx.now)
    uris: dict[str, list[str]] = {}
    for job_id, uri in tx.session.execute(mark.returning(CheckpointRow.job_id, CheckpointRow.uri)):
        uris.setdefault(job_id, []).append(uri)
    for job_id, job_uris in sorted(uris.items()):
        emit(tx, EventKind.CHECKPOINTS_RETIRED, job_id, {"uris": job_uris, "why": SWEPT})
