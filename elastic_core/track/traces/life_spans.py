"""What the ledger's events say of a job's life, as spans with a beginning and an end. Pure functions of the outbox.

    job                                    from its submission until it is over
      wait                                 until slots were granted, where it held none before
      attempt                              one lease: a segment on its slots, by new processes or those that lived on
        start                              from the grant to the first step: processes, rendezvous, state
        checkpoint                         from the capture of the state until it was committed

Ids are functions of what a span is of, so that an event told again is the same span. A span is told when it is over: a
job that runs shows what is over of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from elastic_core.domain import Allocation, JobState, SegmentState, from_json, segment_id_of
from elastic_core.protocol.events import Event, EventKind, Feed
from elastic_core.protocol.records import JobStatus
from elastic_core.track.segment_facts import checkpoint_of, read_segment, segment_events
from elastic_core.track.tracker import Jobs

Value = str | bool | int | float
_JOB, _WAIT, _ATTEMPT, _START, _CHECKPOINT = "job", "wait", "attempt", "start", "checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Times in Unix seconds."""

    name: str
    job_id: str
    span_id: int
    parent_id: int | None = None
    start: float
    end: float
    attributes: Mapping[str, Value] = field(default_factory=dict)
    error: str | None = None

    @property
    def trace_id(self) -> int:
        return _number("trace", self.job_id, bits=128)


def spans_of(event: Event, feed: Feed, jobs: Jobs) -> Iterator[Span]:
    """Those that are over with this event."""
    if event.kind is EventKind.SEGMENT_GRANTED and not event.payload["handed_over"]:
        yield from _waited(event, feed, jobs)
    elif event.kind is EventKind.COMMITTED:
        yield from _committed(event, feed)
    elif event.kind is EventKind.SEGMENT_ENDED and event.epoch is not None:
        yield from _attempted(event, feed)
    elif event.kind is EventKind.JOB_ENDED:
        yield _ended(event, jobs.job(event.job_id))


def _ended(event: Event, job: JobStatus) -> Span:
    failed = JobState(event.payload["state"]) is JobState.FAILED
    return Span(
        name=_JOB, job_id=job.job_id, span_id=_id(job.job_id, _JOB), start=job.submitted_at, end=event.at,
        attributes={
            "elastic.job.id": job.job_id, "elastic.job.state": str(event.payload["state"]),
            "elastic.entry_point": job.spec.entry_point, "elastic.queue": job.spec.queue,
            "elastic.steps": job.step, "elastic.samples": job.samples_read,
        },
        error=str(event.payload["error"] or "failed") if failed else None,
    )  # fmt: skip


def _waited(grant: Event, feed: Feed, jobs: Jobs) -> Iterator[Span]:
    since = _without_slots_since(grant, feed, jobs)
    if since is None or since > grant.at:
        return
    yield Span(
        name=_WAIT, job_id=grant.job_id, span_id=_id(grant.job_id, _WAIT, grant.epoch),
        parent_id=_id(grant.job_id, _JOB), start=since, end=grant.at,
        attributes={"elastic.segment.id": str(grant.segment_id), "elastic.reason": str(grant.payload["reason"])},
    )  # fmt: skip


def _without_slots_since(grant: Event, feed: Feed, jobs: Jobs) -> float | None:
    """Since the attempt before ended; since it was submitted, if there was none."""
    index, attempt = int(grant.payload["index"]), int(grant.payload["attempt"])
    if index == attempt == 0:
        return jobs.job(grant.job_id).submitted_at
    before = grant.segment_id if attempt else segment_id_of(grant.job_id, index - 1)
    assert before is not None, "a grant is of a segment"
    ends = [e.at for e in segment_events(feed, before, 0, grant.position) if e.kind is EventKind.SEGMENT_ENDED]
    return ends[-1] if ends else None


def _committed(event: Event, feed: Feed) -> Iterator[Span]:
    assert event.segment_id is not None, "a commit is of a segment"
    checkpoint, timings = checkpoint_of(event), event.payload["timings"]
    attempt = _id(event.job_id, _ATTEMPT, checkpoint.epoch)
    if "first_step_at" in timings:  # the attempt's first commit: the others need not read the segment again
        grant = read_segment(feed, event.segment_id, event.position).grants.get(checkpoint.epoch)
        if grant is not None and timings["first_step_at"] > grant.at:
            yield Span(
                name=_START, job_id=event.job_id, span_id=_id(event.job_id, _START, checkpoint.epoch),
                parent_id=attempt, start=grant.at, end=timings["first_step_at"],
                attributes=_measured(timings, "start", "restore"),
            )  # fmt: skip
    yield Span(
        name=_CHECKPOINT, job_id=event.job_id,
        span_id=_id(event.job_id, _CHECKPOINT, checkpoint.epoch, checkpoint.step), parent_id=attempt,
        start=checkpoint.committed_at - timings.get("save", 0.0), end=checkpoint.committed_at,
        attributes={
            "elastic.step": checkpoint.step, "elastic.checkpoint.bytes": checkpoint.size_bytes,
            "elastic.checkpoint.uri": checkpoint.uri, **_measured(timings, "save"),
        },
    )  # fmt: skip


def _attempted(event: Event, feed: Feed) -> Iterator[Span]:
    assert event.segment_id is not None, "an attempt is of a segment"
    grant = read_segment(feed, event.segment_id, event.position).grants.get(event.epoch or 0)
    if grant is None:
        return
    allocation = from_json(Allocation, grant.payload["allocation"])
    types, nodes = {slot.type for slot in allocation.slots}, {slot.node for slot in allocation.slots}
    failed = SegmentState(event.payload["state"]) is SegmentState.FAILED
    yield Span(
        name=_ATTEMPT, job_id=event.job_id, span_id=_id(event.job_id, _ATTEMPT, event.epoch),
        parent_id=_id(event.job_id, _JOB), start=grant.at, end=event.at,
        attributes={
            "elastic.segment.id": event.segment_id, "elastic.epoch": event.epoch or 0,
            "elastic.attempt": int(grant.payload["attempt"]), "elastic.handed_over": bool(grant.payload["handed_over"]),
            "elastic.slots": allocation.num_slots, "elastic.types": ",".join(sorted(types)),
            "elastic.nodes": ",".join(sorted(nodes)),
            "elastic.global_batch": allocation.global_batch, "elastic.layout": str(allocation.layout),
            "elastic.exchange": allocation.comm, "elastic.reason": str(grant.payload["reason"]),
            "elastic.end_reason": str(event.payload["reason"]),
        },
        error=str(event.payload["error"] or event.payload["reason"]) if failed else None,
    )  # fmt: skip


def _measured(timings: Mapping[str, Any], *prefixes: str) -> dict[str, Value]:
    """Seconds and bytes of a commit whose names begin so."""
    return {f"elastic.{name}": float(value) for name, value in sorted(timings.items()) if name.startswith(prefixes)}


def _id(*parts: object) -> int:
    return _number("span", *parts, bits=64)


def _number(*parts: object, bits: int) -> int:
    """Never 0, which is no id."""
    digest = hashlib.sha256("\0".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[: bits // 8]) or 1
