"""A training job as one task of anybody's DAG: `ElasticTrainingOperator(task_id="train", spec={...})`.

It asks the control plane for the job, as every other way of submission does, and waits for the run of `elastic_job`
that takes care of it. Waiting costs no worker slot. Limits are the ledger's: Airflow's concurrency settings only bound
how many tasks work at one moment.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from elastic_airflow import links
from elastic_airflow.access import dag_runs
from elastic_airflow.access.behalf import check_who_cleared, who_marked, who_started
from elastic_airflow.access.handed import signature
from elastic_airflow.access.hooks import ElasticHook
from elastic_airflow.access.retries import cleared, infrastructure_retries
from elastic_airflow.names import CONN_ID, JOB_DAG, SIGNATURE
from elastic_airflow.triggers import JobEndTrigger
from elastic_core.domain import JobState
from elastic_core.errors import NotFound, UserError
from elastic_core.protocol.callers import Way
from elastic_core.protocol.process_groups import EVALUATION
from elastic_core.protocol.records import JobStatus, Submission, SubmissionState
from elastic_core.spec import JobSpec
from elastic_core.spec.inputs.value_files import SUFFIXES, read_json, read_values
from elastic_core.spec.job import parse_job_spec

if TYPE_CHECKING:
    from elastic_core.protocol.http_client import HttpControl

NAMED_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # no colon: not made of a time by Airflow


class ElasticOperator(BaseOperator):
    """Base of the platform's operators: the connection, and retries that need nobody."""

    operator_extra_links = links.LINKS

    def __init__(self, *, conn_id: str = CONN_ID, **kwargs: Any) -> None:
        super().__init__(**{**infrastructure_retries(), **kwargs})
        self.conn_id = conn_id
        self.links: dict[str, str] = {}  # by name, for `links.JobLink`

    def control(self) -> HttpControl:
        return ElasticHook(self.conn_id).get_conn()

    def hand_over(self, context: Any, value: Any) -> Any:
        """`value`, which later tasks of the run take from this one (`access.handed`): the task returns it."""
        ti = context["ti"]
        ti.xcom_push(key=SIGNATURE, value=signature(ElasticHook(self.conn_id).keys()[0], ti, value))
        return value

    def show_links(self, job: JobStatus) -> None:
        self.links = links.links_of(job)


class ElasticTrainingOperator(ElasticOperator):
    """Start a job and wait until it is trained, evaluated and registered. Returns id, step, metrics, model version.

    The job is that of every other way of submission: a run of `elastic_job` under the job's id does the work, this task
    is deferred until that run is over. The user's code is not imported here.

    :param spec: what to train, a `JobSpec`, its JSON, or a file with it, JSON or YAML by its name (templated); the file
        is read when the task runs. Absent: `job_id` names a job that exists.
    :param job_id: the job's id (templated). Absent: made of the spec's name and this task instance, so that a
        retried or cleared task goes on with the job that it started.
    :param warm_start: uri of a checkpoint whose weights the job starts from (templated).

    A user's exception fails the task at once with the traceback's last line; everything else is tried again.
    Marked failed or skipped, the task cancels the job; marked a success, it has the job commit first. Clearing the task
    of a failed or cancelled job revives the job from its last good checkpoint.
    """

    template_fields: Sequence[str] = ("spec", "job_id", "warm_start")
    template_fields_renderers: ClassVar[dict[str, str]] = {"spec": "json"}
    ui_color = "#e8f3ec"

    def __init__(
        self,
        *,
        spec: JobSpec | Mapping[str, Any] | Path | str | None = None,
        job_id: str | None = None,
        warm_start: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        given = spec.model_dump(mode="json") if isinstance(spec, JobSpec) else spec
        self.spec = str(given) if isinstance(given, Path) else given
        self.job_id = job_id
        self.warm_start = warm_start

    def execute(self, context: Any) -> dict[str, Any]:
        control = self.control()
        submission = self._start(control, context["ti"])
        if submission.state is SubmissionState.ENDED and cleared(context["ti"], self.retries or 0):
            submission = self._start_again(control, submission, context["ti"])
        return self._follow(control, submission)

    def follow(self, context: Any, job_id: str, event: Mapping[str, Any]) -> dict[str, Any]:
        self.log.info("%s", event["happened"])
        control = self.control()
        return self._follow(control, control.submission(job_id))

    def resume(self, context: Any, job_id: str, segment_id: str, event: Mapping[str, Any]) -> dict[str, Any]:
        """Of a task that an earlier release had drive the job itself: a run of `elastic_job` takes over."""
        control, why = self.control(), "is driven by a run of its own from now on"
        self.log.info("%s", dag_runs.ensure_resumed_run(control, control.job(job_id), why))
        return self.follow(context, job_id, event)

    def _start(self, control: HttpControl, ti: Any) -> Submission:
        if not self.spec:
            if not self.job_id:
                raise UserError("give spec= (what to train) or job_id= (a job that was submitted before)")
            return control.submission(self.job_id)
        spec = parse_job_spec(_values(self.spec))
        job_id = self.job_id or default_job_id(spec.name, ti)
        if cleared(ti, self.retries or 0) and known_job(control, job_id) is None:
            check_who_cleared(control, ti, self.retries or 0, job_id, spec, self.warm_start)
        return control.acting(who_started(ti, Way.DAG)).start_job(job_id, spec, self.warm_start)

    def _start_again(self, control: HttpControl, submission: Submission, ti: Any) -> Submission:
        """A person cleared this task: what failed or was cancelled goes on, what was not registered is."""
        job = control.job(submission.job_id)
        if job.state in (JobState.FAILED, JobState.CANCELLED):
            self.log.info("job %s was %s (%s): revived", job.job_id, job.state, job.error)
            control.acting(who_marked(ti.dag_id, ti.run_id, ti.task_id, ti.map_index)).revive(job.job_id)
        elif submission.run_succeeded:
            return submission
        self.log.info("%s", dag_runs.ensure_resumed_run(control, job, "is wanted again: its task was cleared"))
        return control.submission(job.job_id)

    def _follow(self, control: HttpControl, submission: Submission) -> dict[str, Any]:
        job_id, run = submission.job_id, f"run {submission.run_id} of {submission.dag_id}"
        if submission.state is SubmissionState.REFUSED:
            raise AirflowFailException(f"job {job_id} was refused: {submission.error}")
        if submission.state is SubmissionState.ENDED:
            return self._result(control.job(job_id), submission.run_succeeded, run)
        if submission.state is SubmissionState.ACCEPTED:
            self.show_links(control.job(job_id))
        self.log.info("job %s is %s: %s takes care of it", job_id, submission.state, run)
        raise TaskDeferred(trigger=JobEndTrigger(job_id, self.conn_id), method_name="follow", kwargs={"job_id": job_id})

    def _result(self, job: JobStatus, run_succeeded: bool | None, run: str) -> dict[str, Any]:
        self.show_links(job)
        if job.state is not JobState.FINISHED:
            raise AirflowFailException(f"job {job.job_id} {job.state}: {job.error or 'no reason was given'}")
        if run_succeeded is False:
            raise AirflowFailException(
                f"job {job.job_id} is trained, but {run} failed to evaluate or to register it: see its tasks' logs"
            )
        self.log.info("job %s finished at step %d (%d samples)", job.job_id, job.step, job.samples_read)
        outcome = {name: job.results[name] for name in (EVALUATION, "registration") if name in job.results}
        return {"job_id": job.job_id, "step": job.step, "samples": job.samples_read, **outcome}


def known_job(control: HttpControl, job_id: str) -> JobStatus | None:
    """None for a job that the ledger does not know. Apart, so that no refusal that follows is chained to that."""
    try:
        return control.job(job_id)
    except NotFound:
        return None


def _values(spec: Mapping[str, Any] | str) -> Any:
    """Of a text: that of the file that it names, else its JSON. Raises `UserError` for what is neither."""
    if not isinstance(spec, str):
        return spec
    if spec.endswith(SUFFIXES):
        return read_values(Path(spec), "job spec")
    return read_json(spec, "job spec", f", or a file whose name ends in one of {', '.join(SUFFIXES)}")


def default_job_id(name: str, ti: Any) -> str:
    """The same for every try of a task instance: a retried or cleared task finds its job again.

    A run of `elastic_job` that somebody gave a name of its own names its job, too.
    """
    if ti.dag_id == JOB_DAG and NAMED_RUN.fullmatch(ti.run_id):
        return str(ti.run_id)
    key = "/".join((ti.dag_id, ti.run_id, ti.task_id, str(ti.map_index)))
    return f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:8]}"
