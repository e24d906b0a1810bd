"""The callbacks of DAGs that take care of jobs: the notifiers are told when a run ends, well or badly.

Of the DAG and not of its tasks: Airflow's DAG processor calls them once when a run is over, however it ended. Of a task
that a trigger ends as a success no callback is called, nor of one that somebody marks.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from airflow.sdk import BaseNotifier

from elastic_airflow.access.hooks import TRIGGER_PATIENCE_SECONDS, ElasticHook
from elastic_airflow.names import JOB, REFUSAL, SUBMIT_TASK, TRAIN_TASK
from elastic_airflow.notifications.job_news import Event, JobNews, ended_news, run_link, tell
from elastic_core.protocol.records import JobStatus

log = logging.getLogger(__name__)


class RunCallback:
    """Called by Airflow with the context of the run that ended, its last or its failed task's."""

    def __init__(self, notifiers: Sequence[BaseNotifier], succeeded: bool) -> None:
        self.notifiers, self.succeeded = tuple(notifiers), succeeded

    def __call__(self, context: Any) -> None:
        """Raises `RuntimeError` where a notifier has failed, after all were told: Airflow logs and counts it."""
        failures = tell(self.notifiers, news_of_run(context, self.succeeded), context, log)
        if failures:
            raise RuntimeError(f"{len(failures)} of {len(self.notifiers)} notifiers failed: {'; '.join(failures)}")


def callbacks(notifiers: Sequence[BaseNotifier]) -> dict[str, Any]:
    """Arguments of a `DAG`; none of them where there is nobody to tell."""
    if not notifiers:
        return {}
    return {
        "on_success_callback": RunCallback(notifiers, succeeded=True),
        "on_failure_callback": RunCallback(notifiers, succeeded=False),
    }


def news_of_run(context: Any, succeeded: bool) -> JobNews:
    """What is known of the run's job. Whoever is not there to be asked makes the news shorter and stops none."""
    ti, dag_id = context.get("ti"), context["dag"].dag_id
    run_id = str(context.get("run_id") or getattr(ti, "run_id", ""))
    links = run_link(dag_id, run_id)
    job_id = _pulled(ti, TRAIN_TASK, JOB) or _pulled(ti, SUBMIT_TASK, "return_value")
    job = known_job(job_id) if job_id else None
    if job is not None:
        return ended_news(job, succeeded, links)
    error = "" if succeeded else _pulled(ti, SUBMIT_TASK, REFUSAL) or str(context.get("reason") or "")
    of_job = f" of job {job_id}" if job_id else ""
    return JobNews(
        event=Event.FINISHED if succeeded else Event.FAILED,
        message=f"run {run_id} of {dag_id}{of_job} has {'succeeded' if succeeded else 'failed'}"
        + (f": {error}" if error else ""),
        job_id=job_id,
        error=error,
        links=links,
    )


def _pulled(ti: Any, task_id: str, key: str) -> str | None:
    """A text that a task of the run has left under this key; None without one, or where it cannot be read."""
    if ti is None or task_id not in ti.task.dag.task_ids:
        return None
    try:
        found = ti.xcom_pull(task_ids=task_id, key=key)
    except Exception:
        log.exception("what task %s left as %r cannot be read: the news go without", task_id, key)
        return None
    return found if isinstance(found, str) else None


def known_job(job_id: str) -> JobStatus | None:
    """None, and a line in the log, where the control plane does not answer."""
    try:
        return ElasticHook().connected(TRIGGER_PATIENCE_SECONDS).job(job_id)
    except Exception:
        log.exception("the control plane does not say what became of job %s: the news go without", job_id)
        return None
