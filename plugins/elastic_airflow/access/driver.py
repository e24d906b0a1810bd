"""Which Airflow task drives a job, as the job's results tell: see `names.DRIVER`."""

from __future__ import annotations

from typing import Any

from elastic_airflow.names import DRIVER
from elastic_core.protocol.records import JobStatus
from elastic_core.protocol.service import JobControl


def driver_of(ti: Any) -> dict[str, Any]:
    """This task instance as a driver. Clearing raises `max_tries`, a retry does not: that tells the two apart."""
    mapped = {"map_index": ti.map_index} if ti.map_index >= 0 else {}
    return {"dag_id": ti.dag_id, "run_id": ti.run_id, "task_id": ti.task_id, "max_tries": ti.max_tries, **mapped}


def end_driver(control: JobControl, job: JobStatus) -> None:
    """Note that the task which drives the job has ended with it. Nothing where none has begun: none is named then."""
    if DRIVER in job.results:
        control.record_results(job.job_id, {DRIVER: {**job.results[DRIVER], "ended": True}})
