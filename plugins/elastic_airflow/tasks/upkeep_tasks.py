"""The tasks of `elastic_reconcile` and `elastic_predictors`: each asks the core for work and logs what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from elastic_airflow.access import dag_runs
from elastic_airflow.access.behalf import who_marked
from elastic_airflow.access.driver import end_driver
from elastic_airflow.access.old_logs import due, remove_old_logs
from elastic_airflow.names import DRIVER, JOB_DAG, PREDICTORS_DAG, RUN, SEGMENT_DAG
from elastic_airflow.notifications.notifier_setting import usable_notifiers
from elastic_airflow.notifications.risk_notices import tell_of_risks
from elastic_airflow.operators import ElasticOperator
from elastic_airflow.outcomes import NOT_BEGUN
from elastic_core.domain import SegmentState
from elastic_core.errors import Forbidden, InfrastructureError
from elastic_core.host.process import stand_back
from elastic_core.protocol.records import JobStatus
from elastic_core.settings import Settings
from elastic_core.spec.form import JOB_ID
from elastic_core.text import plural

if TYPE_CHECKING:
    from elastic_core.protocol.http_client import HttpControl

AT_WORK = ("scheduled", "queued", "running")  # states of a task that will look at its job without being asked
TAKEN_UP_SECONDS = 30.0  # that whoever recorded a job has for the run, and the run for its driver


class RefitOperator(ElasticOperator):
    """What finished jobs teach about others. Returns what came of it, in words."""

    def execute(self, context: Any) -> str:
        from elastic_core.control.scheduling.predicting import refit

        stand_back()
        outcome = refit.refit_all(self.control(), Settings())
        self.log.info("%s", outcome)
        return outcome


class ReconcileOperator(ElasticOperator):
    """This host's processes against the ledger, then Airflow's runs against both. Returns what was put right."""

    def execute(self, context: Any) -> list[str]:
        from elastic_core.host.steady_clock import SteadyClock
        from elastic_core.launch import launchers
        from elastic_core.launch.host_reconcile import reconcile_host, sweep_store_in_time
        from elastic_core.launch.worker_logs import followed
        from elastic_core.launch.worker_logs.kept import KeptLogs
        from elastic_core.state.memory_tier import cache_servers
        from elastic_core.state.store_access import access_brokers

        settings, control = Settings(), self.control()
        launcher, clock = launchers.chosen(settings), SteadyClock(settings.home)
        answer = reconcile_host(control, launcher, clock)
        old = time.time() - settings.keep_days * 86_400
        launcher.remove_ended(old)
        followed.forget_old(settings.home, old)
        cache_servers.retain_jobs(settings, answer.active_jobs)
        if answer.active_jobs:
            access_brokers.start(settings)  # unless it runs
        passed_over: list[str] = []
        take_care = partial(self._take_care_of_job, control, clock())
        actions = [*answer.actions, *self._for_each(control, answer.active_jobs, take_care, passed_over)]
        start_run = partial(self._start_missing_segment_run, control)
        actions += self._for_each(control, answer.active_segments, start_run, passed_over)
        for action in actions:
            self.log.info("%s", action)
        self._have_predictors_fitted(settings)
        if removed := remove_old_logs(settings, time.time()):
            self.log.info("%d files of Airflow's logs were older than ELASTIC_KEEP_DAYS, and are removed", removed)
        told = self._tell_of_risks(control, settings, context)
        # Last: jobs write in the store, and what they make that cannot be deleted fails this task every minute.
        kept = KeptLogs.of(settings)

        def remove_kept() -> None:
            if due(settings.home / "kept-logs-looked-through", time.time()):
                kept.remove_old(old)

        sweep_store_in_time(control, kept.store, answer, remove_kept)
        if passed_over:
            several = plural(len(passed_over), "job or segment", "jobs or segments")
            raise InfrastructureError(f"{several} passed over, and all else was done: {passed_over[0]}")
        return actions + told

    def _tell_of_risks(self, control: HttpControl, settings: Settings, context: Any) -> list[str]:
        """Whatever fails here harms nothing of what has to agree."""
        try:
            told = tell_of_risks(control, usable_notifiers(settings, self.log), context, self.log)
        except Exception:
            self.log.exception("jobs at risk could not be told of; the next minute tries again")
            return []
        for words in told:
            self.log.info("%s", words)
        return told

    def _have_predictors_fitted(self, settings: Settings) -> None:
        """Aside: it takes minutes. What has to agree again does so without predictors."""
        from elastic_core.control.scheduling.predicting import refit

        now = time.time()
        try:
            if refit.claim(settings, now):
                self._start_fit(settings, f"fit-{int(now)}")
        except Exception:
            self.log.exception("the predictors are not fitted now; those before stay in force")

    def _start_fit(self, settings: Settings, run_id: str) -> None:
        from elastic_core.control.scheduling.predicting import refit

        try:
            dag_runs.start(PREDICTORS_DAG, run_id, {}, note="an hour has passed, or history was imported")
        except Exception:
            refit.refit_soon(settings)  # its DAG may not have been read yet: the next minute tries again
            raise
        self.log.info("run %s of %s fits the predictors anew", run_id, PREDICTORS_DAG)

    def _for_each(
        self, control: HttpControl, ids: Sequence[str], care: Callable[[str], list[str]], passed_over: list[str]
    ) -> list[str]:
        """What was done for all of them. What fails for one, as where Airflow does not take a run of that name, is that
        one's trouble: the others are taken care of, and it is told of at the end."""
        actions = []
        for one in ids:
            try:
                actions += care(one)
            except Exception as fault:
                self.log.exception("%s was passed over", one)
                passed_over.append(f"{one}: {type(fault).__name__}: {fault}")
                if isinstance(fault, InfrastructureError):
                    control.policy()  # where the API itself is away this task ends: it does not wait once for each
        return actions

    def _take_care_of_job(self, control: HttpControl, now: float, job_id: str) -> list[str]:
        """Where no task drives an active job: one whose task was marked is cancelled, any other gets a new run, also
        where only its task was deleted.

        `now`: by the ledger's clock.
        """
        job = control.job(job_id)
        driver = job.results.get(DRIVER)
        if driver is None:
            return self._start_first_run(control, job, now)
        if driver.get("ended"):
            return self._start_resume_run(control, job, "was revived")
        if dag_runs.presence(driver["dag_id"], driver["run_id"]) is dag_runs.Presence.MISSING:
            return self._start_resume_run(control, job, "had lost its run")
        state = _state_of(driver)
        if state in dag_runs.MARKED:
            return self._end_marked(control, job, driver, state)
        if state in dag_runs.LOST:
            return self._start_resume_run(control, job, f"had lost its task ({state})")
        return []

    def _end_marked(
        self, control: HttpControl, job: JobStatus, driver: Mapping[str, Any], state: str | None
    ) -> list[str]:
        """The job is cancelled for whoever marked its task; where they may not, it gets a run that goes on with it."""
        marked = control.acting(who_marked(*_task_of(driver)))
        try:
            ended = marked.cancel(job.job_id, f"its task was marked as {state} by a user in Airflow")
        except Forbidden as refusal:
            self.log.warning("job %s goes on: %s", job.job_id, refusal)
            return self._start_resume_run(control, job, "goes on: who marked its task may not cancel it")
        end_driver(control, ended)
        return [f"job {job.job_id} is cancelled: its task was marked as {state}"]

    def _start_first_run(self, control: HttpControl, job: JobStatus, now: float) -> list[str]:
        """For a job that was recorded by a script, or whose run was lost before it could drive the job."""
        if now - job.submitted_at < TAKEN_UP_SECONDS:
            return []
        run = job.results.get(RUN) or {"dag_id": JOB_DAG, "run_id": job.job_id}
        presence = dag_runs.presence(run["dag_id"], run["run_id"])
        if presence is dag_runs.Presence.OPEN:
            return []
        if RUN in job.results or presence is dag_runs.Presence.FINISHED:
            return self._start_resume_run(control, job, "had lost its run")
        dag_runs.start(JOB_DAG, job.job_id, {JOB_ID: job.job_id}, note="the job was recorded without a run")
        return [f"job {job.job_id} had no run: started one"]

    def _start_resume_run(self, control: HttpControl, job: JobStatus, why: str) -> list[str]:
        action = dag_runs.ensure_resumed_run(control, job, why)
        return [action] if action else []

    def _start_missing_segment_run(self, control: HttpControl, segment_id: str) -> list[str]:
        run = dag_runs.presence(SEGMENT_DAG, segment_id)
        if run is dag_runs.Presence.FINISHED:
            return _restart_ended(control, segment_id)
        if run is dag_runs.Presence.MISSING and not _about_to_be_started(control, segment_id):
            conf = {"segment_id": segment_id}
            if dag_runs.start(SEGMENT_DAG, segment_id, conf, note="the segment had no run"):
                return [f"segment {segment_id} had no run: started one"]
        return []


def _restart_ended(control: HttpControl, segment_id: str) -> list[str]:
    """The run of a segment has ended, and the segment waits for it to launch its processes: it does its work again.

    The trigger of its job's task does so sooner, where there is one.
    """
    segment = control.segment(segment_id)
    return control.ensure_segment_runs(segment.job_id) if segment.state in NOT_BEGUN else []


def _about_to_be_started(control: HttpControl, segment_id: str) -> bool:
    """Nobody has asked for the segment's slots yet, and the job's own run is on its way to: it starts the run then."""
    segment = control.segment(segment_id)
    if segment.state is not SegmentState.CREATED:
        return False
    results = control.job(segment.job_id).results
    driver, run = results.get(DRIVER), results.get(RUN)
    if driver is not None:
        return _state_of(driver) in AT_WORK
    return run is not None and dag_runs.presence(run["dag_id"], run["run_id"]) is dag_runs.Presence.OPEN


def _state_of(driver: Mapping[str, Any]) -> str | None:
    return dag_runs.task_state(*_task_of(driver))


def _task_of(driver: Mapping[str, Any]) -> tuple[str, str, str, int]:
    """DAG, run, task and map index."""
    return driver["dag_id"], driver["run_id"], driver["task_id"], driver.get("map_index", -1)
