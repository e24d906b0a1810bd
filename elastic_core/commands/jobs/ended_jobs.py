"""What is known of a job that is over: how long it took, on what, how it ended, and what is left of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from math import isfinite, nan

from elastic_core.domain import JobState
from elastic_core.protocol.records import CheckpointRecord, JobStatus, SegmentStatus
from elastic_core.text import plural, size_text, span


def lines_of_ended(
    job: JobStatus, segments: Sequence[SegmentStatus], checkpoints: Sequence[CheckpointRecord]
) -> Iterator[tuple[str, str]]:
    """Names and values; none of an active job. Of checkpoints those that were not swept are known."""
    if job.state is JobState.ACTIVE or job.finished_at is None:
        return
    ran = [(s.granted_at, _held_until(s, job.finished_at)) for s in segments if s.granted_at is not None]
    trained = sum(max(0.0, until - since) for since, until in ran)
    took = job.finished_at - job.submitted_at
    held = f", held slots for {span(trained)}" if ran else ", never held any slots"
    yield "took", f"{span(took)}{held}"
    if ran:
        yield "segments", _segments(segments)
        yield "slot hours", f"{_slot_hours(segments, job.finished_at):.2f}"
    sound = [record for record in checkpoints if not record.bad and record.lineage == job.lineage]
    if sound:
        yield "last", _checkpoint(sound[-1])
        best = _best(job, sound)
        if best is not None:
            yield "best", f"{_checkpoint(best)}, {job.facts.metric} {best.metrics[job.facts.metric]:.6g}"
    else:
        yield "checkpoint", "none is left"


def ended_words(job: JobStatus) -> str:
    """E.g. "finished at 2026-11-25 16:00:01"."""
    at = f" at {datetime.fromtimestamp(job.finished_at):%Y-%m-%d %H:%M:%S}" if job.finished_at is not None else ""
    return f"{job.state}{at}"


def _segments(segments: Sequence[SegmentStatus]) -> str:
    slots = [s.allocation.num_slots for s in segments if s.allocation is not None]
    lost = sum(s.attempt for s in segments)
    widths = f"{min(slots)} to {max(slots)} slots" if len(set(slots)) > 1 else f"{slots[0]} slots" if slots else ""
    attempts = f", {plural(lost, 'attempt')} lost" if lost else ""
    return f"{len(segments)}, on {widths}{attempts}"


def _slot_hours(segments: Sequence[SegmentStatus], over_at: float) -> float:
    """Of the last attempt of each segment."""
    return sum(
        s.allocation.num_slots * max(0.0, _held_until(s, over_at) - s.granted_at) / 3600
        for s in segments
        if s.allocation is not None and s.granted_at is not None
    )


def _held_until(segment: SegmentStatus, over_at: float) -> float:
    """Earlier than the segment ended where its last attempt was lost, and it was waiting then."""
    return segment.released_at or segment.ended_at or over_at


def _checkpoint(record: CheckpointRecord) -> str:
    return f"checkpoint {record.checkpoint_id}, step {record.step}, {size_text(record.size_bytes)}, {record.uri}"


def _best(job: JobStatus, records: Sequence[CheckpointRecord]) -> CheckpointRecord | None:
    measured = [record for record in records if isfinite(record.metrics.get(job.facts.metric, nan))]
    sign = 1 if job.facts.metric_mode == "max" else -1
    return max(measured, key=lambda record: sign * record.metrics[job.facts.metric], default=None)
