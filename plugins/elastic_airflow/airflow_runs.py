"""`JobRuns` for the control plane in Airflow's API server: runs of jobs and segments, in Airflow's own database.

Only `api_server` imports it: tasks and triggers have no access to that database. They ask their supervisor
(`access.dag_runs`), which starts runs for tasks but for no trigger, or the control plane, which asks here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow.models.dag import DagModel
from airflow.models.dagrun import DagRun
from airflow.models.log import Log
from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState, TaskInstanceState
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from sqlalchemy import select, tuple_, update
from sqlalchemy.exc import IntegrityError

from elastic_airflow.names import (
    DRIVER,
    JOB_DAG,
    PAUSE_TAKEN_BACK,
    RECONCILE_DAG,
    REFUSAL,
    RESUMED,
    RUN,
    SEGMENT_DAG,
    SUBMIT_TASK,
    TRIED_AGAIN,
    resumed_run_id,
    takes_up,
)
from elastic_core.errors import InfrastructureError, UserError
from elastic_core.protocol.callers import Caller, Way
from elastic_core.protocol.job_runs import JobRun

if TYPE_CHECKING:
    from sqlalchemy.orm import Session

AT_HOST = (Way.CLI, Way.PYTHON)
ENDED = {DagRunState.SUCCESS: True, DagRunState.FAILED: False}


class AirflowJobRuns:
    def look(self, job_id: str, results: Mapping[str, Any]) -> JobRun | None:
        named = results.get(DRIVER) or results.get(RUN) or {"dag_id": JOB_DAG, "run_id": job_id}
        known, resumed = (named["dag_id"], named["run_id"]), (JOB_DAG, results.get(RESUMED) or resumed_run_id(job_id))
        keys = [known, resumed, (JOB_DAG, job_id)]
        with create_session() as session:
            chosen = select(DagRun).where(tuple_(DagRun.dag_id, DagRun.run_id).in_(keys))
            there = {(run.dag_id, run.run_id): run for run in session.scalars(chosen)}
            if resumed != known and resumed in there and not takes_up(there[resumed], job_id):
                del there[resumed]  # somebody else's, of that name
            ordered = [there[key] for key in keys if key in there]
            ordered.sort(key=lambda run: run.state in ENDED)  # stable: one that works goes first
            return _job_run(session, ordered[0]) if ordered else None

    def start(self, job_id: str, conf: Mapping[str, Any], caller: Caller | None = None) -> bool:
        """`airflow_users.AirflowUsers.started` reads from the run what is written here of the caller."""
        by = DagRunTriggeredByType.REST_API
        if caller is None or (caller.unrestricted and caller.way in AT_HOST):
            by = DagRunTriggeredByType.CLI
        name = caller.name if caller is not None else None
        return _start(JOB_DAG, job_id, conf, "submitted through the platform's API", by=by, user=name)

    def try_again(self, job_id: str) -> None:
        with create_session() as session:  # first: what was done before a task was cleared tells who cleared it
            session.add(Log(event=TRIED_AGAIN, dag_id=JOB_DAG, run_id=job_id))
        _clear(JOB_DAG, job_id)

    def ensure_segments(self, job_id: str, over: Mapping[str, bool]) -> list[str]:
        with create_session() as session:
            known = select(DagRun.run_id, DagRun.state).where(DagRun.dag_id == SEGMENT_DAG, DagRun.run_id.in_(over))
            states = {run_id: state for run_id, state in session.execute(known)}
        done = []
        for segment_id in over:
            conf = {"job_id": job_id, "segment_id": segment_id}
            if segment_id not in states:
                if _start(SEGMENT_DAG, segment_id, conf, f"segment of {job_id}", by=DagRunTriggeredByType.OPERATOR):
                    done.append(f"run {segment_id} started")
            elif states[segment_id] in ENDED and not over[segment_id]:
                _clear(SEGMENT_DAG, segment_id)
                done.append(f"run {segment_id} had ended before its segment: cleared it")
        return done


def _start(
    dag_id: str, run_id: str, conf: Mapping[str, Any], note: str, *, by: DagRunTriggeredByType, user: str | None = None
) -> bool:
    """False where a run of that id exists."""
    from airflow.api.common.trigger_dag import trigger_dag
    from airflow.exceptions import DagNotFound, DagRunAlreadyExists

    by_a_task = by is DagRunTriggeredByType.OPERATOR
    run_type = DagRunType.OPERATOR_TRIGGERED if by_a_task else DagRunType.MANUAL
    try:
        trigger_dag(
            dag_id=dag_id, run_id=run_id, conf=dict(conf), run_type=run_type, triggered_by=by,
            triggering_user_name=user, note=note,
        )  # fmt: skip
    except (DagRunAlreadyExists, IntegrityError):
        return False
    except DagNotFound as error:
        raise InfrastructureError(
            f"Airflow does not know the DAG {dag_id!r} (yet): is its DAG processor up (`elastic status`)?"
        ) from error
    except ValueError as error:  # what Airflow thinks of run id and conf
        raise UserError(f"Airflow does not take run {run_id!r} of {dag_id!r}: {error}") from error
    return True


def _clear(dag_id: str, run_id: str) -> None:
    from airflow.models.dagbag import DBDagBag

    with create_session() as session:
        run = session.scalar(select(DagRun).where(DagRun.dag_id == dag_id, DagRun.run_id == run_id))
        dag = DBDagBag().get_dag_for_run(run, session=session) if run is not None else None
        if dag is None:
            raise InfrastructureError(f"run {run_id!r} of {dag_id!r} was deleted a moment ago: ask again")
        dag.clear(run_id=run_id, session=session)


def _job_run(session: Session, run: DagRun) -> JobRun:
    return JobRun(
        dag_id=run.dag_id,
        run_id=run.run_id,
        conf=dict(run.conf or {}),
        succeeded=ENDED.get(run.state),
        refusal=_refusal(session, run),
        started_by=run.triggering_user_name,
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


def take_back_pause() -> bool:
    """Whether somebody had paused `elastic_reconcile`, which goes on from now on; Airflow's log has both.

    In Airflow's simple login every user may pause every DAG, and without this one nothing makes up for a crash.
    """
    with create_session() as session:
        paused = update(DagModel).where(DagModel.dag_id == RECONCILE_DAG, DagModel.is_paused).values(is_paused=False)
        taken_back = bool(session.execute(paused).rowcount)
        if taken_back:
            session.add(Log(event=PAUSE_TAKEN_BACK, dag_id=RECONCILE_DAG))
    return taken_back
