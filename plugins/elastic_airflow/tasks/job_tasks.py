"""The other tasks of `elastic_job`: each asks the core for work and logs what came of it.

Who trains or decides may run on the same cores. So what only comes after training, and nobody's slots wait for, stands
back.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from elastic_airflow.access.behalf import who_submitted
from elastic_airflow.access.handed import Handed
from elastic_airflow.names import REFUSAL
from elastic_airflow.operators import ElasticOperator, known_job
from elastic_airflow.tasks.champion_measuring import ChampionMeasuring
from elastic_airflow.tasks.drive_job import check_attach, note_run, record_job
from elastic_core.domain import JobState
from elastic_core.errors import InfrastructureError, UserError
from elastic_core.host.process import stand_back
from elastic_core.protocol.encoding import finite
from elastic_core.protocol.process_groups import EVALUATION, held_out
from elastic_core.protocol.records import DATA_SHA256, JobStatus
from elastic_core.settings import Settings
from elastic_core.spec.catalogue.task_params import entries_for
from elastic_core.spec.form import JOB_ID, WARM_START, spec_from_form

if TYPE_CHECKING:
    from elastic_core.protocol.http_client import HttpControl

ENDING_SECONDS = 60.0  # what a cancelled job's processes may take to be gone


class SubmitJobOperator(ElasticOperator):
    """The filled form becomes a job of the ledger; returns its id. A job id that exists is attached to, where
    whoever started the run may act on that job.

    What is refused stands alone in the task's log: the tracebacks of the calls on the way say nothing to its reader.
    """

    def __init__(self, *, presets: Mapping[str, Mapping[str, Any]], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.presets = presets

    def execute(self, context: Any) -> str:
        control = self.control()
        try:
            job = self._submit_form(control, context)
            check_attach(control, job, context)
        except UserError as error:
            context["ti"].xcom_push(key=REFUSAL, value=str(error))
            raise AirflowFailException(f"{type(error).__name__}: {error}") from None
        note_run(control, job, context["ti"])
        control.ensure_segment_runs(job.job_id)  # it asks for its slots while the task that drives the job starts
        self.show_links(job)
        self.log.info("job %s: %d samples of work, %s", job.job_id, job.total_samples, job.target_reason)
        job_id: str = self.hand_over(context, job.job_id)
        return job_id

    def _submit_form(self, control: HttpControl, context: Any) -> JobStatus:
        form = dict(context["params"])
        job_id = form.get(JOB_ID)
        if job_id and (job := known_job(control, job_id)) is not None:
            self.log.info("job %s exists: attached to it", job_id)
            return job
        settings = Settings()
        entries = entries_for(form, settings.project, settings.tasks)
        spec = spec_from_form(form, self.presets, entries)
        return record_job(control, context, spec.model_dump(mode="json"), job_id, form.get(WARM_START), self.retries)


class _AfterTraining(ElasticOperator):
    """Base of the tasks after training. `job_id` is templated."""

    template_fields: Sequence[str] = ("job_id",)

    def __init__(self, *, job_id: str | Handed, **kwargs: Any) -> None:
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
    """Metrics of the job's newest checkpoint on held-out data, kept with the job.

    Returns them; as text those that are no finite number, which Airflow's client cannot send.
    """

    def execute(self, context: Any) -> dict[str, float | str]:
        from elastic_core.train.process.evaluate import evaluate_job  # imports torch

        stand_back()
        control = self.control()
        job = self.ended(control)
        self.show_links(job)
        metrics = dict(evaluate_job(control, Settings(), job.job_id))
        self.log.info("held-out metrics of %s: %s", job.job_id, metrics or "its task measures nothing")
        control.record_results(job.job_id, {EVALUATION: metrics})
        told: dict[str, float | str] = finite(metrics)
        return told


class RegisterOperator(_AfterTraining):
    """A version in the model registry; the alias `champion` moves only to a better one.

    :param compare: measure the champion again on the candidate's held-out data, rather than trust the metrics that
        it was registered with. For data that has changed since.
    :param data_params: for `compare`: parameters of the task that say which data; all others are the champion's own.
        Templated.
    :param margin: how much better it has to be, in the metric's unit.
    :param alpha: how likely chance alone may make it seem better, at most; needs `compare`, and the task's
        `evaluate_each`. None: that is not asked.
    :param hold: a better one becomes `challenger`, and waits for somebody's word.
    :param data_sha256: of the snapshot of data that the job was trained on, for the version's tags. Templated; None:
        there was none.

    A version that the job has registered before is not judged again, whoever cleared the task: the champion may have
    been rolled back since, and only who has the right to that undoes it (`elastic models promote`).

    Returns {"model", "version", "verdict", "better", "against"}: the last is the version that it was judged against,
    empty where there was no champion.
    """

    template_fields: Sequence[str] = (*_AfterTraining.template_fields, "data_params", "data_sha256")

    def __init__(
        self, *, compare: bool = False, margin: float = 0.0, alpha: float | None = None, hold: bool = False,
        data_params: Collection[str] | str = (), data_sha256: str | Handed | None = None, **kwargs: Any,
    ) -> None:  # fmt: skip
        super().__init__(**kwargs)
        self.compare, self.margin, self.alpha, self.hold = compare, margin, alpha, hold
        self.data_params = data_params
        self.data_sha256 = data_sha256

    def execute(self, context: Any) -> dict[str, Any]:
        from elastic_core.track import model_registry  # imports mlflow

        stand_back()
        settings, control = Settings(), self.control()
        if settings.tracking_uri() == "none":
            raise AirflowSkipException("there is no MLflow (ELASTIC_MLFLOW_URI=none): nothing to register the model in")
        job = self.ended(control)
        self.show_links(job)
        if self.data_sha256 is not None:
            job = control.record_results(job.job_id, {DATA_SHA256: self.data_sha256})
        name, metric = job.spec.registered_model or job.spec.name, job.facts.metric
        metrics = held_out(job.results)
        version = model_registry.register_model(control, settings, job.job_id, metrics)
        before = job.results.get("registration", {})
        if (before.get("model"), before.get("version")) == (name, str(version)):
            stays = "the champion stays as it is; `elastic models promote` makes it another"
            self.log.info("model %s version %s was registered before: %s", name, version, stays)
            return self._handed_over(context, before)
        against, better = "", False
        verdict = f"its task does not measure {metric!r} on held-out data: the champion stays as it is"
        if metric in metrics:
            of_data = tuple(self.data_params)
            measure = ChampionMeasuring(control, settings, job, of_data, self.alpha) if self.compare else None
            mode = job.facts.metric_mode
            decision = model_registry.promote_if_better(
                control, settings, name, version, metric, mode, metrics, measure, self.margin, self.hold,
                partial(self._take_over, control, job),
            )  # fmt: skip
            better, verdict, against = decision.promoted, str(decision), decision.against
        self.log.info("model %s version %s: %s", name, version, verdict)
        outcome = {"model": name, "version": str(version), "verdict": verdict, "better": better, "against": against}
        control.record_results(job.job_id, {"registration": outcome})
        return self._handed_over(context, outcome)

    def _take_over(self, control: HttpControl, job: JobStatus, name: str, version: str, instead_of: str) -> None:
        """The alias moves for whoever submitted the job, by the rule of queues, and that is on record."""
        against = f"better than version {instead_of}" if instead_of else "without a champion to beat"
        control.acting(who_submitted(job)).promote(name, version, f"{against}, as registered", instead_of)

    def _handed_over(self, context: Any, outcome: Mapping[str, Any]) -> dict[str, Any]:
        returned: dict[str, Any] = self.hand_over(context, dict(outcome))
        return returned
