"""What the control plane promises to operators, triggers, the CLI and the page: `ServiceControl`, in six subjects.

Implemented in process (`control.plane`) and over HTTP (`protocol.http_client`); one contract suite runs over both. A
caller names the smallest part that it needs. What holds for every method: what it changes is committed in the ledger
when it returns; called again, by a caller that got no answer, it changes nothing more (but `decide`, which decides
again). Errors are those of `elastic_core.errors`: `NotFound` for an id that the ledger does not know,
`InfrastructureError` while the ledger or the API in front of it is away; others are named where they are raised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from elastic_core.domain import Plan, Snapshot
from elastic_core.errors import UserError
from elastic_core.protocol.cluster.cluster_slots import ClusterShown
from elastic_core.protocol.forecasts import Forecast, ForecastReport, Outlook
from elastic_core.protocol.process_groups import (
    ExitReport,
    LaunchOrder,
    ProcessGroup,
    ReconcileAnswer,
    StoredCheckpoint,
)
from elastic_core.protocol.records import (
    AuditRecord,
    CancelOutcome,
    ChampionMoved,
    CheckpointRecord,
    Explanation,
    FinishedRun,
    JobFacts,
    JobGroup,
    JobStatus,
    NodeStatus,
    PolicyInForce,
    SegmentStatus,
    Submission,
    SweepStarted,
)
from elastic_core.spec import JobSpec, PresentCluster
from elastic_core.spec.inputs.sweeps import Sweep
from elastic_core.spec.job_changes import JobChanges

MOST_AT_ONCE = 1000  # jobs of one request


def check_many(job_ids: Sequence[str]) -> list[str]:
    """Each once, in order. Raises `UserError` for too many."""
    different = list(dict.fromkeys(job_ids))
    if len(different) > MOST_AT_ONCE:
        raise UserError(f"{len(different)} jobs are named; at most {MOST_AT_ONCE} go at once. Send less at once")
    return different


class JobRecords(Protocol):
    """What the ledger knows of jobs and their segments. Reads only."""

    def job(self, job_id: str) -> JobStatus:
        """The job as it is now, with progress that is not committed yet."""

    def jobs(self, active_only: bool = False, group: str | None = None) -> list[JobStatus]:
        """All jobs, or those that are active, or of this sweep, in order of submission."""

    def jobs_that_registered(self, model: str, version: str) -> list[JobStatus]:
        """Those whose results say that they registered this version of a model, in order of submission.

        More than one where the numbers of versions began at 1 again, on another MLflow server.
        """

    def segment(self, segment_id: str) -> SegmentStatus:
        """The segment as it is now."""

    def segments(self, job_id: str) -> list[SegmentStatus]:
        """The job's segments by index, over all lineages."""

    def groups_of(self, job_id: str) -> list[JobGroup]:
        """The process groups that were given slots for the job, the first first, over all lineages."""

    def live_epochs(self, job_ids: Sequence[str]) -> list[int]:
        """Under which these jobs' processes may still write files: of their leases that hold slots, in order."""

    def checkpoints(self, job_id: str) -> list[CheckpointRecord]:
        """The job's checkpoints that were not swept, oldest first, over all lineages; corrupt ones say so."""

    def stored_checkpoints(self, job_id: str) -> list[StoredCheckpoint]:
        """Where the files of `checkpoints` are, and no more of them."""

    def finished_runs(self, limit: int, of_unknown_end: bool | None = None) -> list[FinishedRun]:
        """The last `limit` jobs that have trained, to their end or not, with imported history; the oldest first.
        `of_unknown_end`: only those with a target loss or patience, or only those without."""

    def forecasts(self, job_id: str) -> list[Forecast]:
        """What was expected of the job over its life, oldest first, over all lineages: those that were kept."""

    def forecast_report(self, limit: int) -> ForecastReport:
        """How forecasts turned out, over the last `limit` jobs that ended with any."""

    def outlook(self, spec: JobSpec, facts: JobFacts) -> Outlook:
        """How much work a job like this is and what its steps take, forecast from the jobs that there were. Nothing is
        submitted. Empty where the control plane uses no predictors."""

    def audit_records(
        self, job_ids: Sequence[str] | None = None, actor: str | None = None, limit: int = 100,
        before: int | None = None,
    ) -> list[AuditRecord]:  # fmt: skip
        """The last `limit` actions, of these jobs and this actor if given, newest first; refused ones, too. `before`:
        of those with a smaller number, for the next page."""

    def reads(self, job_id: str) -> list[Mapping[str, Any]]:
        """The `fingerprints` of every commit of the job's current lineage, in order of step."""


class JobControl(JobRecords, Protocol):
    """The life of a job: it is active, then finished, failed or cancelled."""

    def start_job(self, job_id: str, spec: JobSpec, warm_start: str | None = None) -> Submission:
        """The run that takes care of the job is started, or was before by the same request.

        It inspects the task, records the job (`submit`), drives it, evaluates and registers the model. A request that
        was refused before is tried again. Raises `Conflict` for another spec under the same id, `UserError` for what
        can be seen to be wrong without the task's code: entry point, pool, queue.
        """

    def start_sweep(self, group: str, sweep: Sweep, warm_start: str | None = None) -> SweepStarted:
        """`start_job` for every member of a sweep, once all of them were seen to be right, and as many as fit into
        some seconds; asked again it goes on. Nothing is started where one is wrong: raises as `start_job`, with which.
        """

    def fork_job(
        self, job_id: str, checkpoint_id: int, changes: Mapping[str, Any], code_now: bool = False
    ) -> Submission:
        """A new job goes on from a checkpoint of any job: with its optimizer, schedule, batch controller and cursor.

        Its spec is the parent's as that was submitted, with `changes`, a part of a spec; its work counts from the
        beginning of the parent's training. It runs the parent's pinned code, or with `code_now` the project's as that
        is when it starts. Whoever asks must be allowed to submit it and to act on the parent. Raises `NotFound` for an
        unknown checkpoint, `UserError` for one that cannot be read any more and for what may not change, `Conflict`
        for another job under the same id.
        """

    def submission(self, job_id: str) -> Submission:
        """What became of `start_job`, or of the form's run of this name. Raises `NotFound` for an unknown id."""

    def check_submission(self, job_id: str, spec: JobSpec, warm_start: str | None = None) -> None:
        """Raises what `submit` would raise whatever the facts: asked before the task's code is imported."""

    def submit(self, job_id: str, spec: JobSpec, facts: JobFacts, warm_start: str | None = None) -> JobStatus:
        """The job is recorded with its first segment, or was before with the same spec under this id.

        For the run that takes care of it. Whoever wants a job asks `start_job`; one that was only recorded gets its
        run by reconciliation.

        `warm_start` is the uri of a checkpoint whose weights the first segment starts from (step and cursor at 0).
        Raises `Conflict` for another spec under the same id, `UserError` for a spec that the cluster can never run.
        """

    def check_attach(self, job_id: str) -> None:
        """Raises `Forbidden` where the caller may not act on the job: asked before another run takes care of it."""

    def cancel(self, job_id: str, reason: str) -> JobStatus:
        """An active job is cancelled and its leases are fenced; its slots are free once its processes are gone.

        A job that has ended stays as it ended.
        """

    def cancel_jobs(self, job_ids: Sequence[str], reason: str) -> list[CancelOutcome]:
        """`cancel` for each of them, in a transaction each, in this order; one that is refused stops no other.

        Raises `UserError` for more than `MOST_AT_ONCE` of one request; clients ask in parts.
        """

    def fail(self, job_id: str, error: str) -> JobStatus:
        """As `cancel`, but the job has failed with this error."""

    def revive(self, job_id: str) -> JobStatus:
        """A failed or cancelled job is active again, from its last good checkpoint, with its code as that is then.

        An active job is left as it is. Raises `Conflict` for one that trained to its end.
        """

    def rollback(self, job_id: str, checkpoint_id: int) -> JobStatus:
        """The job is active in a new lineage from a named checkpoint: the only way a job's step goes back.

        Raises `UserError` for a checkpoint that is not the job's, is corrupt, or was swept.
        """

    def pause(self, job_id: str, reason: str) -> JobStatus:
        """The job is to have no slots until it is resumed, whatever policy decides. One that holds some is asked for a
        boundary, and commits there. Paused already, it keeps the first reason.

        Raises `Conflict` for one that has ended.
        """

    def resume(self, job_id: str) -> JobStatus:
        """A paused job, also one that is to be stopped, wants slots again. Raises `Conflict` for one that has ended."""

    def stop(self, job_id: str, reason: str) -> JobStatus:
        """The job ends as cancelled with its next commit, for which it is asked now; at once where it holds no slots.

        Raises `Conflict` for one that has ended otherwise.
        """

    def set_job(self, job_id: str, changes: JobChanges) -> JobStatus:
        """What is given counts from the next decision on, which this asks for; its spec stays as it was submitted.

        Raises `Conflict` for a job that has ended, `UserError` for what contradicts its spec or can never run here.
        """

    def checkpoint_now(self, job_id: str, reason: str) -> SegmentStatus:
        """The segment that runs is asked for a boundary, where it commits; the same processes go on. Raises `Conflict`
        for a job that holds no slots."""

    def record_results(self, job_id: str, results: Mapping[str, Any]) -> JobStatus:
        """These results stand beside those of before; one of the same name is replaced."""


class SegmentControl(JobRecords, Protocol):
    """A segment's way: it asks for its slots, its processes get their order, and are asked for a boundary."""

    def acquire(self, segment_id: str) -> SegmentStatus:
        """The segment has asked for its slots: it is granted, or waits. Ask `segment`, or this again.

        A segment that holds slots, or is over, is left as it is.
        """

    def ensure_segment_runs(self, job_id: str, after: str | None = None) -> list[str]:
        """The job's open segment has a run that works for it, and those between it and `after`, if given, have one too.

        Those went by while nobody looked, in the same processes: their runs show them. Returns what was done, in words.
        """

    def launch_order(self, segment_id: str) -> LaunchOrder:
        """What to start under the live epoch. Raises `Conflict` when the segment holds no live lease."""

    def revoke(self, segment_id: str, reason: str) -> SegmentStatus:
        """A running segment is asked to reach a boundary. A segment that holds nothing is left as it is."""


class PoolControl(Protocol):
    """The slots that there are, and what hosts and stores found out: processes and files that are gone."""

    def set_cluster(self, cluster: PresentCluster) -> None:
        """The pool has these nodes, or none, and these queues. Leases on slots that have left it are fenced."""

    def nodes(self) -> list[NodeStatus]:
        """All nodes, those that have left too, by name."""

    def cluster(self) -> ClusterShown:
        """Nodes, slots, who holds each, and who waits: of one moment."""

    def set_aside_node(self, node: str, reason: str, leaves_at: float | None = None) -> NodeStatus:
        """The node gets no further slots; what runs there moves at a boundary, once there is room elsewhere.

        `leaves_at` (Unix seconds): until then the node is there; what runs on it is asked for a boundary in time, room
        or not. One that is set aside already keeps its reason, and goes when this says. Raises `NotFound` for an
        unknown node, `UserError` without a reason.
        """

    def take_back_node(self, node: str) -> NodeStatus:
        """The node is used again, and what happened on it before counts no more. Raises `NotFound`."""

    def process_group_gone(self, origin_epoch: int, report: ExitReport) -> None:
        """No process of the chain that began with this epoch is left: its slots are free.

        The segment has lost its attempt, unless it had ended before; a user's error has failed the job. A chain that
        holds nothing (any more) is passed over.
        """

    def reconcile(self, groups: Sequence[ProcessGroup], listed_at: float | None = None) -> ReconcileAnswer:
        """The ledger agrees with what one host says of its process groups; leases that were not renewed are fenced.

        `listed_at`: when the host listed them, Unix seconds; None: just now. That a group is not on the list says
        nothing of one that was started since.

        The answer is what is left for others: groups to stop, segments and jobs that should have runs, checkpoints
        that may be deleted.
        """

    def swept(self, checkpoint_ids: Sequence[int]) -> None:
        """These checkpoints are gone from the store. Those that were so before, or never were, are passed over."""


class ModelControl(Protocol):
    """Which version of a registered model is its champion; for who may act on the job that made the version."""

    def promote(
        self, model: str, version: str, reason: str = "by hand", instead_of: str | None = None
    ) -> ChampionMoved:
        """The version is the champion, whatever its metrics; asking twice is asking once. Raises `NotFound`.

        `instead_of`: only as long as this version is the champion, or with an empty one nobody; else it raises
        `Conflict`.
        """

    def roll_back_model(self, model: str, to: str) -> ChampionMoved:
        """The champion of before, version `to`, is the champion again; asking twice is asking once.

        Raises `Conflict` where another version is the champion of before.
        """


class DecisionControl(Protocol):
    """What is decided for the pool, and from what."""

    def decide(self, trigger: str) -> int:
        """A decision was asked for, and made unless another process is at it; the scheduling version."""

    def snapshot(self) -> Snapshot:
        """What a policy would be asked with now."""

    def last_plan(self) -> Plan | None:
        """The plan of the last decision; None before the first."""

    def policy(self) -> PolicyInForce:
        """Who decides now."""

    def set_policy(self, policy: str | None) -> PolicyInForce:
        """This policy decides from now on, also after restarts; None: the configured one again.

        What runs goes on; the next decision, which this asks for, is the new policy's, with a state of its own. Raises
        `UserError` for a policy that does not exist.
        """

    def explain(self, job_id: str) -> Explanation:
        """The last decision that spoke of the job, and what it said."""


class ServiceControl(JobControl, SegmentControl, PoolControl, ModelControl, DecisionControl, Protocol):
    """All of it, as it travels: `POST <base>/service/<method>`."""
