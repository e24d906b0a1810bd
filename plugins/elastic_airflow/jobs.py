"""The other tasks of `elastic_job` and `elastic_reconcile`: each asks the core for work and logs what came of it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from elastic_airflow import runs
from elastic_airflow.driver import end_driver
from elastic_airflow.names import DRIVER, JOB_DAG, SEGMENT_DAG
from elastic_airflow.operators import ElasticOperator, submit
from elastic_core.control.contract import JobStatus
from elastic_core.domain import JobState
from elastic_core.errors import InfrastructureError, UserError
from elastic_core.settings import Settings
from elastic_core.spec.form import JOB_ID, spec_from_form

if TYPE_CHECKING:
    from elastic_core.control.client import HttpControl
    from elastic_core.track.registry import RegisteredVersion

ENDING_SECONDS = 60.0  # what a cancelled job's processes may take to be gone


class SubmitJobOperator(ElasticOperator):
    """The filled form becomes a job of the ledger; returns its id. A job id that exists is attached to."""

    def __init__(self, *, presets: Mapping[str, Mapping[str, Any]], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.presets = presets

    def execute(self, context: Any) -> str:
        control = self.control()
        try:
            job = self._submitted(control, context)
        except UserError as error:
            raise AirflowFailException(f"{type(error).__name__}: {error}") from error
        self.show_links(job)
        self.log.info("job %s: %d samples of work, %s", job.job_id, job.total_samples, job.target_reason)
        return job.job_id

    def _submitted(self, control: HttpControl, context: Any) -> JobStatus:
        form = dict(context["params"])
        job_id = form.get(JOB_ID)
        if job_id and any(job.job_id == job_id for job in control.jobs()):
            self.log.info("job %s exists: attached to it", job_id)
            return control.job(job_id)
        spec = spec_from_form(form, self.presets)
        return submit(control, context, spec.model_dump(mode="json"), job_id)


class _AfterTraining(ElasticOperator):
    """Base of the tasks after training. `job_id` is templated."""

    template_fields: Sequence[str] = ("job_id",)

    def __init__(self, *, job_id: Any, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.job_id = job_id

    def ended(self, control: HttpControl) -> JobStatus:
        """The job once its training is over. Raises `InfrastructureError` (so: tried again) while it is not."""
        until = time.monotonic() + ENDING_SECONDS
        job = control.job(self.job_id)
        while job.state is JobState.ACTIVE and time.monotonic() < until:
            time.sleep(1.0)
            job = control.job(self.job_id)
        if job.state is JobState.ACTIVE:
            raise InfrastructureError(f"job {self.job_id} still trains (segment {job.segment_id}): asking again later")
        return job


class EvaluateOperator(_AfterTraining):
    """Metrics of the job's newest checkpoint on held-out data, kept with the job."""

    def execute(self, context: Any) -> dict[str, float]:
        from elastic_core.train.evaluate import evaluate_job  # imports torch

        control = self.control()
        job = self.ended(control)
        self.show_links(job)
        metrics = dict(evaluate_job(control, Settings(), job.job_id))
        self.log.info("held-out metrics of %s: %s", job.job_id, metrics or "its task measures nothing")
        control.record_results(job.job_id, {"evaluation": metrics})
        return metrics


class RegisterOperator(_AfterTraining):
    """A version in the model registry; the alias `champion` moves only to a better one.

    :param compare: measure the champion again on the candidate's held-out data, rather than trust the metrics that
        it was registered with. For data that has changed since.
    """

    def __init__(self, *, compare: bool = False, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.compare = compare

    def execute(self, context: Any) -> dict[str, Any]:
        from elastic_core.track import registry  # imports mlflow

        settings, control = Settings(), self.control()
        if settings.tracking_uri() == "none":
            raise AirflowSkipException("there is no MLflow (ELASTIC_MLFLOW_URI=none): nothing to register the model in")
        job = self.ended(control)
        self.show_links(job)
        name, metric = job.spec.registered_model or job.spec.name, job.facts.metric
        metrics = job.results.get("evaluation", {})
        holder = registry.champion(settings, name)
        version = registry.register_model(control, settings, job.job_id, metrics)
        verdict = f"its task does not measure {metric!r} on held-out data: the champion stays as it is"
        if metric in metrics:
            rival = self._measure(settings, job, holder) if holder and self.compare else None
            mode = job.facts.metric_mode
            verdict = str(registry.promote_if_better(settings, name, version, metric, mode, metrics, rival))
        self.log.info("model %s version %s: %s", name, version, verdict)
        outcome = {"model": name, "version": str(version), "verdict": verdict}
        control.record_results(job.job_id, {"registration": outcome})
        return outcome

    def _measure(self, settings: Settings, job: JobStatus, holder: RegisteredVersion) -> Mapping[str, float]:
        from elastic_core.train.evaluate import evaluate_checkpoint

        metrics = evaluate_checkpoint(settings, job.spec, holder.checkpoint_uri)
        self.log.info("the champion, version %s, measured on the same held-out data: %s", holder.version, metrics)
        return metrics


class ReconcileOperator(ElasticOperator):
    """This host's processes against the ledger, then Airflow's runs against both. Returns what was put right."""

    def execute(self, context: Any) -> list[str]:
        from elastic_core.launch import keepers
        from elastic_core.launch.local import LocalLauncher
        from elastic_core.launch.reconcile import reconcile_host, sweep_store
        from elastic_core.state.stores import open_store

        settings, control = Settings(), self.control()
        answer = reconcile_host(control, LocalLauncher(settings))
        keepers.only(settings, answer.active_jobs)
        done = [*answer.actions, *self._jobs(control, answer.active_jobs)]
        done += self._segments(answer.active_segments)
        for action in done:
            self.log.info("%s", action)
        sweep_store(control, open_store(settings.store_url(), endpoint=settings.s3_endpoint), answer)
        self._refit(control, settings)
        return done

    def _refit(self, control: HttpControl, settings: Settings) -> None:
        """Predictors may fail: what has to agree again does so without them."""
        from elastic_core.control.refit import refit_if_due

        try:
            done = refit_if_due(control, settings, time.time())
        except Exception:
            self.log.exception("the predictability classifier could not be fitted; the one before stays in force")
        else:
            if done:
                self.log.info("%s", done)

    def _jobs(self, control: HttpControl, job_ids: Sequence[str]) -> list[str]:
        """Active jobs that no task drives: that of a task that was marked is cancelled, the others get a new run."""
        done = []
        for job in map(control.job, job_ids):
            driver = job.results.get(DRIVER)
            if driver is None:  # submitted a moment ago, or by a script that drives it itself
                continue
            if driver.get("ended"):
                done += self._take_up(job, "was revived")
            elif runs.presence(driver["dag_id"], driver["run_id"]) is runs.Presence.MISSING:
                done += self._take_up(job, "had lost its run")
            elif (state := runs.task_state(driver["dag_id"], driver["run_id"], driver["task_id"])) in runs.FINISHED:
                end_driver(control, control.cancel(job.job_id, f"its task was marked as {state} by a user in Airflow"))
                done.append(f"job {job.job_id} is cancelled: its task was marked as {state}")
        return done

    def _take_up(self, job: JobStatus, why: str) -> list[str]:
        run_id = f"{job.job_id}__resumed"
        found = runs.presence(JOB_DAG, run_id)
        if found is runs.Presence.OPEN:
            return []
        again = found is runs.Presence.FINISHED
        runs.start(JOB_DAG, run_id, {JOB_ID: job.job_id}, note=f"the job {why}", again=again)
        return [f"job {job.job_id} {why}: {'cleared' if again else 'started'} run {run_id}"]

    def _segments(self, segment_ids: Sequence[str]) -> list[str]:
        return [
            f"segment {segment_id} had no run: started one"
            for segment_id in segment_ids
            if runs.presence(SEGMENT_DAG, segment_id) is runs.Presence.MISSING
            and runs.start(SEGMENT_DAG, segment_id, {"segment_id": segment_id}, note="its run had vanished")
        ]
