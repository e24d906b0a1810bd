"""The immutable picture of the ledger that a decision is made from.

In it are the active jobs that hold slots, have asked for some, or stand between two segments: for `BETWEEN_SECONDS`
after a boundary a job keeps its place without having asked yet, else the pool would be dealt out anew at every one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from sqlalchemy import ColumnElement, Integer, cast, select

from elastic_core.control.ledger import leases
from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.finished import endings
from elastic_core.control.ledger.money import spent
from elastic_core.control.ledger.nodes import nodes_to_decide_on, queues
from elastic_core.control.ledger.profiles import noise_scales, pasts, placed_speeds, profiles
from elastic_core.control.ledger.tables import CheckpointRow, DecisionRow, HeartbeatRow, JobRow, LeaseRow, SegmentRow
from elastic_core.control.ledger.views import (
    last_exchanges,
    last_segments,
    limits_in_force,
    live_leases,
    pause_of,
    spec_in_force,
)
from elastic_core.domain import (
    EXACT,
    ExchangeNeeds,
    JobState,
    JobView,
    Limits,
    Node,
    ProfilePoint,
    SegmentState,
    Snapshot,
    ThroughputModel,
    from_json,
)
from elastic_core.logs import get_logger
from elastic_core.placement.placed_models import limits_of
from elastic_core.protocol.records import JobFacts
from elastic_core.snapshot.job_record import JobRecord, OpenSegment, Submission, job_view, snapshot
from elastic_core.snapshot.job_reports import Measured
from elastic_core.snapshot.past import Past
from elastic_core.spec import JobSpec

BETWEEN_SECONDS = 60.0
CUT_OFF_SECONDS = 600.0  # by which endings are told that came before the last decision: it was read before it was made
MOST_CUT_OFF = 4096  # the latest: each is an id of some tens of bytes in the record of the decision
_ACTIVE = select(JobRow).where(JobRow.state == JobState.ACTIVE).order_by(JobRow.submitted_at, JobRow.id)
_LAST_BATCHES = leases.of_last(cast(leases.LAST.allocation["global_batch"].astext, Integer))
# The decision whose state the next one gets: a policy that failed, or whose last plan stayed, has learnt nothing.
_LAST_STATE = (
    select(DecisionRow.at - DecisionRow.seconds)
    .where(DecisionRow.failure.is_(None))
    .order_by(DecisionRow.id.desc())
    .limit(1)
)
log = get_logger(__name__)
Profiles = Callable[[Tx, Sequence[str]], Mapping[str, tuple[ProfilePoint, ...]]]  # of jobs, by id
Fit = Callable[[tuple[ProfilePoint, ...], Limits], ThroughputModel | None]


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


def build(tx: Tx, policy: str, profiles_of: Profiles = profiles) -> Snapshot:
    """Without the fitted models; `policy` is the one that will be asked and gets its own state back."""
    scheduling = tx.scheduling()
    active = {job.id: job for job in tx.session.scalars(_ACTIVE)}
    segments, live = last_segments(tx, active), live_leases(tx, active)
    jobs = {job_id: job for job_id, job in active.items() if _takes_part(segments[job_id], live.get(job_id), tx.now)}
    views, aside = _views(tx, jobs, segments, live, profiles_of)
    lately = _lately(tx)
    return snapshot(
        views,
        version=scheduling.version,
        now=tx.now,
        nodes=_without_slots_of(nodes_to_decide_on(tx), [live[job_id] for job_id in aside if job_id in live]),
        policy_state=scheduling.policy_state if scheduling.policy == policy else {},
        queues=queues(tx),
        not_finished=(*sorted({*active} - {view.job_id for view in views}), *_cut_off(tx, lately)),
        ended=endings(tx, lately, MOST_CUT_OFF),
    )


def _without_slots_of(nodes: tuple[Node, ...], kept: Sequence[LeaseRow]) -> tuple[Node, ...]:
    """The nodes, each without the slots that these leases keep of it whatever is decided."""
    held = {(slot["node"], slot["index"]) for lease in kept for slot in lease.allocation.get("slots", ())}

    def without(node: Node) -> Node:
        indices = tuple(index for index in range(node.num_slots) if (node.name, index) in held)
        return replace(node, num_slots=node.num_slots - len(indices), kept=indices)

    return tuple(map(without, nodes)) if held else nodes


def _lately(tx: Tx) -> ColumnElement[bool]:
    """Which jobs ended since the decision whose state is handed on, or some time before that.

    Policies take a job that they remember, and that is no longer there, for one that has finished. However long nobody
    could decide, what ended meanwhile is told.
    """
    last = tx.session.scalar(_LAST_STATE)
    if last is None:  # there is no state, or the decision that left it is no longer kept
        return JobRow.finished_at.is_not(None)
    return JobRow.finished_at > min(last, tx.now) - CUT_OFF_SECONDS


def _cut_off(tx: Tx, lately: ColumnElement[bool]) -> tuple[str, ...]:
    """Jobs that were cancelled or have failed lately; of more than `MOST_CUT_OFF` only the latest."""
    ended = select(JobRow.id).where(JobRow.state.in_((JobState.CANCELLED, JobState.FAILED)), lately)
    return tuple(tx.session.scalars(ended.order_by(JobRow.finished_at.desc(), JobRow.id).limit(MOST_CUT_OFF)))


def _last_batches(tx: Tx, job_ids: list[str]) -> dict[str, int]:
    """Of each job that ever held slots: the global batch that it held last."""
    return {job_id: batch for job_id, batch in tx.session.execute(_LAST_BATCHES, {"jobs": job_ids})}


def _heads_and_beats(
    tx: Tx, jobs: Mapping[str, JobRow], live: Mapping[str, LeaseRow]
) -> tuple[dict[str, CheckpointRow], dict[str, HeartbeatRow]]:
    """By job: its newest checkpoint, and the heartbeat of its live lease."""
    head_ids = {job_id: job.head_id for job_id, job in jobs.items() if job.head_id is not None}  # forks share some
    rows = {row.id: row for row in tx.among(CheckpointRow.id, set(head_ids.values()))}
    heads = {job_id: rows[head_id] for job_id, head_id in head_ids.items()}
    by_epoch = {lease.epoch: job_id for job_id, lease in live.items() if lease.fenced_at is None}
    beats = tx.among(HeartbeatRow.epoch, by_epoch)
    return heads, {by_epoch[beat.epoch]: beat for beat in beats}


def _work(row: CheckpointRow | HeartbeatRow | None) -> int:
    """Samples of work, by the job's own measure; none of a job that has told nothing yet."""
    if row is None:
        return 0
    return row.samples if row.progress is None else int(row.progress)


def _samples_left(spec: JobSpec, *told: CheckpointRow | HeartbeatRow | None) -> int | None:
    """Of those that the job may read in all (`work.max_samples`); None where it may read any number."""
    if spec.work.max_samples is None:
        return None
    return max(0, spec.work.max_samples - max((row.samples for row in told if row is not None), default=0))


def _views(
    tx: Tx, jobs: Mapping[str, JobRow], segments: Mapping[str, SegmentRow], live: Mapping[str, LeaseRow],
    profiles_of: Profiles,
) -> tuple[list[JobView], list[str]]:  # fmt: skip
    """Of these jobs, from everything that the ledger knows of them, in a fixed number of queries; and the ids of those
    of which none can be made. Such a job is not decided on: it keeps what it holds, and the others go on."""
    ids = list(jobs)
    points, noise, past = profiles_of(tx, ids), noise_scales(tx, ids), pasts(tx, ids)
    placed, batches, exchanges = placed_speeds(tx, ids), _last_batches(tx, ids), _exchanges_told(tx, jobs)
    (heads, beats), paid = _heads_and_beats(tx, jobs, live), spent(tx, ids)
    tied = leases.ties(tx, list(live.values()))

    def view(job_id: str, job: JobRow) -> JobView:
        segment, lease = segments[job_id], live.get(job_id)
        spec, head, beat = spec_in_force(job), heads.get(job_id), beats.get(job_id)
        holds = lease is not None and lease.segment_id == segment.id
        record = JobRecord(
            job=submission(job, spec),
            total_samples=job.total_samples if spec.work.end_is_known else None,
            most_samples=None if spec.work.end_is_known else job.total_samples,
            samples_left=_samples_left(spec, head, beat),
            committed_samples=_work(head),
            state_bytes=None if head is None else head.size_bytes or None,
            reported_samples=_work(beat),
            segment=OpenSegment(
                segment_id=segment.id,
                state=SegmentState(segment.state),
                created_at=segment.created_at,
                asked_at=segment.asked_at,
            ),
            allocation=leases.allocation(lease) if lease is not None and holds else None,
            tied_to=tied.get(lease.epoch) if lease is not None and holds else None,
            last_batch=batches.get(job_id),
            past=past.get(job_id, Past()),
            spent=paid.get(job_id, 0.0),
            exchange=exchanges.get(job_id),
            measured=Measured(
                profile=points.get(job_id, ()), noise_scale=noise.get(job_id), placed_speeds=placed.get(job_id, ())
            ),
        )
        return job_view(record)

    views, aside = [], []
    for job_id, job in jobs.items():
        try:
            views.append(view(job_id, job))
        except Exception:
            log.exception("a job cannot be decided on: it keeps what it holds, and gets nothing else", job=job_id)
            aside.append(job_id)
    return views, aside


def _exchanges_told(tx: Tx, jobs: Mapping[str, JobRow]) -> dict[str, ExchangeNeeds]:
    """By job: what its ranks told of exchanges last; of the exact sum alone nobody tells, nor counts for who fell back
    to it what was told before."""
    asked = [
        job_id for job_id, job in jobs.items()
        if job.exchange_fallback is None and (job.spec.get("comm") or {}).get("algorithm", EXACT) != EXACT
    ]  # fmt: skip
    if not asked:
        return {}
    return {job_id: choice.needs for job_id, choice in last_exchanges(tx, asked).items() if choice.needs is not None}


def submission(job: JobRow, spec: JobSpec) -> Submission:
    """`spec`: the one in force."""
    pause = pause_of(job)
    limits = limits_of(spec, from_json(JobFacts, job.facts)) if spec.places_layers else limits_in_force(job)
    if job.exchange_fallback is not None:
        exactly = spec.comm.model_copy(update={"stage_ratio": None})
        limits = replace(limits, comm=EXACT, comm_options=exactly.options_of(EXACT), comm_allow="")
    return Submission(
        job_id=job.id,
        name=spec.name,
        task=spec.entry_point,
        queue=spec.queue,
        priority=spec.priority,
        submitted_at=job.submitted_at,
        deadline=spec.deadline.timestamp() if spec.deadline is not None else None,
        limits=limits,
        scale_invariant=spec.work.scale_invariant,
        budget=spec.budget,
        prefers_cost=spec.prefer == "cost",
        user=job.submitted_by,
        paused="" if pause is None else pause.words,
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
