"""Questions to the ledger that change nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Select, and_, func, literal_column, or_, select
from sqlalchemy.orm import InstrumentedAttribute

from elastic_core.control.ledger import lineage, views
from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.leases import allocation
from elastic_core.control.ledger.orders import issue, launch_order
from elastic_core.control.ledger.tables import CheckpointRow, DecisionRow, JobRow, LeaseRow, SegmentRow, TargetRow
from elastic_core.domain import JobState, Plan, Snapshot, Target, from_json
from elastic_core.errors import Conflict, NotFound
from elastic_core.protocol.cluster.cluster_timeline import HeldStretch, TimelinePage
from elastic_core.protocol.process_groups import LaunchOrder, StoredCheckpoint
from elastic_core.protocol.records import (
    REGISTERED_VERSIONS,
    CheckpointRecord,
    DecisionListed,
    DecisionRecord,
    Explanation,
    JobGroup,
    JobStatus,
    SegmentStatus,
    registered_key,
)
from elastic_core.protocol.rest.job_details import Part
from elastic_core.protocol.tokens import TrainerTokens

R = TypeVar("R", SegmentRow, CheckpointRow, LeaseRow)
_ALL_JOBS = select(JobRow).order_by(JobRow.submitted_at, JobRow.id)
_ACTIVE_JOBS = _ALL_JOBS.where(JobRow.state == JobState.ACTIVE)


def jobs(tx: Tx, active_only: bool, group: str | None = None) -> list[JobStatus]:
    query = _ACTIVE_JOBS if active_only else _ALL_JOBS
    if group is not None:
        query = query.where(JobRow.spec["group"]["id"].astext == group)
    return views.job_statuses(tx, tx.session.scalars(query).all())


def jobs_of_window(tx: Tx, since: float, most_ended: int) -> list[JobStatus]:
    """Active jobs by age, then those that ended at or after `since`, the newest first, and so many of them."""
    ended = select(JobRow).where(JobRow.state != JobState.ACTIVE, JobRow.finished_at >= since)
    newest = ended.order_by(JobRow.finished_at.desc(), JobRow.id).limit(most_ended)
    return views.job_statuses(tx, [*tx.session.scalars(_ACTIVE_JOBS), *tx.session.scalars(newest)])


def jobs_that_registered(tx: Tx, model: str, version: str) -> list[JobStatus]:
    return views.job_statuses(tx, tx.session.scalars(who_registered(model, version)).all())


def who_registered(model: str, version: str) -> Select[JobRow]:
    """By the table's two indexes on results: all versions of a job, and its last one, which is all that earlier
    releases kept. Constants stand in the query itself, where the indexes' expressions are recognised."""
    among = JobRow.results.op("->")(literal_column(f"'{REGISTERED_VERSIONS}'")).op("?")(registered_key(model, version))
    last_model, last_version = (
        JobRow.results.op("->>")(literal_column(f"'{name}'")) for name in ("registered_model", "registered_version")
    )
    last = and_(last_model == model, last_version == version)
    return select(JobRow).where(or_(among, last)).order_by(JobRow.submitted_at, JobRow.id)


def segment(tx: Tx, segment_id: str) -> SegmentStatus:
    return views.segment_statuses(tx, [tx.segment(segment_id)])[0]


def segments(tx: Tx, job_id: str) -> list[SegmentStatus]:
    tx.job(job_id)
    query = select(SegmentRow).where(SegmentRow.job_id == job_id).order_by(SegmentRow.index)
    return views.segment_statuses(tx, tx.session.scalars(query).all())


def segments_from(tx: Tx, job_id: str, after: str | None) -> list[SegmentStatus]:
    """A job's segments from this one on, which is the last one where none of its own is named."""
    tx.job(job_id)
    return views.segment_statuses(tx, tx.session.scalars(from_segment(job_id, after)).all())


def from_segment(job_id: str, after: str | None) -> Select[SegmentRow]:
    """By their index: what went by before is not read, however long the job lives."""
    named = select(SegmentRow.index).where(SegmentRow.job_id == job_id, SegmentRow.id == after)
    last = select(func.max(SegmentRow.index)).where(SegmentRow.job_id == job_id)
    first = func.coalesce(named.scalar_subquery(), last.scalar_subquery())
    query = select(SegmentRow).where(SegmentRow.job_id == job_id, SegmentRow.index >= first)
    return query.order_by(SegmentRow.index)


def groups_of(tx: Tx, job_id: str) -> list[JobGroup]:
    tx.job(job_id)
    origin, index, released = LeaseRow.origin_epoch, SegmentRow.index, LeaseRow.released_at
    lives = func.bool_or(released.is_(None))
    query = (
        select(origin, func.min(index), func.max(index), func.min(LeaseRow.granted_at), func.max(released), lives)
        .join(SegmentRow, SegmentRow.id == LeaseRow.segment_id)
        .where(LeaseRow.job_id == job_id)
        .group_by(origin)
        .order_by(origin)
    )
    return [
        JobGroup(
            origin_epoch=epoch, first_segment=first, last_segment=last, started_at=started,
            ended_at=None if held else ended,
        )
        for epoch, first, last, started, ended, held in tx.session.execute(query)
    ]  # fmt: skip


def timeline(tx: Tx, since: float) -> list[HeldStretch]:
    """Of all jobs, at or after `since` (Unix seconds): who held what over time, lost attempts too."""
    query = select(LeaseRow, SegmentRow).join(SegmentRow, SegmentRow.id == LeaseRow.segment_id)
    rows = tx.session.execute(query.where(_not_before(since)).order_by(LeaseRow.granted_at, LeaseRow.epoch))
    return [_stretch(lease, segment) for lease, segment in rows]


def timeline_page(tx: Tx, since: float, until: float, part: Part) -> TimelinePage:
    """The same of a window, and so many of them: by their epochs, which are given as leases are, and are indexed."""
    within = and_(_not_before(since), LeaseRow.granted_at <= until)
    total, rows = part_of(tx, LeaseRow, within, LeaseRow.epoch, part)
    segments = {row.id: row for row in tx.among(SegmentRow.id, [lease.segment_id for lease in rows])}
    held = tuple(_stretch(lease, segments[lease.segment_id]) for lease in rows)
    return TimelinePage(since=since, until=until, total=total, offset=part.offset, held=held)


def part_of(
    tx: Tx, row: type[R], which: ColumnElement[bool], order: InstrumentedAttribute[int], part: Part
) -> tuple[int, Sequence[R]]:
    """How many such rows there are, and those of the part."""
    total = tx.session.scalar(select(func.count()).select_from(row).where(which)) or 0
    asked = select(row).where(which).order_by(order.desc() if part.descending else order.asc())
    return total, tx.session.scalars(asked.offset(part.offset).limit(part.limit)).all()


def _not_before(since: float) -> ColumnElement[bool]:
    return or_(LeaseRow.released_at.is_(None), LeaseRow.released_at >= since)


def _stretch(lease: LeaseRow, segment: SegmentRow) -> HeldStretch:
    last = segment.epoch == lease.epoch  # the segment keeps what was said of its last attempt
    return HeldStretch(
        job_id=lease.job_id,
        segment_id=lease.segment_id,
        attempt=lease.attempt,
        allocation=allocation(lease),
        since=lease.granted_at,
        until=lease.released_at,
        grant_reason=segment.grant_reason if last else None,
        end_reason=segment.end_reason if last else lease.release_reason,
    )


def checkpoints(tx: Tx, job_id: str) -> list[CheckpointRecord]:
    """All of a job's checkpoints that still exist, oldest first, over all lineages."""
    tx.job(job_id)
    query = select(CheckpointRow).where(CheckpointRow.job_id == job_id, CheckpointRow.swept_at.is_(None))
    return [views.checkpoint_record(row) for row in tx.session.scalars(query.order_by(CheckpointRow.id))]


def stored_checkpoints(tx: Tx, job_id: str) -> list[StoredCheckpoint]:
    """The same without their metrics, which may be megabytes of a job that keeps many."""
    tx.job(job_id)
    query = select(CheckpointRow.id, CheckpointRow.job_id, CheckpointRow.step, CheckpointRow.uri)
    query = query.where(CheckpointRow.job_id == job_id, CheckpointRow.swept_at.is_(None)).order_by(CheckpointRow.id)
    return [
        StoredCheckpoint(checkpoint_id=number, job_id=of_job, step=step, uri=uri)
        for number, of_job, step, uri in tx.session.execute(query)
    ]


def order_of(tx: Tx, tokens: TrainerTokens, segment_id: str) -> LaunchOrder:
    segment_row = tx.segment(segment_id)
    lease = tx.lease(segment_row.epoch) if segment_row.epoch is not None else None
    if lease is not None and lease.released_at is None and lease.fenced_at is not None:
        raise Conflict(
            f"the lease of segment {segment_id} (epoch {lease.epoch}) is over: {lease.fence_reason}. It gets another "
            "one once its processes are known to be gone; reconciliation sees to that."
        )
    if lease is None or lease.released_at is not None:
        raise Conflict(
            f"segment {segment_id} is {segment_row.state} and holds no live lease: nothing can be started. "
            f"Ask for its slots (acquire) and wait until it is granted.{_ended(segment_row)}"
        )
    order = launch_order(tx, tx.job(segment_row.job_id), segment_row, lease, tokens=tokens)
    return replace(order, agent_token=issue(tokens, lease, tx.now, agent=True))


def _ended(segment_row: SegmentRow) -> str:
    return f" Its last attempt ended: {segment_row.end_reason}." if segment_row.end_reason else ""


def last_plan(tx: Tx) -> Plan | None:
    row = tx.session.scalars(select(DecisionRow).order_by(DecisionRow.id.desc()).limit(1)).one_or_none()
    return from_json(Plan, row.plan) if row is not None else None


def explain(tx: Tx, job_id: str) -> Explanation:
    """The last decision that spoke of the job, and what it said."""
    job = tx.job(job_id)
    target = tx.session.get(TargetRow, job_id)
    status = views.job_status(tx, job)
    if target is None:
        reason = status.target_reason or f"the job is {job.state}" + (f": {job.error}" if job.error else "")
        return Explanation(job_id=job_id, decision_id=None, decided_at=None, policy="", trigger="", reason=reason)
    decision = tx.session.get_one(DecisionRow, target.decision_id)
    plan = from_json(Plan, decision.plan)
    return Explanation(
        job_id=job_id,
        decision_id=decision.id,
        decided_at=decision.at,
        policy=plan.policy,
        trigger=decision.trigger,
        reason=status.target_reason or from_json(Target, target.target).reason,
        others={other: t.reason for other, t in plan.targets.items() if other != job_id},
    )


def decisions(tx: Tx, limit: int, before: int | None) -> list[DecisionListed]:
    """The last ones, newest first; those with a number below `before`, if given."""
    query = select(*_LISTED).order_by(DecisionRow.id.desc()).limit(limit)
    rows = tx.session.execute(query if before is None else query.where(DecisionRow.id < before))
    return [DecisionListed(**{**row._mapping, "actions": tuple(row.actions)}) for row in rows]


def decision(tx: Tx, decision_id: int) -> DecisionRecord:
    """Raises `NotFound` for one that never was, or is not kept any more."""
    row = tx.session.get(DecisionRow, decision_id)
    if row is None:
        raise NotFound(
            f"there is no decision {decision_id}, or none any more (ELASTIC_KEEP_DAYS, ELASTIC_KEEP_DECISIONS)"
        )
    listed = DecisionListed(
        decision_id=row.id, version=row.version, at=row.at, trigger=row.trigger, policy=row.policy, wanted=row.wanted,
        failure=row.failure, seconds=row.seconds, actions=tuple(row.actions),
    )  # fmt: skip
    return DecisionRecord(decision=listed, snapshot=from_json(Snapshot, row.snapshot), plan=from_json(Plan, row.plan))


_LISTED = (
    DecisionRow.id.label("decision_id"), DecisionRow.version, DecisionRow.at, DecisionRow.trigger, DecisionRow.policy,
    DecisionRow.wanted, DecisionRow.failure, DecisionRow.seconds, DecisionRow.actions,
)  # fmt: skip


def reads(tx: Tx, job_id: str) -> list[Mapping[str, Any]]:
    """Fingerprints of every commit of its own that the job's present state goes back to, from its first, in order of
    step. Of a fork: from the parent's cursor on."""
    return list(lineage.reads(tx, tx.job(job_id)))
