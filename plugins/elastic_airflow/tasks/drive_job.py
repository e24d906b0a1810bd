"""A job recorded, and driven to its end: the first two tasks of `elastic_job`, and that of `elastic_retrain`.

The task drives the ledger's segments, one `elastic_segment` run each, and decides nothing. In DAGs of users'
`operators.ElasticTrainingOperator` starts a run with these tasks.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.exceptions import AirflowFailException, TaskDeferred

from elastic_airflow.access.behalf import check_who_cleared, who_marked, who_started
from elastic_airflow.access.driver import driver_of, end_driver
from elastic_airflow.access.handed import Handed, is_of_run
from elastic_airflow.access.retries import cleared
from elastic_airflow.names import BY_A_TASK, DRIVER, JOB, RUN
from elastic_airflow.operators import ElasticOperator, default_job_id, known_job
from elastic_airflow.outcomes import job_summary
from elastic_airflow.triggers import JobTrigger
from elastic_core.domain import JobState
from elastic_core.errors import UserError
from elastic_core.protocol.callers import Way
from elastic_core.protocol.outlook.why import why_now
from elastic_core.protocol.records import JobStatus
from elastic_core.settings import Settings
from elastic_core.spec.inputs.value_files import read_json
from elastic_core.spec.job import parse_job_spec

if TYPE_CHECKING:
    from elastic_core.protocol.http_client import HttpControl


class DriveJobOperator(ElasticOperator):
    """Train one job to its end, whatever number of segments that takes. Returns its id, step and samples.

    :param spec: what to train, as JSON (templated). Absent: `job_id` names a job that exists.
    :param job_id: the job's id (templated). Absent: made of the spec's name and this task instance.
    :param warm_start: uri of a checkpoint whose weights the job starts from (templated).

    What another task of the platform decides comes as `access.handed.Handed`: nobody changes it on the way.

    Clearing the task of a failed or cancelled job revives the job from its last good checkpoint.
    """

    template_fields: Sequence[str] = ("spec", "job_id", "warm_start")
    template_fields_renderers: ClassVar[dict[str, str]] = {"spec": "json"}
    ui_color = "#e8f3ec"

    def __init__(
        self,
        *,
        spec: Mapping[str, Any] | Handed | str | None = None,
        job_id: str | Handed | None = None,
        warm_start: str | Handed | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.spec = spec
        self.job_id = job_id
        self.warm_start = warm_start

    def execute(self, context: Any) -> dict[str, Any]:
        control = self.control()
        job = record_job(control, context, self.spec, self.job_id, self.warm_start, self.retries)
        check_attach(control, job, context)
        context["ti"].xcom_push(key=JOB, value=job.job_id)
        job = self._record_driver(control, job, context["ti"])
        return self._drive(control, job, context)

    def resume(self, context: Any, job_id: str, segment_id: str, event: Mapping[str, Any]) -> dict[str, Any]:
        self.log.info("%s", event["happened"])
        control = self.control()
        return self._drive(control, control.job(job_id), context, segment_id)

    def _record_driver(self, control: HttpControl, job: JobStatus, ti: Any) -> JobStatus:
        """Note which task drives the job; revive a job that had ended badly, if a person asked for it by clearing."""
        driver = driver_of(ti)
        if driver.items() <= job.results.get(DRIVER, {}).items():
            return job
        never_driven = DRIVER not in job.results and ti.max_tries <= (self.retries or 0)
        if job.state in (JobState.FAILED, JobState.CANCELLED) and not never_driven:
            self.log.info("job %s was %s (%s): revived", job.job_id, job.state, job.error)
            who = who_started(ti, Way.AIRFLOW)
            if cleared(ti, self.retries or 0):
                who = who_marked(ti.dag_id, ti.run_id, ti.task_id, ti.map_index)
            job = control.acting(who).revive(job.job_id)
        return control.record_results(job.job_id, {DRIVER: driver})

    def _drive(self, control: HttpControl, job: JobStatus, context: Any, after: str | None = None) -> dict[str, Any]:
        self.show_links(job)
        if job.state is JobState.FINISHED:
            self.log.info("job %s finished at step %d (%d samples)", job.job_id, job.step, job.samples_read)
            summary: dict[str, Any] = self.hand_over(context, job_summary(job))
            return summary
        if job.state is not JobState.ACTIVE:
            end_driver(control, job)
            raise AirflowFailException(f"job {job.job_id} {job.state}: {job.error or 'no reason was given'}")
        done = "; ".join(control.ensure_segment_runs(job.job_id, after)) or "attached to its run"
        self.log.info("segment %s: %s", job.segment_id, done)
        why = why_now(job, time.time())
        self.log.info("step %d, %d of %d samples; %s", job.step, job.done_samples, job.total_samples, why)
        trigger = JobTrigger(job.job_id, job.segment_id, self.conn_id)
        raise TaskDeferred(
            trigger=trigger, method_name="resume", kwargs={"job_id": job.job_id, "segment_id": job.segment_id}
        )


def record_job(
    control: HttpControl,
    context: Any,
    spec: Mapping[str, Any] | str | None,
    job_id: str | None,
    warm_start: str | None = None,
    retries: int | None = None,
) -> JobStatus:
    """The job of this task: found under its id, else inspected and recorded. Raises `UserError` for a bad spec.

    `retries`: of the task, by which it is known whether somebody has cleared it.
    """
    if not spec:
        if not job_id:
            raise UserError("give spec= (what to train) or job_id= (a job that was submitted before)")
        return control.job(job_id)
    control = control.acting(who_started(context["ti"], Way.AIRFLOW))
    parsed = parse_job_spec(read_json(spec, "job spec") if isinstance(spec, str) else spec)
    name = job_id or default_job_id(parsed.name, context["ti"])
    known = known_job(control, name)
    if known is None:
        from elastic_core.train.process.inspect import inspect_job  # imports torch: only in the task that needs it

        control.check_submission(name, parsed, warm_start)
        check_who_cleared(control, context["ti"], retries or 0, name, parsed, warm_start)
        facts = inspect_job(parsed, Settings())
    else:
        facts = known.facts
    return control.submit(name, parsed, facts, warm_start)  # raises Conflict for another spec under this id


def check_attach(control: HttpControl, job: JobStatus, context: Any) -> None:
    """Raises `Forbidden` where whoever started this run may not act on the job, which is not known to be the run's.

    A run that a task started takes care of a job that had lost its own, and is the platform's.
    """
    ti = context["ti"]
    if not is_of_run(job, ti) and context["dag_run"].run_type != BY_A_TASK:
        control.acting(who_started(ti, Way.AIRFLOW)).check_attach(job.job_id)


def note_run(control: HttpControl, job: JobStatus, ti: Any) -> None:
    """Note which run takes care of the job, before the task that drives it has begun."""
    run = {"dag_id": ti.dag_id, "run_id": ti.run_id}
    if job.results.get(RUN) != run:
        control.record_results(job.job_id, {RUN: run})
