"""`JobRuns` for the control plane in Airflow's API server: runs of `elastic_job`, in Airflow's own database.

Only `api_server` imports it: tasks and triggers have no access to that database and ask their supervisor
(`access.dag_runs`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState, TaskInstanceState
from sqlalchemy import select, tuple_
from sqlalchemy.exc import IntegrityError

from elastic_airflow.names import DRIVER, JOB_DAG, REFUSAL, RUN, SUBMIT_TASK, resumed_run_id
from elastic_core.errors import InfrastructureError, UserError
from elastic_core.protocol.job_runs import JobRun

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

ENDED = {DagRunState.SUCCESS: True, DagRunState.FAILED: False}


class AirflowJobRuns:
    def look(self, job_id: str, results: Mapping[str, Any]) -> JobRun | None:
        named = results.get(DRIVER) or results.get(RUN) or {"dag_id": JOB_DAG, "run_id": job_id}
        keys = [(named["dag_id"], named["run_id"]), (JOB_DAG, resumed_run_id(job_id)), (JOB_DAG, job_id)]
        with create_session() as session:
            chosen = select(DagRun).where(tuple_(DagRun.dag_id, DagRun.run_id).in_(keys))
            there = {(run.dag_id, run.run_id): run for run in session.scalars(chosen)}
            ordered = [there[key] for key in keys if key in there]
            ordered.sort(key=lambda run: run.state in ENDED)  # stable: one that works goes first
            return _job_run(session, ordered[0]) if ordered else None

    def start(self, job_id: str, conf: Mapping[str, Any]) -> bool:
        from airflow.api.common.trigger_dag import trigger_dag
        from airflow.exceptions import DagNotFound, DagRunAlreadyExists
        from airflow.utils.types import DagRunTriggeredByType

        try:
            trigger_dag(
                dag_id=JOB_DAG, run_id=job_id, conf=dict(conf), triggered_by=DagRunTriggeredByType.REST_API,
                note="submitted through the platform's API",
            )  # fmt: skip
        except (DagRunAlreadyExists, IntegrityError):
            return False
        except DagNotFound as error:
            raise InfrastructureError(
                f"Airflow does not know the DAG {JOB_DAG!r} (yet): is its DAG processor up (`elastic status`)?"
            ) from error
        except ValueError as error:  # what Airflow thinks of run id and conf
            raise UserError(f"Airflow does not take the run of job {job_id!r}: {error}") from error
        return True

    def try_again(self, job_id: str) -> None:
        from airflow.models.dagbag import DBDagBag

        with create_session() as session:
            run = session.scalar(select(DagRun).where(DagRun.dag_id == JOB_DAG, DagRun.run_id == job_id))
            dag = DBDagBag().get_dag_for_run(run, session=session) if run is not None else None
            if dag is None:
                raise InfrastructureError(f"run {job_id!r} of {JOB_DAG!r} was deleted a moment ago: ask again")
            dag.clear(run_id=job_id, session=session)


def _job_run(session: Session, run: DagRun) -> JobRun:
    return JobRun(
        dag_id=run.dag_id,
        run_id=run.run_id,
        conf=dict(run.conf or {}),
        succeeded=ENDED.get(run.state),
        refusal=_refusal(session, run),
    )


def _refusal(session: Session, run: DagRun) -> str | None:
    """What the task that submits left when it failed; a task that was cleared since leaves it until it begins."""
    task = (TaskInstance.dag_id == run.dag_id, TaskInstance.run_id == run.run_id, TaskInstance.task_id == SUBMIT_TASK)
    if session.scalar(select(TaskInstance.state).where(*task)) != TaskInstanceState.FAILED:
        return None
    left = select(XComModel.value).where(
        XComModel.dag_id == run.dag_id, XComModel.run_id == run.run_id, XComModel.task_id == SUBMIT_TASK,
        XComModel.key == REFUSAL,
    )  # fmt: skip
    value = session.scalar(left)
    return None if value is None else str(value)
