"""The immutable picture of the ledger that a decision is made from.

In it are the active jobs that hold slots, have asked for some, or stand between two segments: for `BETWEEN_SECONDS`
after a boundary a job keeps its place without having asked yet, else the pool would be dealt out anew at every one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import distinct_on

from elastic_core.control.ledger import leases
from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.money import spent
from elastic_core.control.ledger.nodes import nodes, queues
from elastic_core.control.ledger.profiles import Past, noise_scales, pasts, profiles
from elastic_core.control.ledger.tables import CheckpointRow, HeartbeatRow, JobRow, LeaseRow, SegmentRow
from elastic_core.control.ledger.views import last_segments
from elastic_core.domain import (
    JobState,
    JobView,
    Limits,
    ProfilePoint,
    SegmentState,
    Snapshot,
    ThroughputModel,
    from_json,
)
from elastic_core.logs import get_logger
from elastic_core.spec import JobSpec

BETWEEN_SECONDS = 60.0
UNKNOWN_RESIZE_SECONDS = 10.0  # of a job that was never restarted: process start and restore of a small model
log = get_logger(__name__)
Fit = Callable[[tuple[ProfilePoint, ...], Limits], ThroughputModel]


def between_until(segment: SegmentRow) -> float | None:
    """Until when a segment that nobody has asked for keeps its job's place; None where it has none to keep."""
    if segment.state != SegmentState.CREATED or segment.follows is None:
        return None
    return segment.created_at + BETWEEN_SECONDS


def _takes_part(segment: SegmentRow, lease: LeaseRow | None, now: float) -> bool:
    if segment.state == SegmentState.CREATED:
        until = between_until(segment)
        return until is not None and (now < until or lease is not None)
    return SegmentState(segment.state).open


def build(tx: Tx, policy: str) -> Snapshot:
    """Without the fitted models; `policy` is the one that will be asked and gets its own state back."""
    scheduling = tx.scheduling()
    rows = tx.session.scalars(
        select(JobRow).where(JobRow.state == JobState.ACTIVE).order_by(JobRow.submitted_at, JobRow.id)
    )
    active = {job.id: job for job in rows}
    segments, held = last_segments(tx, active), _leases(tx, list(active))
    jobs = {
        job_id: job
        for job_id, job in active.items()
        if _takes_part(segments[job_id], held.get(job_id, (None, None))[1], tx.now)
    }
    ids = list(jobs)
    points, noise, past = profiles(tx, ids), noise_scales(tx, ids), pasts(tx, ids)
    done, paid = _done_samples(tx, jobs, held), spent(tx, ids)
    views = [
        replace(
            _view(job, segments[job_id], *held.get(job_id, (None, None)), past.get(job_id, Past())),
            done_samples=done[job_id],
            profile=points.get(job_id, ()),
            noise_scale=noise.get(job_id),
            spent=paid.get(job_id, 0.0),
        )
        for job_id, job in jobs.items()
    ]
    return Snapshot(
        version=scheduling.version,
        now=tx.now,
        nodes=nodes(tx),
        jobs=tuple(views),
        policy_state=scheduling.policy_state if scheduling.policy == policy else {},
        queues=queues(tx),
    )


def _leases(tx: Tx, job_ids: list[str]) -> dict[str, tuple[LeaseRow | None, LeaseRow | None]]:
    """Of each job: its last lease, and the one that holds slots now."""
    query = select(LeaseRow).where(LeaseRow.job_id.in_(job_ids))
    last = query.ext(distinct_on(LeaseRow.job_id)).order_by(LeaseRow.job_id, LeaseRow.epoch.desc())
    live = query.where(LeaseRow.released_at.is_(None)).order_by(LeaseRow.epoch)
    now_live = {lease.job_id: lease for lease in tx.session.scalars(live)}
    return {lease.job_id: (lease, now_live.get(lease.job_id)) for lease in tx.session.scalars(last)}


def _done_samples(
    tx: Tx, jobs: Mapping[str, JobRow], held: Mapping[str, tuple[LeaseRow | None, LeaseRow | None]]
) -> dict[str, int]:
    """Committed samples, or what the live lease's heartbeat says where that is more."""
    heads = [job.head_id for job in jobs.values() if job.head_id is not None]
    committed = {
        row.id: row.samples for row in tx.session.scalars(select(CheckpointRow).where(CheckpointRow.id.in_(heads)))
    }
    live = {live.epoch: job_id for job_id, (_, live) in held.items() if live is not None and live.fenced_at is None}
    beats = tx.session.scalars(select(HeartbeatRow).where(HeartbeatRow.epoch.in_(list(live))))
    beating = {live[beat.epoch]: beat.samples for beat in beats}
    return {job_id: max(committed.get(job.head_id or -1, 0), beating.get(job_id, 0)) for job_id, job in jobs.items()}


def _view(job: JobRow, segment: SegmentRow, last: LeaseRow | None, live: LeaseRow | None, past: Past) -> JobView:
    spec = from_json(JobSpec, job.spec)
    # A lease whose segment has ended is on its way out: the job holds nothing for what comes.
    holds = live if live is not None and live.segment_id == segment.id else None
    waits = segment.asked_at if segment.state == SegmentState.WAITING else None
    if segment.state == SegmentState.CREATED:
        waits = segment.created_at
    return JobView(
        job_id=job.id,
        name=spec.name,
        task=spec.entry_point,
        queue=spec.queue,
        priority=spec.priority,
        submitted_at=job.submitted_at,
        deadline=spec.deadline.timestamp() if spec.deadline is not None else None,
        limits=spec.limits(),
        total_samples=job.total_samples if spec.work.target_loss is None else None,
        done_samples=0,
        segment_id=segment.id,
        segment_state=SegmentState(segment.state),
        allocation=leases.allocation(holds) if holds is not None else None,
        allocated_since=holds.granted_at if holds is not None else None,
        waiting_since=waits,
        last_batch=leases.allocation(last).global_batch if last is not None else None,
        num_resizes=past.num_resizes,
        last_resize_at=past.last_resize_at,
        resize_seconds=past.resize_seconds if past.resize_seconds is not None else UNKNOWN_RESIZE_SECONDS,
        attained_slot_seconds=past.slot_seconds,
        budget=spec.budget,
        prefers_cost=spec.prefer == "cost",
    )


def with_models(snapshot: Snapshot, fit: Fit) -> Snapshot:
    """The same snapshot with each job's fitted throughput. A predictor that fails leaves None, and training goes on."""
    return replace(snapshot, jobs=tuple(replace(job, throughput=_fitted(job, fit)) for job in snapshot.jobs))


def _fitted(job: JobView, fit: Fit) -> ThroughputModel | None:
    try:
        return fit(job.profile, job.limits)
    except Exception:
        log.exception("a throughput model cannot be fitted", job=job.job_id, points=len(job.profile))
        return None
