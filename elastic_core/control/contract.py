"""What the control plane promises, in two halves: `ServiceControl` (operators, CLI, page) and `TrainerControl`.

Implemented in process (`control.plane`) and over HTTP (`control.client`); one contract suite runs over both.
Every method is idempotent, so a caller that got no answer may ask again. Errors are those of
`elastic_core.errors`. A trainer's half is bound to one token: one segment, one epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from elastic_core.domain import (
    Allocation,
    JobState,
    Layout,
    Limits,
    Observation,
    Plan,
    ProfilePoint,
    SegmentState,
    Slot,
    Snapshot,
)
from elastic_core.spec import ClusterSpec, JobSpec
from elastic_core.spec.layouts import Admitted


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


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """What only the task's own code knows; found once, before the job is submitted (`train.inspect`)."""

    dataset_samples: int  # samples of one epoch
    metric: str = "loss"  # ranks checkpoints and models
    metric_mode: str = "min"  # or "max"
    num_parameters: int = 0
    layouts: Admitted = field(default_factory=Admitted)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    job_id: str
    spec: JobSpec
    facts: JobFacts
    state: JobState
    lineage: int
    total_samples: int
    done_samples: int
    step: int
    submitted_at: float
    finished_at: float | None
    segment_id: str  # the open segment, or the last one
    segment_state: SegmentState
    allocation: Allocation | None  # in force
    target_reason: str  # why it holds, will hold or waits for what it does
    error: str | None = None  # last line of the traceback of a failed job, or why it was cancelled
    notes: tuple[str, ...] = ()  # what its user should know: a corrupt checkpoint passed over, ...
    seconds_left: float | None = None
    results: Mapping[str, Any] = field(default_factory=dict)  # evaluation, model version, tracker run ids


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
    handed_over: bool  # got its lease from its predecessor, whose processes go on, maybe on fewer or more slots
    revoke_reason: str | None  # it was asked to reach a boundary, and why
    end_reason: str | None  # boundary | resize: ... | finished | user error: ... | infrastructure: ... | cancelled: ...
    grant_reason: str | None  # why it got this allocation
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePoint:
    """Where a segment starts: checkpoints newest first; later ones are used only when the first is corrupt."""

    candidates: tuple[CheckpointRecord, ...]  # () for a new job


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchOrder:
    """All that a launcher and its workers need to run a segment. Holds a secret (`token`): 0600 files only."""

    segment_id: str
    job_id: str
    index: int
    lineage: int
    epoch: int
    origin_epoch: int  # epoch of the first lease of this chain of processes; names the process group
    attempt: int
    spec: JobSpec
    facts: JobFacts
    allocation: Allocation
    total_samples: int
    restore: RestorePoint
    warm_start: str | None  # uri of a checkpoint whose weights a new job starts from
    segment_seconds: float | None
    segment_steps: int | None
    token: str
    lease_seconds: float
    heartbeat_seconds: float
    grant_reason: str = ""


class Directive(StrEnum):
    GO_ON = "go_on"
    BOUNDARY = "boundary"  # reach a boundary: commit and stop
    STOP = "stop"  # the job was cancelled: stop without a commit
    FENCED = "fenced"  # the lease is over: stop at once, commit nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    step: int
    samples: int
    at: float
    host: str = ""
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatAnswer:
    directive: Directive
    reason: str = ""
    lease_seconds: float = 0.0  # the lease is renewed for this long from the moment the request was sent
    token: str | None = None  # replaces the caller's token, when it nears its end
    slots: tuple[Slot, ...] = ()  # with BOUNDARY: on which the same processes could go on after it, by rank
    steady: bool = False  # as the targets and the workers are now, the lease will pass on to the next segment as it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Makes a written and verified checkpoint visible. `final` ends the segment; `finished` ends the job."""

    step: int
    samples: int
    uri: str
    manifest_sha256: str
    size_bytes: int
    layout: Layout
    metrics: Mapping[str, float]
    final: bool
    finished: bool = False
    leaving: bool = False  # the processes end after this final commit, come what may: the lease must not pass on
    ready: tuple[Slot, ...] | None = None  # not held, and a worker waits for each; None: never resize these processes
    fingerprints: Mapping[str, Any] = field(default_factory=dict)  # what was read: see train.audit
    timings: Mapping[str, float] = field(default_factory=dict)  # seconds: save, ...; `..._at`: Unix time; `..._bytes`


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitAnswer:
    """`order` is set when the lease passes on: go on with the next segment in the same processes.

    Its slots may be others than before: rank 0's is the same, and a process whose slot is not among them ends.
    """

    checkpoint_id: int
    directive: Directive  # GO_ON with an order or after an interval commit, else BOUNDARY: stop
    reason: str
    order: LaunchOrder | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitReport:
    """What became of a process group, from the agent that watched it (or from whoever found it gone)."""

    kind: str  # boundary | finished | user_error | infrastructure | stopped
    error: str = ""  # last line of the traceback, or the signal
    log_tail: str = ""
    exit_codes: tuple[int, ...] = ()  # by rank, negative for a signal; workers that had left before are not among them


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessGroup:
    """A live or dead process group as its host sees it; sent to `reconcile`."""

    origin_epoch: int
    segment_id: str
    alive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconcileAnswer:
    stop: tuple[int, ...]  # origin epochs of process groups that nobody owns: stop them
    actions: tuple[str, ...]  # what was put right, in words
    active_segments: tuple[str, ...]  # segments that should have an Airflow run
    active_jobs: tuple[str, ...]
    removable_checkpoints: tuple[CheckpointRecord, ...] = ()


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


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """What can be learnt from a job that trained to its end about how its loss fell."""

    job_id: str
    finished_at: float
    spec: JobSpec
    facts: JobFacts
    resubmitted: bool  # the same task with the same parameters had been submitted before
    losses: tuple[tuple[int, float], ...]  # (samples trained on, loss), evenly spread reports of its current lineage


class TrainerControl(Protocol):
    """For the processes of one segment; bound to their token."""

    def heartbeat(self, beat: Heartbeat) -> HeartbeatAnswer: ...
    def observe(self, observations: Sequence[Observation]) -> None: ...
    def commit(self, commit: Commit) -> CommitAnswer: ...
    def mark_bad(self, checkpoint_id: int, why: str) -> None: ...
    def vacated(self, slots: Sequence[Slot]) -> None:
        """No process is left on these slots, which the lease lost when it passed on: they are free."""

    def exited(self, report: ExitReport) -> None:
        """The chain of processes of this token is gone: frees its slots. Any epoch of the chain may say so."""


class ServiceControl(Protocol):
    """For operators, triggers, the CLI and reconciliation."""

    def submit(self, job_id: str, spec: JobSpec, facts: JobFacts, warm_start: str | None = None) -> JobStatus:
        """Register a job, or return it if the same spec was submitted under this id before.

        `warm_start` is the uri of a checkpoint whose weights the first segment starts from (step and cursor at 0).
        Raises `Conflict` for another spec under the same id, `UserError` for a spec that the cluster can never run.
        """

    def job(self, job_id: str) -> JobStatus: ...
    def jobs(self, active_only: bool = False) -> list[JobStatus]: ...
    def segment(self, segment_id: str) -> SegmentStatus: ...
    def segments(self, job_id: str) -> list[SegmentStatus]: ...
    def checkpoints(self, job_id: str) -> list[CheckpointRecord]: ...

    def acquire(self, segment_id: str) -> SegmentStatus:
        """Ask for the segment's slots. Granted at once or waiting; ask `segment` again, or call this again."""

    def launch_order(self, segment_id: str) -> LaunchOrder:
        """Raises `Conflict` when the segment holds no live lease."""

    def revoke(self, segment_id: str, reason: str) -> SegmentStatus:
        """Ask a running segment to reach a boundary. A segment that holds nothing is left as it is."""

    def cancel(self, job_id: str, reason: str) -> JobStatus: ...
    def fail(self, job_id: str, error: str) -> JobStatus: ...
    def revive(self, job_id: str) -> JobStatus:
        """Open a failed or cancelled job again, from its last good checkpoint."""

    def rollback(self, job_id: str, checkpoint_id: int) -> JobStatus:
        """Open a new lineage from a named checkpoint; the only way a job's step goes back."""

    def process_group_gone(self, origin_epoch: int, report: ExitReport) -> None: ...
    def record_results(self, job_id: str, results: Mapping[str, Any]) -> JobStatus: ...
    def set_cluster(self, cluster: ClusterSpec) -> None: ...
    def reconcile(self, groups: Sequence[ProcessGroup]) -> ReconcileAnswer: ...
    def swept(self, checkpoint_ids: Sequence[int]) -> None: ...

    def decide(self, trigger: str) -> int:
        """Run the allocator now; the new scheduling version."""

    def snapshot(self) -> Snapshot: ...
    def last_plan(self) -> Plan | None: ...
    def explain(self, job_id: str) -> Explanation: ...
    def finished_runs(self, limit: int) -> list[FinishedRun]:
        """The last `limit` jobs that trained to their end, the oldest first."""

    def reads(self, job_id: str) -> list[Mapping[str, Any]]:
        """The `fingerprints` of every commit of the job's current lineage, in order of step."""
