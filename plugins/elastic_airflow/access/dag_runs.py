"""Runs of other DAGs, as a task or trigger sees them: look up, else start; 'exists' means attach.

Airflow's own TriggerDagRunOperator fails its task when the run exists, past any retry policy; this asks the
supervisor for the same things and leaves the judgement to the caller.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from secrets import token_hex
from typing import Any

from airflow.sdk.exceptions import ErrorType
from airflow.sdk.execution_time.comms import ErrorResponse, GetDagRun, TriggerDagRun
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance

from elastic_airflow.names import JOB_DAG, RESUMED, TRAIN_TASK, resumed_run_id, takes_up
from elastic_core.errors import InfrastructureError
from elastic_core.protocol.records import JobStatus
from elastic_core.protocol.service import JobControl
from elastic_core.spec.form import JOB_ID

FINISHED = ["success", "failed"]  # states of a run
MARKED = ("success", "failed", "skipped")  # states that a user may mark a task as
DELETED = "deleted"  # of a task that its run does not have: who deletes one leaves the others, and no task is made anew
LOST = (
    DELETED,
    "removed",
    "upstream_failed",
)  # nobody wished for the end of a task in one of these, and it never goes on


class Presence(StrEnum):
    MISSING = "missing"  # never started, or deleted
    OPEN = "open"
    FINISHED = "finished"


def presence(dag_id: str, run_id: str) -> Presence:
    """Whether the run exists and still works. Blocks; call it in a thread from a trigger."""
    if not RuntimeTaskInstance.get_dr_count(dag_id, run_ids=[run_id]):
        return Presence.MISSING
    finished = RuntimeTaskInstance.get_dr_count(dag_id, run_ids=[run_id], states=FINISHED)
    return Presence.FINISHED if finished else Presence.OPEN


def task_state(dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> str | None:
    """State of a task now, None where it has none (cleared); `DELETED` where there is no such task."""
    states = RuntimeTaskInstance.get_task_states(dag_id, task_ids=[task_id], run_ids=[run_id])
    name = task_id if map_index < 0 else f"{task_id}_{map_index}"
    state = states.get(run_id, {}).get(name, DELETED)
    return None if state is None else str(getattr(state, "value", state))


def start(dag_id: str, run_id: str, conf: Mapping[str, Any], note: str, again: bool = False) -> bool:
    """Start a run under this id; False when it exists already (and is left alone, or cleared if `again`)."""
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS  # set by the supervisor when the task starts

    answer = SUPERVISOR_COMMS.send(
        TriggerDagRun(dag_id=dag_id, run_id=run_id, conf=dict(conf), note=note, reset_dag_run=again)
    )
    if isinstance(answer, ErrorResponse):
        if answer.error == ErrorType.DAGRUN_ALREADY_EXISTS:
            return False
        raise InfrastructureError(f"Airflow did not start run {run_id!r} of {dag_id!r}: {answer.error} {answer.detail}")
    return True


def ensure_resumed_run(control: JobControl, job: JobStatus, why: str) -> str | None:
    """A run that attaches to a job which has none that works for it. What was done; None where it has one already.

    Anybody who may start runs may have given one the id that this one is to have, or have deleted the task that would
    drive the job from ours. Such a run is left alone, and ours gets another id, which nobody can have guessed: on
    record first, so that whoever looks for the job's run finds it.
    """
    job_id = job.job_id
    run_id = job.results.get(RESUMED) or resumed_run_id(job_id)
    run = presence(JOB_DAG, run_id)
    if run is not Presence.MISSING and (not takes_up(_run(run_id), job_id) or _lacks_driver(run_id)):
        run_id, run = f"{resumed_run_id(job_id)}-{token_hex(8)}", Presence.MISSING
        control.record_results(job_id, {RESUMED: run_id})
    if run is Presence.OPEN:
        return None
    again = run is Presence.FINISHED
    start(JOB_DAG, run_id, {JOB_ID: job_id}, note=f"the job {why}", again=again)
    return f"job {job_id} {why}: {'cleared' if again else 'started'} run {run_id}"


def _run(run_id: str) -> Any:
    """The run of `elastic_job`, as Airflow has it."""
    from airflow.sdk.execution_time.task_runner import SUPERVISOR_COMMS

    run = SUPERVISOR_COMMS.send(GetDagRun(dag_id=JOB_DAG, run_id=run_id))
    if isinstance(run, ErrorResponse):
        raise InfrastructureError(f"Airflow does not say who started run {run_id!r} of {JOB_DAG!r}: {run.error}")
    return run


def _lacks_driver(run_id: str) -> bool:
    """The task that would drive the job was deleted from its run: not even clearing the run brings it back."""
    return task_state(JOB_DAG, run_id, TRAIN_TASK) == DELETED
