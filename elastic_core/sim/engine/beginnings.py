"""How a simulated job begins: new, or as it stood when production was looked at, with all that policies saw of it.

What is not simulated (its user, its budget, its noise, what is forecast of its steps) stays as it was seen.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from elastic_core.domain import JobView, PlacedSpeed, SegmentState, segment_id_of, segment_index_of
from elastic_core.predict.forecasts.run_features import Progress
from elastic_core.predict.forecasts.unlearned import unlearned_forecasts
from elastic_core.protocol.records import JobDescription
from elastic_core.sim.engine.held_leases import HeldLeases
from elastic_core.sim.ground_truth.workload import SimJob
from elastic_core.snapshot.job_record import JobRecord, OpenSegment, Submission
from elastic_core.snapshot.past import Past


def with_forecast(job: SimJob) -> SimJob:
    """With what production forecasts at its submission of the work of a job that may end early, before it has learnt
    anything: the stated prior. A workload may bring a forecast of its own."""
    if job.work_forecast is not None or job.most_samples is None:
        return job
    described = JobDescription(
        entry_point=job.task,
        params={},
        requested_slots=job.limits.requested_slots,
        requested_batch=job.limits.requested_batch,
        dataset_samples=job.most_samples,
        most_samples=job.most_samples,
    )
    (prior,) = unlearned_forecasts([described], [Progress(0.0)])
    return replace(job, work_forecast=prior)


def submitted(job: SimJob, stood: JobView | None) -> Submission:
    new = Submission(
        job_id=job.job_id,
        name=job.job_id,
        task=job.task,
        queue=job.queue,
        priority=job.priority,
        submitted_at=job.submitted_at,
        deadline=job.deadline,
        limits=job.limits,
        scale_invariant=job.reported_noise is None,
    )
    if stood is None:
        return new
    return replace(new, name=stood.name, budget=stood.budget, prefers_cost=stood.prefers_cost, user=stood.user)


def first_segment(job: SimJob, stood: JobView | None, now: float) -> tuple[int, OpenSegment]:
    """And its number. Whoever stood on slots that are there no more waits from now on, as the segment after."""
    if stood is None:
        return 0, waits(job.job_id, 0, job.submitted_at)
    index = segment_index_of(stood.segment_id)
    if stood.allocation is not None and job.held is None:
        return index + 1, waits(job.job_id, index + 1, now)
    since = now if stood.waiting_since is None else stood.waiting_since
    return index, OpenSegment(
        segment_id=stood.segment_id, state=stood.segment_state, created_at=since, asked_at=stood.waiting_since
    )


def waits(job_id: str, index: int, now: float) -> OpenSegment:
    return OpenSegment(
        segment_id=segment_id_of(job_id, index), state=SegmentState.WAITING, created_at=now, asked_at=now
    )


def leases_before(stood: JobView | None) -> HeldLeases:
    if stood is None:
        return HeldLeases()
    past = Past(
        slot_seconds=stood.attained_slot_seconds,
        num_resizes=stood.num_resizes,
        last_resize_at=stood.last_resize_at,
        allocated_since=stood.allocated_since,
        resize_seconds=stood.resize_seconds,
        in_place_seconds=stood.in_place_seconds,
        restart_seconds=stood.restart_seconds,
    )
    return HeldLeases.after(past, any_before=stood.last_batch is not None)


def with_what_was_seen(record: JobRecord, stood: JobView) -> JobRecord:
    measured = replace(
        record.measured,
        noise_scale=stood.noise_scale,
        placed_speeds=_latest_of_each(stood.placed_speeds, record.measured.placed_speeds),
    )
    return replace(
        record,
        total_samples=stood.total_samples,
        most_samples=stood.most_samples,
        samples_left=_samples_left(record, stood),
        state_bytes=stood.state_bytes,
        measured=measured,
        expected_samples=stood.expected_samples,
        work_forecast=stood.work_forecast,
        step_forecast=stood.step_forecast,
        exchange=stood.exchange,
    )


def _samples_left(record: JobRecord, stood: JobView) -> int | None:
    """A sample read counts as one of work: so `projection.work_of` ends the job."""
    if stood.samples_left is None:
        return None
    return max(0, stood.samples_left - (record.reported_samples - stood.done_samples))


def _latest_of_each(before: Iterable[PlacedSpeed], own: Iterable[PlacedSpeed]) -> tuple[PlacedSpeed, ...]:
    return tuple({speed.stages: speed for speed in (*before, *own)}.values())
