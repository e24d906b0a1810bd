"""What is known of one job, and the one way from there to the `JobView` that a policy gets.

The control plane fills `JobRecord`s from its ledger, the simulator from the jobs that it runs: whatever a policy is
shown of a job is decided here, once, so that what was simulated is what runs. How measurements become `Measured` and
leases become `Past` is defined in `snapshot.job_reports` and `snapshot.past`. Nothing here reads a clock or a
database.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from elastic_core.domain import (
    Allocation,
    EndedJob,
    ExchangeNeeds,
    JobView,
    Limits,
    Node,
    Queue,
    SegmentState,
    Snapshot,
    StepForecast,
    ThroughputModel,
    WorkForecast,
    segment_id_of,
)
from elastic_core.snapshot.job_reports import Measured
from elastic_core.snapshot.past import Past
from elastic_core.spec import JobSpec

UNKNOWN_RESIZE_SECONDS = 10.0  # before its first step: start of a process, and restore of a small model
_NOTHING_MEASURED = Measured()
_NO_PAST = Past()


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What a job was submitted as, with what its user has set or wished since."""

    job_id: str
    name: str
    task: str
    queue: str
    priority: int
    submitted_at: float
    deadline: float | None
    limits: Limits
    scale_invariant: bool = False  # unit of its work, as `JobView.scale_invariant`
    budget: float | None = None  # as `JobView.budget`
    prefers_cost: bool = False
    user: str | None = None
    paused: str = ""  # as `JobView.paused`


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSegment:
    """The segment of a job that is open, or between two: the one that has yet to ask."""

    segment_id: str
    state: SegmentState
    created_at: float
    asked_at: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """One active job as it stands."""

    job: Submission
    total_samples: int | None  # of its declared work; None where the user declares none
    most_samples: int | None = None  # of work, where none is declared
    samples_left: int | None = None  # as `JobView.samples_left`
    committed_samples: int = 0  # at its newest checkpoint
    state_bytes: int | None = None  # of that checkpoint
    reported_samples: int = 0  # by the last heartbeat of the lease that it holds
    segment: OpenSegment
    allocation: Allocation | None = None  # of the open segment: a lease whose segment has ended is on its way out
    tied_to: str | None = None  # as `JobView.tied_to`
    last_batch: int | None = None  # global batch of its last lease
    past: Past = _NO_PAST
    spent: float = 0.0  # as `JobView.spent`
    measured: Measured = _NOTHING_MEASURED
    throughput: ThroughputModel | None = None
    exchange: ExchangeNeeds | None = None  # as in `JobView`
    # As in `JobView`, whose end nobody has declared: of production in the answers of predictors, which come later.
    predictable: float | None = None
    expected_samples: float | None = None
    work_forecast: WorkForecast | None = None
    step_forecast: StepForecast | None = None


def job_view(record: JobRecord) -> JobView:
    """What a policy is shown of the job."""
    job, segment, past, measured = record.job, record.segment, record.past, record.measured
    holds = record.allocation is not None
    done = max(record.committed_samples, record.reported_samples)
    return JobView(
        job_id=job.job_id,
        name=job.name,
        task=job.task,
        queue=job.queue,
        priority=job.priority,
        submitted_at=job.submitted_at,
        deadline=job.deadline,
        limits=job.limits,
        total_samples=record.total_samples,
        most_samples=_most_samples(record, done),
        samples_left=record.samples_left,
        done_samples=done,
        scale_invariant=job.scale_invariant,
        budget=job.budget,
        prefers_cost=job.prefers_cost,
        user=job.user,
        paused=job.paused,
        spent=record.spent,
        segment_id=segment.segment_id,
        segment_state=segment.state,
        allocation=record.allocation,
        tied_to=record.tied_to,
        allocated_since=past.allocated_since if holds else None,
        waiting_since=waiting_since(segment.state, segment.created_at, segment.asked_at),
        last_batch=record.last_batch,
        num_resizes=past.num_resizes,
        last_resize_at=past.last_resize_at,
        resize_seconds=UNKNOWN_RESIZE_SECONDS if past.resize_seconds is None else past.resize_seconds,
        in_place_seconds=past.in_place_seconds,
        restart_seconds=past.restart_seconds,
        state_bytes=record.state_bytes,
        attained_slot_seconds=past.slot_seconds,
        profile=measured.profile,
        placed_speeds=measured.placed_speeds,
        throughput=record.throughput,
        exchange=record.exchange,
        noise_scale=measured.noise_scale,
        predictable=record.predictable,
        expected_samples=record.expected_samples,
        work_forecast=record.work_forecast,
        step_forecast=record.step_forecast,
    )


def _most_samples(record: JobRecord, done: int) -> int | None:
    most, left = record.most_samples, record.samples_left
    return most if most is None or left is None else min(most, done + left)


def unsubmitted(spec: JobSpec, job_id: str, limits: Limits, now: float, most_samples: int | None = None) -> JobView:
    """What a policy would be shown of a job of this spec right after its submission, but for its declared work, which
    is the caller's to say. Without deadline and budget. `most_samples`: of work, where none is declared."""
    job = Submission(
        job_id=job_id, name=spec.name, task=spec.entry_point, queue=spec.queue, priority=spec.priority,
        submitted_at=now, deadline=None, limits=limits, scale_invariant=spec.work.scale_invariant,
    )  # fmt: skip
    segment = OpenSegment(
        segment_id=segment_id_of(job_id, 0), state=SegmentState.WAITING, created_at=now, asked_at=now
    )  # fmt: skip
    return job_view(
        JobRecord(
            job=job,
            total_samples=None,
            most_samples=most_samples,
            samples_left=spec.work.max_samples,
            segment=segment,
        )
    )


def waiting_since(state: str, created_at: float, asked_at: float | None) -> float | None:
    """Of a job's open segment: since it asked for slots; if it has yet to ask, since the last one ended."""
    if state == SegmentState.CREATED:
        return created_at
    return asked_at if state == SegmentState.WAITING else None


def snapshot(
    views: Iterable[JobView], *, version: int, now: float, nodes: tuple[Node, ...],
    policy_state: Mapping[str, Any], queues: tuple[Queue, ...], not_finished: tuple[str, ...] = (),
    ended: tuple[EndedJob, ...] = (),
) -> Snapshot:  # fmt: skip
    """The whole input of a decision. `views`: of the jobs that hold or want slots."""
    jobs = tuple(sorted(views, key=lambda view: (view.submitted_at, view.job_id)))
    return Snapshot(
        version=version, now=now, nodes=nodes, jobs=jobs, policy_state=policy_state, queues=queues,
        not_finished=not_finished, ended=ended,
    )  # fmt: skip
