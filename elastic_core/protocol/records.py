"""What the ledger says of jobs, segments and checkpoints: frozen records, as every caller gets them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from elastic_core.domain import (
    Allocation,
    ExchangeChoice,
    ExchangeFallback,
    JobState,
    Layout,
    Limits,
    PlacedFigures,
    PlacedLayer,
    PlacedSpeed,
    Plan,
    ProfilePoint,
    SegmentState,
    Snapshot,
)
from elastic_core.protocol.forecasts import Forecast, Grade
from elastic_core.protocol.waiting.queued import InQueue
from elastic_core.spec import JobSpec
from elastic_core.spec.admitted_layouts import Admitted
from elastic_core.spec.job_changes import AS_SUBMITTED, JobChanges

DATA_SHA256 = "data_sha256"  # of a job's results: of the snapshot of data that a retraining trained it on
REGISTERED_VERSIONS = "registered_versions"  # of a job's results: `registered_key` -> checkpoint, metrics and time


def registered_key(model: str, version: str) -> str:
    """Under which a job's results hold what it registered as this version of a model."""
    return f"{model}/{version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRecord:
    """A committed checkpoint. `uri` is its directory, below the job's prefix of the store."""

    checkpoint_id: int
    job_id: str
    lineage: int
    step: int
    samples: int  # the cursor: samples of the job's work consumed, cumulative over epochs
    epoch: int  # the lease epoch that committed it
    segment_id: str
    uri: str
    manifest_sha256: str
    size_bytes: int
    layout: Layout
    metrics: Mapping[str, float]
    committed_at: float
    final: bool  # ends its segment
    bad: bool = False  # found corrupt on reading; never restored from again
    progress: float | None = None  # work done in samples at the base batch, where that is the job's measure
    gain: float | None = None  # then: base-batch steps that its last step counted for


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """What only the task's own code knows; found once, before the job is submitted (`train.process.inspect`)."""

    dataset_samples: int  # samples of one epoch
    metric: str = "loss"  # ranks checkpoints and models
    metric_mode: str = "min"  # or "max"
    num_parameters: int = 0
    layouts: Admitted = field(default_factory=Admitted)
    layers: tuple[str, ...] = ()  # names of those that a placed job may split the model at; () if none
    layer_times: tuple[PlacedLayer, ...] = ()  # of a placed job whose spec gives none: what was measured of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A user's wish that a job hold no slots until it is resumed; with `ends`, that it end with its next commit."""

    by: str  # as `JobStatus.submitted_by`
    at: float
    reason: str
    ends: bool = False

    @property
    def words(self) -> str:
        done = "stopped" if self.ends else "paused"
        return f"{done} by {self.by}: {self.reason}" if self.reason else f"{done} by {self.by}"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    job_id: str
    spec: JobSpec
    facts: JobFacts
    state: JobState
    lineage: int
    total_samples: int  # of the job's work, by its own measure (`spec.work.measure`)
    done_samples: int  # by the same
    step: int
    submitted_at: float
    finished_at: float | None
    segment_id: str  # the open segment, or the last one
    segment_state: SegmentState
    allocation: Allocation | None  # in force
    target_reason: str  # why it holds, will hold or waits for what it does
    error: str | None = None  # last line of the traceback of a failed job, or why it was cancelled
    notes: tuple[str, ...] = ()  # what its user should know: a corrupt checkpoint passed over, ...
    seconds_left: float | None = None  # median, while it holds slots; None where it is not known
    results: Mapping[str, Any] = field(default_factory=dict)  # evaluation, model version, tracker run ids
    samples_read: int = 0  # over all passes of the data set; `done_samples`, where those are the measure
    predicted_samples: int | None = None  # that will have been read at the end, if the last step's gain stays
    gain: float | None = None  # base-batch steps that the last step counted for, where progress is the measure
    spent: float = 0.0  # in the currency of the nodes' prices
    price_per_hour: float = 0.0  # of the slots that it holds, in the same
    expected_cost: float | None = None  # spent, and what is left on the slots that it holds; None: not known
    samples_per_second: float | None = None  # measured on them
    seconds_at_best: float | None = None  # `seconds_left` not known, a deadline: at the best speed of it or its task
    cost_at_least: float | None = None  # the same, a budget: spent, and that work where it costs least
    placed: PlacedFigures | None = None  # of a placed job: what was predicted of the stages that it has or shall have
    last_restore: Mapping[str, float] = field(default_factory=dict)  # `restore_...` seconds, `restored_from_..._bytes`
    forecast: Forecast | None = None  # of an active job: the last that was kept
    hindsight: tuple[Grade, ...] = ()  # of a job that is over: how its forecasts turned out
    exchange: ExchangeChoice | None = None  # the last, of a job whose algorithm is chosen by measurement
    exchange_fallback: ExchangeFallback | None = None  # it has diverged, and goes on by the exact sum
    submitted_by: str | None = None  # a user of Airflow, USER@host, or dag:DAG_ID; None where nobody is known
    epoch: int | None = None  # of that segment's live or last lease: another one, another attempt
    paused: Pause | None = None  # of an active job
    changes: JobChanges = AS_SUBMITTED  # set since it was submitted
    in_queue: InQueue | None = None  # of one that waits for slots, which is not paused; not told with every answer

    @property
    def spec_in_force(self) -> JobSpec:
        """What the next decision goes by."""
        return self.changes.applied(self.spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentStatus:
    segment_id: str
    job_id: str
    index: int
    lineage: int
    state: SegmentState
    attempt: int  # 0 for the first
    epoch: int | None  # of its live or last lease
    lease_live: bool  # slots are still held (also after the commit, until the processes are gone)
    allocation: Allocation | None  # of its live or last lease
    start_step: int
    end_step: int | None
    created_at: float
    asked_at: float | None
    granted_at: float | None
    started_at: float | None  # first heartbeat of the last attempt
    ended_at: float | None
    released_at: float | None = None  # the slots of its last lease were free again; None while they are held
    handed_over: bool  # got its lease from its predecessor, whose processes go on, maybe on fewer or more slots
    revoke_reason: str | None  # it was asked to reach a boundary, and why
    end_reason: str | None  # boundary | resize: ... | finished | user error: ... | infrastructure: ... | cancelled: ...
    grant_reason: str | None  # why it got this allocation
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobGroup:
    """Processes that have trained a job, from their start to their end, through all segments that they served."""

    origin_epoch: int
    first_segment: int  # index
    last_segment: int
    started_at: float  # granted its slots
    ended_at: float | None  # its slots were free again; None while they are held


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePoint:
    """Where a segment starts: checkpoints newest first; later ones are used only when the first is corrupt."""

    candidates: tuple[CheckpointRecord, ...]  # () for a new job


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    job_id: str
    decision_id: int | None
    decided_at: float | None
    policy: str
    trigger: str
    reason: str
    others: Mapping[str, str] = field(default_factory=dict)  # the other jobs' reasons in that decision


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionListed:
    """A decision without its inputs. `policy`: whose plan it is; `wanted`: who was asked, another where that failed."""

    decision_id: int
    version: int
    at: float
    trigger: str
    policy: str
    wanted: str
    failure: str | None
    seconds: float  # that deciding took
    actions: tuple[str, ...]  # what was done at once


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRecord:
    """A decision with its inputs and its plan."""

    decision: DecisionListed
    snapshot: Snapshot
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class PastLease:
    """A stretch of a job on the same slots. `until` is None while it lasts."""

    since: float
    until: float | None
    allocation: Allocation
    handed_over: bool  # from the lease before, without a restart


@dataclass(frozen=True, slots=True, kw_only=True)
class PastJob:
    """What the ledger knows of a job after the fact: enough to run it again in a simulation."""

    job_id: str
    name: str
    task: str
    queue: str
    priority: int
    submitted_at: float
    finished_at: float | None  # None while it is active
    state: JobState
    deadline: float | None
    limits: Limits
    total_samples: int
    done_samples: int  # committed
    profile: tuple[ProfilePoint, ...]
    noise_scale: float | None
    resize_seconds: float | None  # measured mean; None where it was never resized or started again
    num_resizes: int
    leases: tuple[PastLease, ...]
    placed_speeds: tuple[PlacedSpeed, ...] = ()
    most_samples: int | None = None  # that it may take; None: its user says how much work it is
    scale_invariant: bool = False  # unit of its work, as `JobView.scale_invariant`


Reports = tuple[tuple[int, float], ...]  # (work done, value), ascending


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDescription:
    """What is known of a job when it is submitted, in words that the history of other installations has too."""

    entry_point: str
    params: Mapping[str, Any]
    requested_slots: int
    requested_batch: int
    dataset_samples: int  # of one epoch
    most_samples: int  # it ends there at the latest
    num_parameters: int = 0  # 0: not known
    accelerated: bool | None = None  # None: any type of resource will do
    target_loss: float | None = None
    patience: int | None = None  # evaluations in a row without a better metric that end it
    metric_mode: str = "min"  # or "max": which way its metric gets better
    measure: Literal["samples", "progress"] = "samples"  # unit of its work, as the spec's `work.measure`

    @property
    def end_is_known(self) -> bool:
        """Whether `most_samples` says when the job ends; else it is the most that it may take."""
        return self.target_loss is None and self.patience is None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """What can be learnt from a job that has trained: how its loss fell, how much work it was, what its steps took."""

    job_id: str
    finished_at: float  # of an active job: when this was read
    description: JobDescription
    resubmitted: bool  # the same task with the same parameters had been submitted before
    losses: Reports  # evenly spread reports of its current lineage
    metrics: Reports = ()  # the task's metric, held out, wherever it was evaluated
    work: int | None = None  # samples done; None: up to its last report
    completed: bool = True  # False: active, cancelled, failed, or ended at its limit; its whole work exceeds `work`
    profile: tuple[ProfilePoint, ...] = ()

    @property
    def work_done(self) -> int:
        return self.work if self.work is not None else max((at for at, _ in self.losses), default=0)

    @property
    def at_its_limit(self) -> bool:
        return self.work_done >= self.description.most_samples

    @property
    def ended_by_itself(self) -> bool:
        return self.completed or self.at_its_limit  # if only there: then that is what it took, whatever it wanted


class SubmissionState(StrEnum):
    STARTING = "starting"  # its run is there and will inspect the task; the ledger does not know the job yet
    ACCEPTED = "accepted"  # the ledger has the job: it waits, trains, or is being evaluated and registered
    REFUSED = "refused"  # `error` says why; there is no job
    ENDED = "ended"  # the job is over, and so is all that its run had to do


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What became of a job that was asked for under this id, and the DAG run that takes care of it."""

    job_id: str
    state: SubmissionState
    dag_id: str | None  # None: the run was deleted, or never there; reconciliation starts another for an active job
    run_id: str | None
    run_succeeded: bool | None  # None while it works
    error: str | None = None  # why it was refused


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyInForce:
    """Who decides."""

    policy: str
    configured: str  # `ELASTIC_POLICY` of the control plane, in force where nobody has set another
    set_by_operator: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """What somebody did, or was refused."""

    record_id: int  # the later, the larger
    at: float
    actor: str  # as `JobStatus.submitted_by`
    way: str  # `protocol.callers.Way`
    action: str
    job_id: str | None
    subject: str  # what it was done to, in words
    queue: str | None
    done: bool  # False: refused
    detail: str  # the reason that was given, or why it was refused


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepMember:
    job_id: str
    values: Mapping[str, Any]  # its own, by the field of the spec
    submission: Submission | None = None  # None: it has not been started yet


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepStarted:
    """What became of a sweep's members so far. Those that are `left` the same request starts, asked again."""

    group: str
    members: tuple[SweepMember, ...]

    @property
    def left(self) -> int:
        return sum(member.submission is None for member in self.members)


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelOutcome:
    """What became of one of many jobs that were to be cancelled."""

    job_id: str
    state: JobState | None  # None: there is no such job, or it was refused
    error: str | None = None  # then: why


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """A machine of the cluster, or one that has left it (`present`), and why it gets no jobs."""

    name: str
    type: str
    num_slots: int
    present: bool
    held_slots: int
    set_aside_at: float | None
    set_aside_by: str | None
    set_aside_reason: str | None
    leaves_at: float | None = None  # of one that is set aside: until when it is there, where that is known


@dataclass(frozen=True, slots=True, kw_only=True)
class ChampionMoved:
    """The alias `champion` of a model went from one version to another."""

    name: str
    before: str | None
    now: str
