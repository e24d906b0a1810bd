"""What the page shows, made from the control plane's own answers. Pure: records in, records out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from elastic_airflow.links import tracker_url
from elastic_airflow.names import DRIVER, RUN
from elastic_airflow.page.expected import (
    ForecastShown,
    GradeShown,
    QueuedShown,
    forecast_shown,
    hindsight_shown,
    queued_shown,
)
from elastic_core.control.job_course import JobCourse
from elastic_core.domain import AUTO, EXACT, Allocation, JobState
from elastic_core.placement.placed_words import cost_words, figures_words, stages_words
from elastic_core.protocol.cluster.cluster_timeline import LOST, HeldStretch, NodeEvent
from elastic_core.protocol.encoding import finite
from elastic_core.protocol.exchange_words import chosen_words, fallback_words, named_words
from elastic_core.protocol.forecasts import ForecastReport
from elastic_core.protocol.outlook.at_risk import is_late, risks
from elastic_core.protocol.process_groups import code_of, held_out
from elastic_core.protocol.records import AuditRecord, Explanation, JobStatus, NodeStatus
from elastic_core.settings import Settings
from elastic_core.text import size_text

MAX_ENDED_JOBS = 30
MAX_ACTIONS = 5  # of a job


class Shown(BaseModel):
    model_config = ConfigDict(frozen=True)


class NodeShown(Shown):
    name: str
    type: str
    num_slots: int
    held: int  # of them, now
    present: bool
    set_aside: str  # why; "" where it is not
    leaves_at: float | None = None  # of one that is set aside: until when it is there, where that is known


class NodeEventShown(Shown):
    """A mark on the timeline."""

    at: float
    node: str
    what: str  # "set aside", "taken back" or "lost"
    why: str


class ActionShown(Shown):
    """What somebody did to a job, or was refused."""

    at: float
    actor: str
    way: str
    action: str
    done: bool
    detail: str


class JobShown(Shown):
    job_id: str
    name: str
    task: str
    state: str
    segment_id: str
    segment_state: str
    segment_index: int
    lineage: int
    priority: int
    queue: str
    submitted_at: float
    finished_at: float | None
    waiting_since: float | None
    deadline: float | None
    late: bool  # it will miss its deadline, or has
    step: int
    done_samples: int
    total_samples: int
    progress: float  # of the work, in [0, 1]
    reading: str  # what it reads beside its work, where progress is the measure of that
    slots: int
    min_slots: int
    max_slots: int
    types: str  # what it holds, e.g. "2 h200"
    global_batch: int | None
    layout: str
    comm: str
    code: str  # which is pinned, in words
    seconds_left: float | None
    spent: float  # in the currency of the nodes' prices
    cost: str  # the same in words, with what it is expected to be in all; empty where nothing costs anything
    budget: float | None
    at_risk: tuple[str, ...]  # why an active job is expected to miss its deadline, or to exceed its budget
    stages: str  # of a placed job: which layers run on which slots
    placement: str  # what was predicted of them, and measured
    forecast: ForecastShown | None  # of an active job
    hindsight: tuple[GradeShown, ...]  # of one that is over
    num_resizes: int
    restored: str  # where its state came from at the last start or resize, and what that took
    reason: str
    queued: QueuedShown | None  # of a job that waits for slots
    error: str | None
    notes: tuple[str, ...]
    evaluation: Mapping[str, float | str]  # a text where it is no finite number
    model: str | None
    run: tuple[str, str] | None  # dag id and run id of the Airflow run that drives it
    tracker_url: str | None
    submitted_by: str | None
    actions: tuple[ActionShown, ...]  # the last ones, newest first


class HoldShown(Shown):
    """One lease on the timeline: a job holds these slots from one moment to another."""

    job_id: str
    segment_id: str
    slots: tuple[tuple[str, int], ...]
    stages: tuple[str, ...]  # what each slot does, of a placed job or one with servers; empty for every other
    since: float
    until: float | None  # None: still
    global_batch: int
    attempt: int
    grant_reason: str
    end_reason: str


class DecisionShown(Shown):
    policy: str
    decided_at: float | None
    trigger: str
    notes: tuple[str, ...]


class Overview(Shown):
    now: float
    since: float
    nodes: tuple[NodeShown, ...]
    jobs: tuple[JobShown, ...]
    holds: tuple[HoldShown, ...]
    events: tuple[NodeEventShown, ...]
    decision: DecisionShown | None
    paused: tuple[str, ...]  # DAGs that are paused: nothing new starts through them
    unreconciled: float | None  # seconds since anybody reconciled, where they are too many
    forecasts: ForecastReport  # how those of the jobs that ended turned out


def overview(
    *,
    nodes: Sequence[NodeStatus],
    jobs: Sequence[JobStatus],
    courses: Mapping[str, JobCourse],
    stretches: Sequence[HeldStretch],
    explanation: Explanation | None,
    notes: Sequence[str],
    paused: Sequence[str],
    unreconciled: float | None,
    forecasts: ForecastReport,
    settings: Settings,
    since: float,
    now: float,
    audit: Sequence[AuditRecord] = (),
    events: Sequence[NodeEvent] = (),
) -> Overview:
    """`nodes` that ever were; `courses` of the jobs; `stretches` of the window; `explanation` of any one job, for the
    decision that it came from; `audit` of these jobs, newest first; `events` of nodes."""
    actions, events = _actions(audit), [event for event in events if event.at >= since]
    decision = explanation and DecisionShown(
        policy=explanation.policy, decided_at=explanation.decided_at, trigger=explanation.trigger, notes=tuple(notes)
    )
    return Overview(
        now=now,
        since=since,
        nodes=nodes_shown(nodes, stretches, events),
        jobs=tuple(job_shown(job, courses[job.job_id], settings, now, actions.get(job.job_id, ())) for job in jobs),
        holds=tuple(map(hold_shown, stretches)),
        events=tuple(NodeEventShown(at=event.at, node=event.node, what=event.what, why=event.why) for event in events),
        decision=decision,
        paused=tuple(paused),
        unreconciled=unreconciled,
        forecasts=forecasts,
    )


def nodes_shown(
    nodes: Sequence[NodeStatus], stretches: Sequence[HeldStretch], events: Sequence[NodeEvent]
) -> tuple[NodeShown, ...]:
    """Those that are there, and those that are gone and were held: by one of the stretches, or when they were lost."""
    held = {event.node for event in events if event.what == LOST}
    held |= {slot.node for stretch in stretches for slot in stretch.allocation.slots}
    return tuple(
        NodeShown(
            name=node.name, type=node.type, num_slots=node.num_slots, held=node.held_slots, present=node.present,
            set_aside=node.set_aside_reason or "", leaves_at=node.leaves_at,
        )
        for node in nodes
        if node.present or node.held_slots or node.name in held
    )  # fmt: skip


def _actions(audit: Sequence[AuditRecord]) -> dict[str, tuple[ActionShown, ...]]:
    """The last ones of each job."""
    by_job: dict[str, list[ActionShown]] = {}
    for record in audit:
        shown = by_job.setdefault(record.job_id or "", [])
        if len(shown) < MAX_ACTIONS:
            shown.append(action_shown(record))
    return {job_id: tuple(actions) for job_id, actions in by_job.items()}


def _registered(model: Mapping[str, Any]) -> str:
    return ": ".join(filter(None, (f"{model['model']} version {model['version']}", model.get("verdict"))))


def action_shown(record: AuditRecord) -> ActionShown:
    return ActionShown(
        at=record.at, actor=record.actor, way=record.way, action=record.action, done=record.done, detail=record.detail
    )  # fmt: skip


def job_shown(
    job: JobStatus, course: JobCourse, settings: Settings, now: float, actions: tuple[ActionShown, ...] = ()
) -> JobShown:
    spec, held = job.spec_in_force, job.allocation
    limits = spec.limits()
    deadline = spec.deadline.timestamp() if spec.deadline else None
    driver: Mapping[str, Any] | None = job.results.get(DRIVER) or job.results.get(RUN)
    model: Mapping[str, Any] | None = job.results.get("registration")
    return JobShown(
        job_id=job.job_id,
        name=spec.name,
        task=spec.entry_point,
        state=str(job.state),
        segment_id=job.segment_id,
        segment_state=str(job.segment_state),
        segment_index=int(job.segment_id.rpartition("_")[2]),
        lineage=job.lineage,
        priority=spec.priority,
        queue=spec.queue,
        submitted_at=job.submitted_at,
        finished_at=job.finished_at,
        waiting_since=course.waiting_since if job.state is JobState.ACTIVE else None,
        deadline=deadline,
        late=is_late(job, now),
        step=job.step,
        done_samples=job.done_samples,
        total_samples=job.total_samples,
        progress=min(1.0, job.done_samples / job.total_samples) if job.total_samples else 0.0,
        reading=_reading(job),
        slots=held.num_slots if held else 0,
        min_slots=limits.min_slots,
        max_slots=limits.max_slots,
        types=", ".join(f"{count} {kind}" for kind, count in held.counts().items()) if held else "",
        global_batch=held.global_batch if held else None,
        layout=_layout(job),
        comm=_exchange(job),
        code=code_of(job.results).words,
        seconds_left=job.seconds_left,
        spent=job.spent,
        cost=cost_words(job),
        stages=stages_words(job),
        placement=figures_words(job),
        budget=spec.budget,
        at_risk=tuple(risks(job, now).values()),
        forecast=forecast_shown(job, now),
        hindsight=hindsight_shown(job),
        num_resizes=course.num_resizes,
        restored=restored_words(job.last_restore),
        reason=job.target_reason,
        queued=queued_shown(job),
        error=job.error,
        notes=job.notes,
        evaluation=finite(held_out(job.results)),
        model=_registered(model) if model else None,
        run=(driver["dag_id"], driver["run_id"]) if driver else None,
        tracker_url=tracker_url(job, settings),
        submitted_by=job.submitted_by,
        actions=actions,
    )


def _exchange(job: JobStatus) -> str:
    held = job.allocation
    if job.exchange_fallback is not None:
        return fallback_words(job.exchange_fallback)
    if held is None:
        return ""
    if held.comm == AUTO:
        return chosen_words(job)
    return held.comm if held.comm == EXACT else named_words(job)


def hold_shown(stretch: HeldStretch) -> HoldShown:
    held = stretch.allocation
    return HoldShown(
        job_id=stretch.job_id,
        segment_id=stretch.segment_id,
        slots=tuple((slot.node, slot.index) for slot in held.slots),
        stages=_roles_of_slots(held),
        since=stretch.since,
        until=stretch.until,
        global_batch=held.global_batch,
        attempt=stretch.attempt,
        grant_reason=stretch.grant_reason or "",
        end_reason=stretch.end_reason or "",
    )


def _roles_of_slots(held: Allocation) -> tuple[str, ...]:
    """Of each slot, in the lease's order: its stage, or whether a worker or a parameter server is there; () where all
    do the same."""
    if held.layout.servers:
        return ("worker",) * held.layout.data + ("parameter server",) * held.layout.servers
    return tuple(str(stage) for stage in held.stages for _ in range(stage.num_slots))


def _reading(job: JobStatus) -> str:
    """E.g. "3.1 passes read, 4.6 predicted for 2.0 at batch 64, gain 2.31"; empty where samples are the measure."""
    if job.predicted_samples is None:
        return ""
    size, batch = job.facts.dataset_samples, job.spec.batch
    declared, read, predicted = (n / size for n in (job.total_samples, job.samples_read, job.predicted_samples))
    gain = f", gain {job.gain:.2f}" if job.gain is not None else ""
    return (
        f"{read:.1f} passes read, {predicted:.1f} predicted for {declared:.1f} at batch {batch.base or batch.min}{gain}"
    )


SOURCES = {
    "own_memory": "kept in place",
    "same_host": "from processes of the same host",
    "other_hosts": "from processes of other hosts",
    "own_node": "from the node's cache",
    "other_nodes": "from other nodes' caches",
    "store": "from the store",
}


def restored_words(timings: Mapping[str, float]) -> str:
    """E.g. "12.0 MiB kept in place, 6.0 MiB from processes of the same host, in 0.31 s"; empty before any restore."""
    moved = {source: timings.get(f"restored_from_{source}_bytes", 0.0) for source in SOURCES}
    parts = [f"{size_text(int(size))} {SOURCES[source]}" for source, size in moved.items() if size]
    seconds = sum(value for name, value in timings.items() if name.startswith("restore_"))
    return f"{', '.join(parts)}, in {seconds:.2g} s" if parts else ""


def _layout(job: JobStatus) -> str:
    """E.g. "2 data x 2 tensor, sharded"; empty for data-parallel replicas, which need no words."""
    if job.allocation is None:
        return ""
    layout = job.allocation.layout
    if layout.servers:
        return str(layout)
    axes = [("data", layout.data), ("tensor", layout.tensor), ("pipeline", layout.pipeline)]
    wide = [f"{size} {name}" for name, size in axes if size > 1]
    shards = ", sharded" if layout.sharded else ""
    return " x ".join(wide) + shards if layout.model_size > 1 or layout.sharded else ""
