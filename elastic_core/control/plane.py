"""The control plane in process: `ServiceControl` over the ledger, and `TrainerControl` for a trainer's token.

Thin: each call is one transaction of the modules beside this one, followed by a decision where it was a scheduling
event. Use `open_control(settings)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from elastic_core.control.ledger import finished, forecast_rows, history, reads, views
from elastic_core.control.ledger.database import Ledger, Tx
from elastic_core.control.ledger.feed import LedgerFeed
from elastic_core.control.ledger.tables import SegmentRow
from elastic_core.control.scheduling import chosen_policy
from elastic_core.control.scheduling.allocator import Allocator, Replay, is_due, replay
from elastic_core.control.scheduling.deciders import Aside, Decider, InAThread, at_once
from elastic_core.control.scheduling.policy_process import PolicyProcess
from elastic_core.control.transitions import endings, ledger_reconcile, lifecycle, progress, removable, start_job
from elastic_core.control.transitions import pool_changes as pool
from elastic_core.control.transitions.commits import commit as make_commit
from elastic_core.control.transitions.handover import is_planned
from elastic_core.crashing import crash_here
from elastic_core.domain import JobState, Observation, Plan, SegmentState, Slot, Snapshot
from elastic_core.errors import InfrastructureError
from elastic_core.host.steady_clock import SteadyClock
from elastic_core.logs import get_logger
from elastic_core.protocol.forecasts import Forecast, ForecastReport
from elastic_core.protocol.job_runs import JobRuns
from elastic_core.protocol.process_groups import ExitReport, LaunchOrder, ProcessGroup, ReconcileAnswer
from elastic_core.protocol.records import (
    CheckpointRecord,
    Explanation,
    FinishedRun,
    JobFacts,
    JobStatus,
    PastJob,
    PolicyInForce,
    SegmentStatus,
    Submission,
)
from elastic_core.protocol.tokens import Claims, TrainerTokens, check_agent, check_trainer, read_secret
from elastic_core.protocol.trainer import Commit, CommitAnswer, Heartbeat, HeartbeatAnswer
from elastic_core.settings import Settings
from elastic_core.spec import ClusterSpec, JobSpec

log = get_logger(__name__)


class LedgerControl:
    """`ServiceControl` on a ledger's database. Safe to use from many threads; several processes may have one each.

    `runs` starts the runs that take care of jobs; without it `start_job` says that it cannot. `decider` asks policies,
    by default in this process; `aside` is given decisions that nobody has to wait for, and by default makes them at
    once. `open_control` has a process for the one and a thread for the other.
    """

    def __init__(
        self, ledger: Ledger, settings: Settings, trainer_secret: bytes, runs: JobRuns | None = None,
        decider: Decider | None = None, aside: Aside = at_once,
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self.aside = aside
        self._runs = runs
        self._tokens = TrainerTokens(trainer_secret)
        self._started_at = ledger.clock()
        self.settings = settings
        self.allocator = Allocator(ledger, settings, decider=decider)
        self.feed = LedgerFeed(ledger)

    def now(self) -> float:
        """The ledger's time."""
        return self._ledger.clock()

    def close(self) -> None:
        self.allocator.close()
        self._ledger.close()

    def trainer(self, token: str) -> LedgerTrainer:
        """Raises `Unauthorized` for a token that is not ours."""
        return LedgerTrainer(self, self._ledger, self._tokens, self._tokens.read(token))

    # jobs

    def start_job(self, job_id: str, spec: JobSpec, warm_start: str | None = None) -> Submission:
        return start_job.start_job(self._ledger, self._job_runs(), job_id, spec, warm_start)

    def submission(self, job_id: str) -> Submission:
        return start_job.submission(self._ledger, self._job_runs(), job_id)

    def _job_runs(self) -> JobRuns:
        if self._runs is None:
            raise InfrastructureError(
                "this control plane has no way to Airflow, where jobs are started: ask the one in Airflow's API server "
                "(`elastic status` says where it is)"
            )
        return self._runs

    def submit(self, job_id: str, spec: JobSpec, facts: JobFacts, warm_start: str | None = None) -> JobStatus:
        self._ledger.change(lambda tx: lifecycle.submit(tx, job_id, spec, facts, warm_start))
        return self.job(job_id)

    def job(self, job_id: str) -> JobStatus:
        return self._ledger.read(lambda tx: views.job_status(tx, tx.job(job_id)))

    def jobs(self, active_only: bool = False) -> list[JobStatus]:
        return self._ledger.read(lambda tx: reads.jobs(tx, active_only))

    def jobs_that_registered(self, model: str, version: str) -> list[JobStatus]:
        return self._ledger.read(lambda tx: reads.jobs_that_registered(tx, model, version))

    def cancel(self, job_id: str, reason: str) -> JobStatus:
        return self._change_job(job_id, lambda tx: lifecycle.stop(tx, job_id, JobState.CANCELLED, reason))

    def fail(self, job_id: str, error: str) -> JobStatus:
        return self._change_job(job_id, lambda tx: lifecycle.stop(tx, job_id, JobState.FAILED, error))

    def revive(self, job_id: str) -> JobStatus:
        return self._change_job(job_id, lambda tx: lifecycle.revive(tx, job_id))

    def rollback(self, job_id: str, checkpoint_id: int) -> JobStatus:
        return self._change_job(job_id, lambda tx: lifecycle.rollback(tx, job_id, checkpoint_id))

    def record_results(self, job_id: str, results: Mapping[str, Any]) -> JobStatus:
        return self._change_job(job_id, lambda tx: lifecycle.record_results(tx, job_id, results))

    def _change_job(self, job_id: str, work: Any) -> JobStatus:
        self._ledger.change(work)
        self.allocator.decide_pending()
        return self.job(job_id)

    # segments

    def segment(self, segment_id: str) -> SegmentStatus:
        return self._ledger.read(lambda tx: reads.segment(tx, segment_id))

    def segments(self, job_id: str) -> list[SegmentStatus]:
        return self._ledger.read(lambda tx: reads.segments(tx, job_id))

    def timeline(self, since: float) -> list[SegmentStatus]:
        """Segments of all jobs that held slots at or after `since`, by the time they were granted."""
        return self._ledger.read(lambda tx: reads.timeline(tx, since))

    def checkpoints(self, job_id: str) -> list[CheckpointRecord]:
        return self._ledger.read(lambda tx: reads.checkpoints(tx, job_id))

    def acquire(self, segment_id: str) -> SegmentStatus:
        status = self.segment(segment_id)
        if status.state == SegmentState.CREATED:
            self.allocator.change(lambda tx: lifecycle.ask(tx, segment_id))
        elif status.state != SegmentState.WAITING:
            return status
        self.allocator.decide_pending()
        return self.segment(segment_id)

    def ensure_segment_runs(self, job_id: str, after: str | None = None) -> list[str]:
        segments = self.segments(job_id)
        return self._job_runs().ensure_segments(job_id, start_job.segments_to_show(segments, after))

    def launch_order(self, segment_id: str) -> LaunchOrder:
        return self._ledger.read(lambda tx: reads.order_of(tx, self._tokens, segment_id))

    def revoke(self, segment_id: str, reason: str) -> SegmentStatus:
        self._ledger.change(lambda tx: lifecycle.revoke(tx, segment_id, reason))
        self.allocator.decide_pending()
        return self.segment(segment_id)

    def process_group_gone(self, origin_epoch: int, report: ExitReport) -> None:
        self.allocator.change(lambda tx: endings.group_gone(tx, origin_epoch, report))
        self.allocator.decide_pending()

    # the pool

    def set_cluster(self, cluster: ClusterSpec) -> None:
        self._ledger.change(lambda tx: pool.set_cluster(tx, cluster))
        self.allocator.decide_pending()

    def reconcile(self, groups: Sequence[ProcessGroup], listed_at: float | None = None) -> ReconcileAnswer:
        reconciled = self.allocator.change(
            lambda tx: ledger_reconcile.reconcile_ledger(tx, groups, self._started_at, listed_at)
        )
        self.allocator.predictors.refresh()
        self.allocator.predictors.renew()
        self.allocator.wake()
        return self._ledger.read(
            lambda tx: ReconcileAnswer(
                stop=reconciled.stop,
                actions=reconciled.actions,
                active_segments=ledger_reconcile.active_segments(tx),
                active_jobs=ledger_reconcile.active_jobs(tx),
                removable_checkpoints=removable.removable(tx),
            )
        )

    def swept(self, checkpoint_ids: Sequence[int]) -> None:
        self._ledger.write(lambda tx: removable.swept(tx, checkpoint_ids))

    # decisions

    def decide(self, trigger: str) -> int:
        def event(tx: Tx) -> None:
            tx.trigger = trigger

        self._ledger.change(event)
        self.allocator.decide_pending()
        return self._ledger.read(lambda tx: tx.scheduling().version)

    def snapshot(self) -> Snapshot:
        return self.allocator.snapshot()

    def last_plan(self) -> Plan | None:
        return self._ledger.read(reads.last_plan)

    def policy(self) -> PolicyInForce:
        return self._ledger.read(chosen_policy.in_force)

    def set_policy(self, policy: str | None) -> PolicyInForce:
        self._ledger.change(lambda tx: chosen_policy.choose(tx, policy))
        self.allocator.decide_pending()
        return self.policy()

    def explain(self, job_id: str) -> Explanation:
        return self._ledger.read(lambda tx: reads.explain(tx, job_id))

    def replay(self, decision_id: int) -> Replay:
        """Make a recorded decision again from its inputs."""
        return self._ledger.read(lambda tx: replay(tx, decision_id))

    def history(self, limit: int) -> list[PastJob]:
        """The last `limit` jobs to be submitted, whatever became of them, the oldest first."""
        return self._ledger.read(lambda tx: history.past_jobs(tx, limit))

    def finished_runs(self, limit: int) -> list[FinishedRun]:
        return self._ledger.read(lambda tx: finished.finished_runs(tx, limit))

    def forecasts(self, job_id: str) -> list[Forecast]:
        return self._ledger.read(lambda tx: forecast_rows.of_job(tx, tx.job(job_id).id))

    def forecast_report(self, limit: int) -> ForecastReport:
        return self._ledger.read(lambda tx: forecast_rows.forecast_report(tx, limit))

    def import_runs(self, runs: Sequence[FinishedRun]) -> int:
        """Runs of elsewhere are learnt from beside the ledger's jobs; known ids stay as they are. How many are new."""
        return self._ledger.write(lambda tx: finished.import_runs(tx, runs))

    def reads(self, job_id: str) -> list[Mapping[str, Any]]:
        return self._ledger.read(lambda tx: reads.reads(tx, job_id))


class LedgerTrainer:
    """`TrainerControl` for the processes of one token.

    What a trainer reports is committed before anything is decided from it: a decision that fails then is logged and
    left to the next event, because training must go on.
    """

    def __init__(self, control: LedgerControl, ledger: Ledger, tokens: TrainerTokens, claims: Claims) -> None:
        self._control = control
        self._ledger = ledger
        self._tokens = tokens
        self._claims = claims

    def heartbeat(self, beat: Heartbeat) -> HeartbeatAnswer:
        self._check()
        answer, due = self._ledger.write(
            lambda tx: (progress.heartbeat(tx, self._tokens, self._claims, beat), is_due(tx))
        )
        if due:  # aside: a heartbeat is answered while a policy thinks, or hangs
            self._control.aside(lambda: self._try_to_decide(self._control.allocator.wake))
        return answer

    def observe(self, observations: Sequence[Observation]) -> None:
        self._check()
        self._ledger.write(lambda tx: progress.observe(tx, self._claims, observations))

    def mark_bad(self, checkpoint_id: int, why: str) -> None:
        self._check()
        self._ledger.write(lambda tx: progress.mark_bad(tx, self._claims, checkpoint_id, why))

    def commit(self, commit: Commit) -> CommitAnswer:
        self._check()
        if not commit.final:
            return self._ledger.write(lambda tx: make_commit(tx, self._tokens, self._claims, commit))
        if not commit.finished and self._ledger.read(self._is_to_be_decided):
            # Decided before, not after: what the job gets next is then known when the lease could be handed over. A
            # boundary that the plan asked for, or waited for, carries it out; else the plan would be made again at
            # every one of its own steps, from a picture in which it is half carried out.
            self._try_to_decide(lambda: self._control.decide(f"boundary of {self._claims.segment_id}"))
            crash_here("boundary.decided")
        answer = self._ledger.change(lambda tx: make_commit(tx, self._tokens, self._claims, commit))
        self._try_to_decide(self._control.allocator.decide_pending)
        return answer

    def release_slots(self, slots: Sequence[Slot]) -> None:
        self._check()
        self._control.allocator.change(lambda tx: progress.release_slots(tx, self._claims, slots))
        self._try_to_decide(self._control.allocator.decide_pending)

    def exited(self, report: ExitReport) -> None:
        check_agent(self._claims)
        self._control.allocator.change(lambda tx: endings.group_gone(tx, self._claims.origin_epoch, report))
        self._try_to_decide(self._control.allocator.decide_pending)

    def _check(self) -> None:
        check_trainer(self._claims, self._ledger.clock())

    def _is_to_be_decided(self, tx: Tx) -> bool:
        segment = tx.session.get(SegmentRow, self._claims.segment_id)
        return segment is not None and SegmentState(segment.state).open and not is_planned(tx, segment)

    @staticmethod
    def _try_to_decide(decision: Any) -> None:
        try:
            decision()
        except Exception:
            log.exception("a decision failed; the next event or reconciliation makes it up")


def ledger_url(settings: Settings) -> str:
    """Of the settings, else of the embedded PostgreSQL, which `elastic up` writes to `secrets/ledger_url`."""
    return settings.ledger_url or read_secret(settings.secret_file("ledger_url")).decode()


def open_control(settings: Settings, runs: JobRuns | None = None) -> LedgerControl:
    """Open the ledger. Raises `InfrastructureError` where it, or a secret, is not there (yet)."""
    ledger = Ledger(ledger_url(settings), settings, SteadyClock(settings.home.absolute()))
    try:
        ledger.check()
        secret = read_secret(settings.secret_file("trainer"))
        policies = PolicyProcess(settings.decide_seconds, settings.decide_memory_mb)
        if runs is not None:  # an API server: it will decide, and nobody shall wait for the start of the process then
            policies.prepare()
        return LedgerControl(ledger, settings, secret, runs, policies, InAThread())
    except ValueError as error:
        ledger.close()
        raise InfrastructureError(str(error)) from error
    except InfrastructureError:
        ledger.close()
        raise
