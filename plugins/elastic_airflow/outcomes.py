"""What an ended job or segment means for its task: words and results, the same from a worker and from a trigger.

A trigger can end its task in Airflow's database without a process in which the task goes on, as a success or skipped.
A failure goes through a process: Airflow would try a task again that a trigger ended as failed, whatever its retry
policy says of the error, and in a process the words of the error are the task's own.
"""

from __future__ import annotations

from typing import Any

from elastic_core.domain import SegmentState
from elastic_core.protocol.records import JobStatus, SegmentStatus

# No process of such a segment has begun to train, and a run of it that has ended would never launch one. (Where one
# has begun, the segment is `RUNNING`.)
NOT_BEGUN = (SegmentState.CREATED, SegmentState.WAITING, SegmentState.GRANTED)


def job_summary(job: JobStatus) -> dict[str, Any]:
    """The result of the task that drives a job to its end."""
    return {"job_id": job.job_id, "step": job.step, "samples": job.samples_read}


def segment_summary(segment: SegmentStatus) -> dict[str, Any]:
    """What the grid shows of a segment: plain JSON, nothing secret."""
    return {
        "segment_id": segment.segment_id,
        "state": str(segment.state),
        "attempt": segment.attempt,
        "slots": segment.allocation.num_slots if segment.allocation else 0,
        "global_batch": segment.allocation.global_batch if segment.allocation else None,
        "start_step": segment.start_step,
        "end_step": segment.end_step,
        "reason": segment.end_reason or segment.grant_reason,
    }


def segment_words(segment: SegmentStatus) -> str:
    """How the segment ended, or what it was granted, for the log of its task."""
    name = f"segment {segment.segment_id}"
    if segment.state is SegmentState.FAILED:
        return (
            f"{name} failed: {segment.error or segment.end_reason}. "
            "Clear the train task of its job's run to revive the job from its last good checkpoint."
        )
    if segment.state is SegmentState.CANCELLED:
        return f"{name} was cancelled: {segment.end_reason}"
    if segment.state is SegmentState.COMMITTED:
        return f"{name} is committed at step {segment.end_step} ({segment.end_reason}): nothing is left to do for it"
    slots = segment.allocation.num_slots if segment.allocation else 0
    return f"granted {slots} slots under epoch {segment.epoch}: {segment.grant_reason}"
