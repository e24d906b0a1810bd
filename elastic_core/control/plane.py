"""The control plane in process: `ServiceControl` over the ledger, and `TrainerControl` for a trainer's token.

Thin: each call is one transaction of the modules beside this one, followed by a decision where it was a scheduling
event. Use `open_control(settings)`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import copy
from functools import partial
from typing import Any

from elastic_core.control import sweep_starts
from elastic_core.control.job_actions import JobActions
from elastic_core.control.job_answers import JobAnswers
from elastic_core.control.job_list import JobsWanted, page_of
from elastic_core.control.ledger import finished, forecast_rows, history, profiles, reads
from elastic_core.control.ledger.database import Ledger, Tx
from elastic_core.control.ledger.feed import LedgerFeed
from elastic_core.control.ledger_trainer import LedgerTrainer, group_gone
from elastic_core.control.metrics.meter import Meter
from elastic_core.control.paces import Paces
from elastic_core.control.scheduling import chosen_policy
from elastic_core.control.scheduling.allocator import Allocator, Replay, replay
from elastic_core.control.scheduling.deciders import Aside, Decider, DecidesHere, InAThread, at_once
from elastic_core.control.scheduling.decision_process import DecisionProcess
from elastic_core.control.scheduling.decision_records import recorded
from elastic_core.control.scheduling.policy_process import PolicyProcess
from elastic_core.control.seen_lately import SeenLately
from elastic_core.control.teams import audit_trail, node_events
from elastic_core.control.teams.permissions import About, Action
from elastic_core.control.transitions import (
    ledger_reconcile,
    lifecycle,
    node_health,
    removable,
    retention,
    start_job,
)
from elastic_core.control.transitions import pool_changes as pool
from elastic_core.control.waiting_jobs import WaitingJobs
from elastic_core.domain import Plan, SegmentState, Snapshot
from elastic_core.errors import InfrastructureError, UserError
from elastic_core.host.steady_clock import SteadyClock
from elastic_core.logs import get_logger
from elastic_core.protocol.callers import Caller
from elastic_core.protocol.cluster.cluster_timeline import NodeEvent
from elastic_core.protocol.forecasts import Forecast, ForecastReport, Outlook
from elastic_core.protocol.job_runs import Champions, JobRuns
from elastic_core.protocol.process_groups import ExitReport, LaunchOrder, ProcessGroup, ReconcileAnswer
from elastic_core.protocol.records import (
    AuditRecord,
    DecisionListed,
    DecisionRecord,
    Explanation,
    FinishedRun,
    JobFacts,
    JobStatus,
    NodeStatus,
    PastJob,
    PolicyInForce,
    SegmentStatus,
    Submission,
    SweepStarted,
)
from elastic_core.protocol.rest.answers import JobPage
from elastic_core.protocol.tokens import KeyFile, TrainerTokens, read_secret
from elastic_core.settings import Settings
from elastic_core.spec import JobSpec, PresentCluster
from elastic_core.spec.inputs.sweeps import Sweep, expand
from elastic_core.text import plural

log = get_logger(__name__)


class LedgerControl(JobActions, JobAnswers):
    """`ServiceControl` on a ledger's database. Safe to use from many threads; several processes may have one each.

    `runs` starts the runs that take care of jobs, `champions` keeps models' champions; without one, what needs it says
    so. `decider` asks policies, by default in this process; `aside` is given decisions that nobody has to wait for, and
    by default makes them at once; `process` makes decisions about many jobs. `replays` is asked where somebody wants a
    decision made again, which must not hold up those of now. `open_control` has processes for all of them, and a thread
    for what is aside.
    """

    def __init__(
        self, ledger: Ledger, settings: Settings, trainer_secret: bytes | KeyFile, runs: JobRuns | None = None,
        decider: Decider | None = None, aside: Aside = at_once, replays: Decider | None = None,
        champions: Champions | None = None, process: DecisionProcess | None = None,
    ) -> None:  # fmt: skip
        self._ledger = ledger
        self.aside = aside
        self._replays = replays or DecidesHere()
        self._runs, self._champions = runs, champions
        self._tokens = TrainerTokens(trainer_secret)
        self._lately, self._paces = SeenLately(settings), Paces()
        self._waiting = WaitingJobs()
        self._started_at = ledger.clock()
        self._upkeep_due = retention.Due(self._started_at)
        self._caller: Caller | None = None
        self.settings = settings
        self.allocator = Allocator(ledger, settings, decider=decider, aside=aside, process=process)
        self.feed = LedgerFeed(ledger)
        self.meter = Meter(ledger)

    def now(self) -> float:
        """The ledger's time."""
        return self._ledger.clock()

    def close(self) -> None:
        self.allocator.close()
        self._replays.close()
        self._ledger.close()

    def acting(self, caller: Caller | None) -> LedgerControl:
        """The same control plane on behalf of a caller, who is asked for the right to act, and recorded.

        None: the platform itself, which does what it has to.
        """
        view = copy(self)
        view._caller = caller
        return view

    def trainer(self, token: str, sent_at: float | None = None) -> LedgerTrainer:
        """`sent_at`: when it asks, by its own clock; None: its clock is this one. Raises `Unauthorized` for a token
        that is not ours."""
        claims = self._tokens.read(token)
        return LedgerTrainer(
            self._ledger, self.allocator, self.aside, self._lately, self._paces, self._tokens, claims, sent_at
        )

    # jobs

    def start_job(self, job_id: str, spec: JobSpec, warm_start: str | None = None) -> Submission:
        with audit_trail.asked(
            self._ledger, self._caller, Action.SUBMIT, lambda tx: audit_trail.of_spec(tx, job_id, spec)
        ):
            return start_job.start_job(self._ledger, self._job_runs(), job_id, spec, warm_start, self._caller)

    def start_sweep(self, group: str, sweep: Sweep, warm_start: str | None = None) -> SweepStarted:
        until, members = sweep_starts.deadline(), expand(group, sweep)
        there = sweep_starts.check_all(self._ledger, self._job_runs(), members, warm_start, self._caller)
        return sweep_starts.start_all(
            group, members, there, until, lambda one: self.start_job(one.job_id, one.spec, warm_start)
        )

    def fork_job(
        self, job_id: str, checkpoint_id: int, changes: Mapping[str, Any], code_now: bool = False
    ) -> Submission:
        runs, caller = self._job_runs(), self._caller

        def work(tx: Tx) -> bool:
            spec = lifecycle.spec_of_fork(tx, checkpoint_id, changes)
            audit_trail.act_too(tx, caller, Action.SUBMIT, audit_trail.of_spec(tx, job_id, spec))
            return lifecycle.fork(tx, job_id, checkpoint_id, spec, code_now, caller)

        def parent(tx: Tx) -> About:
            return audit_trail.of_job(tx, lifecycle.fork_source(tx, checkpoint_id).job_id)

        audit_trail.act(self._ledger, caller, Action.FORK, parent, f"checkpoint {checkpoint_id} as job {job_id}", work)
        start_job.start_if_lost(self._ledger, runs, job_id, caller)
        return start_job.submission(self._ledger, runs, job_id)

    def submission(self, job_id: str) -> Submission:
        return start_job.submission(self._ledger, self._job_runs(), job_id)

    def _job_runs(self) -> JobRuns:
        if self._runs is None:
            raise InfrastructureError(
                "this control plane has no way to Airflow, where jobs are started: ask the one in Airflow's API server "
                "(`elastic status` says where it is)"
            )
        return self._runs

    def check_submission(self, job_id: str, spec: JobSpec, warm_start: str | None = None) -> None:
        caller = self._submitter(job_id)
        about = partial(audit_trail.of_spec, job_id=job_id, spec=spec)
        with audit_trail.asked(self._ledger, caller, Action.SUBMIT, about, only_check=True):
            self._ledger.read(lambda tx: lifecycle.check_request(tx, job_id, spec, warm_start, caller))

    def _submitter(self, job_id: str) -> Caller | None:
        """Who asks; nobody where the job is known: it is submitted already."""
        return None if self._ledger.read(lambda tx: audit_trail.known(tx, job_id)) else self._caller

    def submit(self, job_id: str, spec: JobSpec, facts: JobFacts, warm_start: str | None = None) -> JobStatus:
        caller = self._submitter(job_id)
        audit_trail.act(
            self._ledger, caller, Action.SUBMIT, lambda tx: audit_trail.of_spec(tx, job_id, spec), "",
            lambda tx: lifecycle.submit(tx, job_id, spec, facts, warm_start, caller), once=True,
        )  # fmt: skip
        return self.job(job_id)

    def jobs(self, active_only: bool = False, group: str | None = None) -> list[JobStatus]:
        return self._ledger.read(lambda tx: self._waiting.placed(tx, reads.jobs(tx, active_only, group)))

    def jobs_page(self, wanted: JobsWanted) -> JobPage:
        return self._ledger.read(lambda tx: page_of(tx, wanted, self._waiting))

    def jobs_that_registered(self, model: str, version: str) -> list[JobStatus]:
        return self._ledger.read(lambda tx: reads.jobs_that_registered(tx, model, version))

    # segments

    def acquire(self, segment_id: str) -> SegmentStatus:
        status = self.segment(segment_id)
        if status.state == SegmentState.CREATED:
            self.allocator.change(lambda tx: lifecycle.ask(tx, segment_id))
        elif status.state != SegmentState.WAITING:
            return status
        self.allocator.decide_pending()
        return self.segment(segment_id)

    def ensure_segment_runs(self, job_id: str, after: str | None = None) -> list[str]:
        segments = self._ledger.read(lambda tx: reads.segments_from(tx, job_id, after))
        return self._job_runs().ensure_segments(job_id, start_job.segments_to_show(segments, after))

    def launch_order(self, segment_id: str) -> LaunchOrder:
        return self._ledger.read(lambda tx: reads.order_of(tx, self._tokens, segment_id))

    def revoke(self, segment_id: str, reason: str) -> SegmentStatus:
        audit_trail.act(
            self._ledger, self._caller, Action.BOUNDARY, lambda tx: audit_trail.of_segment(tx, segment_id), reason,
            lambda tx: lifecycle.revoke(tx, segment_id, reason),
        )  # fmt: skip
        self.allocator.decide_soon()
        return self.segment(segment_id)

    def process_group_gone(self, origin_epoch: int, report: ExitReport) -> None:
        self.allocator.change(lambda tx: group_gone(tx, origin_epoch, report))
        self.allocator.decide_pending()

    # the pool

    def set_cluster(self, cluster: PresentCluster) -> None:
        words = f"{plural(len(cluster.nodes), 'node')}, {plural(len(cluster.queues), 'queue')}"
        self._change_pool(Action.SET_CLUSTER, "the cluster", words, lambda tx: pool.set_cluster(tx, cluster))
        self.allocator.decide_pending()

    def nodes(self) -> list[NodeStatus]:
        return self._ledger.read(node_health.statuses)

    def node_events(self, since: float, until: float | None = None) -> list[NodeEvent]:
        """What happened to nodes at or after `since` (Unix seconds) and not after `until`, in order."""
        return self._ledger.read(lambda tx: node_events.node_events(tx, since, until))

    def set_aside_node(self, node: str, reason: str, leaves_at: float | None = None) -> NodeStatus:
        by = self._caller.name if self._caller is not None else "the operator"
        return self._change_node(
            node, Action.SET_ASIDE, reason, lambda tx: node_health.set_aside(tx, node, reason, by, leaves_at)
        )

    def take_back_node(self, node: str) -> NodeStatus:
        return self._change_node(node, Action.TAKE_BACK, "", lambda tx: node_health.take_back(tx, node))

    def _change_node(self, node: str, action: Action, detail: str, work: Callable[[Tx], bool]) -> NodeStatus:
        self._change_pool(action, f"node {node}", detail, work)
        self.allocator.decide_soon()
        return next(status for status in self.nodes() if status.name == node)

    def reconcile(self, groups: Sequence[ProcessGroup], listed_at: float | None = None) -> ReconcileAnswer:
        reconciled, failing = self.allocator.change(
            lambda tx: (
                ledger_reconcile.reconcile_ledger(tx, groups, self._started_at, listed_at),
                node_health.judge_failures(tx),
            )
        )
        self.allocator.keep_up()
        done = self._upkeep()
        return self._ledger.read(
            lambda tx: ReconcileAnswer(
                stop=reconciled.stop,
                actions=(*reconciled.actions, *failing, *done),
                active_segments=ledger_reconcile.active_segments(tx),
                active_jobs=ledger_reconcile.active_jobs(tx),
                removable_checkpoints=removable.removable(tx),
                ended_lately=removable.ended_lately(tx),
            )
        )

    def _upkeep(self) -> tuple[str, ...]:
        """Now and then. Never in the way of what has to agree again: the next time tries it anew."""
        if not self._upkeep_due.now(self._ledger.clock()):
            return ()
        try:
            aside = self._ledger.change(node_health.judge_stragglers)
            self.allocator.decide_pending()
            profiles.sum_up_leases(self._ledger)
            removed = retention.remove_old(self._ledger)
        except Exception:
            log.exception("upkeep of the ledger failed; it is tried again", seconds=retention.EVERY_SECONDS)
            return ()
        return (*aside, *((f"removed as too old: {removed}",) if removed != retention.Removed() else ()))

    def swept(self, checkpoint_ids: Sequence[int]) -> None:
        self._ledger.write(lambda tx: removable.swept(tx, checkpoint_ids))

    # decisions

    def decide(self, trigger: str) -> int:
        self.allocator.decide(trigger)
        return self._ledger.read(lambda tx: tx.scheduling().version)

    def snapshot(self) -> Snapshot:
        return self.allocator.snapshot()

    def last_plan(self) -> Plan | None:
        return self._ledger.read(reads.last_plan)

    def policy(self) -> PolicyInForce:
        return self._ledger.read(chosen_policy.in_force)

    def set_policy(self, policy: str | None) -> PolicyInForce:
        words = f"policy {policy or 'as configured'}"
        self._change_pool(Action.SET_POLICY, words, "", lambda tx: chosen_policy.choose(tx, policy))
        self.allocator.decide_soon()
        return self.policy()

    def _change_pool(self, action: Action, subject: str, detail: str, work: Callable[[Tx], bool | None]) -> None:
        audit_trail.act(self._ledger, self._caller, action, lambda _: About(subject=subject), detail, work)

    def audit_records(
        self, job_ids: Sequence[str] | None = None, actor: str | None = None, limit: int = 100,
        before: int | None = None,
    ) -> list[AuditRecord]:  # fmt: skip
        found = partial(audit_trail.records, job_ids=job_ids, actor=actor, limit=limit, before=before)
        return self._ledger.read(found)

    def decisions(self, limit: int, before: int | None = None) -> list[DecisionListed]:
        return self._ledger.read(lambda tx: reads.decisions(tx, limit, before))

    def decision(self, decision_id: int) -> DecisionRecord:
        return self._ledger.read(lambda tx: reads.decision(tx, decision_id))

    def explain(self, job_id: str) -> Explanation:
        return self._ledger.read(lambda tx: reads.explain(tx, job_id))

    def replay(self, decision_id: int) -> Replay:
        """Make a recorded decision again from its inputs. Raises `NoAnswer` where its policy takes too long."""
        found = self._ledger.read(lambda tx: recorded(tx, decision_id))
        return replay(found, self._replays)

    def history(self, limit: int) -> list[PastJob]:
        """The last `limit` jobs to be submitted, whatever became of them, the oldest first."""
        return self._ledger.read(lambda tx: history.past_jobs(tx, limit))

    def finished_runs(self, limit: int, of_unknown_end: bool | None = None) -> list[FinishedRun]:
        return self._ledger.read(lambda tx: finished.finished_runs(tx, limit, of_unknown_end))

    def forecasts(self, job_id: str) -> list[Forecast]:
        return self._ledger.read(lambda tx: forecast_rows.of_job(tx, tx.job(job_id).id))

    def forecast_report(self, limit: int) -> ForecastReport:
        return self._ledger.read(lambda tx: forecast_rows.forecast_report(tx, limit))

    def outlook(self, spec: JobSpec, facts: JobFacts) -> Outlook:
        return self.allocator.outlook(spec, facts)

    def import_runs(self, runs: Sequence[FinishedRun]) -> int:
        """Runs of elsewhere are learnt from beside the ledger's jobs; known ids stay as they are. How many are new."""
        with self._recorded(Action.IMPORT, "the history", plural(len(runs), "run")):
            return self._ledger.write(lambda tx: finished.import_runs(tx, runs))

    def secrets_rotated(self, detail: str) -> None:
        """It was done at the host, in files: to be on record with who did it."""
        with self._recorded(Action.ROTATE, "the secrets", detail):
            pass

    def _recorded(self, action: Action, subject: str, detail: str) -> AbstractContextManager[audit_trail.Asked]:
        return audit_trail.asked(self._ledger, self._caller, action, lambda _: About(subject=subject), detail=detail)

    def reads(self, job_id: str) -> list[Mapping[str, Any]]:
        return self._ledger.read(lambda tx: reads.reads(tx, job_id))


def ledger_url(settings: Settings) -> str:
    """Of the settings, else of the embedded PostgreSQL, which `elastic up` writes to `secrets/ledger_url`."""
    return settings.ledger_url or read_secret(settings.secret_file("ledger_url")).decode()


def open_control(settings: Settings, runs: JobRuns | None = None, champions: Champions | None = None) -> LedgerControl:
    """Open the ledger. Raises `InfrastructureError` where it, or a secret, is not there (yet), `UserError` where it is
    a later release's."""
    url = ledger_url(settings)
    ledger = Ledger(url, settings, SteadyClock(settings.home.absolute()))
    try:
        ledger.check()
        secret = KeyFile(settings.secret_file("trainer"))
        policies, replays = (PolicyProcess(settings.decide_seconds, settings.decide_memory_mb) for _ in range(2))
        if runs is not None:  # an API server: it will decide, and nobody shall wait for the start of the process then
            policies.prepare()
        process = DecisionProcess(settings, url)
        return LedgerControl(ledger, settings, secret, runs, policies, InAThread(), replays, champions, process)
    except ValueError as error:
        ledger.close()
        raise InfrastructureError(str(error)) from error
    except (InfrastructureError, UserError):
        ledger.close()
        raise
