"""Tells what a ledger would: a list of events, the jobs they are about, and the curve that must come of them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from elastic_core.domain import Allocation, JobState, Layout, Observation, SegmentState, Slot, to_json
from elastic_core.protocol.events import Event, EventKind
from elastic_core.protocol.records import CheckpointRecord, JobFacts, JobStatus
from elastic_core.spec import JobSpec
from elastic_core.spec.parts.job_group import Group

T0 = 1_700_000_000.0


@dataclass
class Story:
    """One job's life. A `Feed` and a tracker's `Jobs` at once; positions leave gaps, as a sequence may."""

    name: str = "digits"
    job_id: str = field(default_factory=lambda: f"job-{uuid.uuid4().hex[:8]}")
    group: Group | None = None
    lineage: int = 0
    log: list[Event] = field(default_factory=list)
    acknowledged: dict[str, int] = field(default_factory=dict)
    results: dict[str, Any] = field(default_factory=dict)
    curve: dict[int, float] = field(default_factory=dict)  # step -> loss, of what was committed
    committed_step: int = 0
    epoch: int = 0
    segment: int = -1
    observed: list[tuple[int, Observation]] = field(default_factory=list)

    # -- what happens --

    def submit(self) -> Story:
        return self.tell(EventKind.JOB_SUBMITTED, segment=False, spec={}, facts={}, total_samples=1000)

    def grant(self, slots: int = 1, attempt: int = 0, handed_over: bool = False, **more: Any) -> Story:
        """A new attempt; the first one of a segment opens the segment."""
        self.epoch += 1
        self.segment += attempt == 0
        places = tuple(Slot(f"node{i // 2}", i % 2, "cpu") for i in range(slots))
        allocation = Allocation(slots=places, global_batch=32 * slots, layout=Layout(data=slots))
        return self.tell(
            EventKind.SEGMENT_GRANTED,
            index=self.segment,
            lineage=self.lineage,
            attempt=attempt,
            allocation=to_json(allocation),
            reason=f"{slots} slots are free",
            handed_over=handed_over,
            start_step=self.committed_step,
            **more,
        )

    def observe(self, *steps: int, loss: float | None = None) -> Story:
        made = [observation(step, self.epoch, loss) for step in steps]
        self.observed += [(self.epoch, o) for o in made]
        return self.tell(EventKind.OBSERVED, observations=[to_json(o) for o in made])

    def commit(self, step: int, final: bool = False, **metrics: float) -> Story:
        previous, self.committed_step = self.committed_step, step
        checkpoint = CheckpointRecord(
            checkpoint_id=len(self.log) + 1,
            job_id=self.job_id,
            lineage=self.lineage,
            step=step,
            samples=32 * step,
            epoch=self.epoch,
            segment_id=self.segment_id,
            uri=f"{self.job_id}/lineage-{self.lineage}/step-{step:010d}-epoch-{self.epoch}-abc",
            manifest_sha256=f"{step:064x}",
            size_bytes=1000 + step,
            layout=Layout(data=2),
            metrics=metrics,
            committed_at=T0 + len(self.log),
            final=final,
        )
        for epoch, o in self.observed:
            if epoch == self.epoch and previous < o.step <= step:
                self.curve[o.step] = o.loss
        return self.tell(
            EventKind.COMMITTED, checkpoint=to_json(checkpoint), previous_step=previous, timings={"save": 0.5}
        )

    def late(self, step: int) -> Story:
        """An observation that arrives behind the commit of its step."""
        self.curve[step] = observation(step, self.epoch).loss
        return self.observe(step)

    def end_segment(self, state: SegmentState = SegmentState.COMMITTED, reason: str = "boundary") -> Story:
        error = "killed" if state is SegmentState.FAILED else None
        return self.tell(EventKind.SEGMENT_ENDED, state=str(state), reason=reason, error=error)

    def end(self, state: JobState = JobState.FINISHED, error: str | None = None) -> Story:
        return self.tell(EventKind.JOB_ENDED, segment=False, state=str(state), error=error, lineage=self.lineage)

    def tell(self, kind: EventKind, segment: bool = True, **payload: Any) -> Story:
        position = self.log[-1].position + 3 if self.log else 7
        self.log.append(
            Event(
                position=position,
                at=T0 + len(self.log),
                kind=kind,
                job_id=self.job_id,
                segment_id=self.segment_id if segment else None,
                epoch=self.epoch if segment else None,
                payload=payload,
            )
        )
        return self

    @property
    def segment_id(self) -> str:
        return f"{self.job_id}__seg_{self.segment}"

    # -- Feed --

    def events(self, after: int, limit: int = 500, segment_id: str | None = None) -> Sequence[Event]:
        wanted = (e for e in self.log if e.position > after and segment_id in (None, e.segment_id))
        return [event for event, _ in zip(wanted, range(limit), strict=False)]

    def position(self, reader: str) -> int:
        return self.acknowledged.get(reader, 0)

    def acknowledge(self, reader: str, position: int) -> None:
        self.acknowledged[reader] = position

    # -- Jobs --

    def job(self, job_id: str) -> JobStatus:
        assert job_id == self.job_id
        return replace(STATUS, job_id=job_id, spec=SPEC.model_copy(update={"name": self.name, "group": self.group}),
                       lineage=self.lineage, results=dict(self.results))  # fmt: skip

    def record_results(self, job_id: str, results: Mapping[str, Any]) -> JobStatus:
        if any(self.results.get(name) != value for name, value in results.items()):
            self.results.update(results)
            self.tell(EventKind.RESULTS, segment=False, results=dict(self.results), lineage=self.lineage)
        return self.job(job_id)


def observation(step: int, epoch: int, loss: float | None = None) -> Observation:
    """Attempts differ in what they measured, also at the same step."""
    return Observation(
        step=step, samples=32 * step, at=T0 + 100 * epoch + step / 8, epoch=step / 50, num_slots=2, num_nodes=1,
        type="cpu", global_batch=32, local_batch=16, accumulation=1, step_seconds=0.1 + epoch, sync_seconds=0.01,
        samples_per_second=320.0, loss=1 / step + epoch if loss is None else loss, learning_rate=0.1,
        grad_sqr=0.5, grad_var=2.0, memory_bytes=1 << 20, metrics={"train accuracy %": 0.5},
    )  # fmt: skip


SPEC = JobSpec.model_validate(
    {
        "name": "digits",
        "entry_point": "examples.digits:Digits",
        "params": {"width": 32},
        "work": {"samples": 1000},
        "batch": {"min": 32, "max": 64},
    }
)
STATUS = JobStatus(
    job_id="", spec=SPEC, facts=JobFacts(dataset_samples=500, metric="accuracy", metric_mode="max"),
    state=JobState.ACTIVE, lineage=0, total_samples=1000, done_samples=0, step=0, submitted_at=T0, finished_at=None,
    segment_id="", segment_state=SegmentState.CREATED, allocation=None, target_reason="",
)  # fmt: skip
