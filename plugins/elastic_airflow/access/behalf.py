"""For whom a task or trigger asks the control plane: it names a run, and Airflow's own tables say whose that is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elastic_airflow.access.dag_runs import MARKED
from elastic_airflow.access.retries import cleared
from elastic_core.protocol.callers import HOST_SUFFIX, UNKNOWN_USER, OnBehalf, Way

if TYPE_CHECKING:
    from elastic_core.protocol.http_client import HttpControl
    from elastic_core.protocol.records import JobStatus
    from elastic_core.spec import JobSpec


def who_started(ti: Any, way: Way) -> OnBehalf:
    """Whoever started the run of this task: a user, the operator, or the DAG by its schedule."""
    return OnBehalf(way=way, run=(ti.dag_id, ti.run_id))


def who_marked(dag_id: str, run_id: str, task_id: str, map_index: int = -1) -> OnBehalf:
    """Whoever has marked or cleared this task of a run last."""
    return OnBehalf(way=Way.AIRFLOW, run=(dag_id, run_id), marked=(task_id, map_index))


def who_approved(ti: Any, task_id: str) -> OnBehalf:
    """Whoever answered that task, of the run of this one, which asks a person."""
    return OnBehalf(way=Way.AIRFLOW, run=(ti.dag_id, ti.run_id), approved=task_id)


def who_submitted(job: JobStatus) -> OnBehalf:
    """Whoever submitted the job; of one of which that is not known, somebody with nobody's rights."""
    name = job.submitted_by or UNKNOWN_USER
    if name.endswith(HOST_SUFFIX):
        return OnBehalf(way=Way.AIRFLOW, host_user=name)
    return OnBehalf(way=Way.AIRFLOW, user=name)


def check_who_cleared(
    control: HttpControl, ti: Any, retries: int, job_id: str, spec: JobSpec, warm_start: str | None
) -> None:
    """A job that is about to be submitted for whoever started the run, because its task was cleared, is asked for by
    whoever cleared it. Raises `Forbidden` where they may not submit it themselves."""
    if cleared(ti, retries):
        who = who_marked(ti.dag_id, ti.run_id, ti.task_id, ti.map_index)
        control.acting(who).check_submission(job_id, spec, warm_start)


def by_a_user(state: str | None) -> str:
    """The act of a user that left a task in this state (None: in none), in the ledger's words."""
    return f"{f'marked as {state}' if state in MARKED else 'cleared'} by a user in Airflow"
