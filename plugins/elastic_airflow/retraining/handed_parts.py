"""What tasks of a retraining are handed, and where the ledger knows it of the run without a signature."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elastic_airflow.access.handed import Handed, HandedJob, is_of_run
from elastic_airflow.operators import default_job_id

if TYPE_CHECKING:
    from elastic_core.protocol.http_client import HttpControl


@dataclass(frozen=True)
class HandedPlan(HandedJob):
    """For the task that drives the job: once the run has recorded it, another spec under its id is refused."""

    def job_id(self, context: Any, value: Any) -> str:
        return default_job_id(value["spec"]["name"], context["ti"])


@dataclass(frozen=True)
class HandedSnapshot(Handed):
    """For a task after the training: the job was given the folder."""

    def known(self, control: HttpControl, context: Any, value: Any) -> bool:
        given = control.job(HandedJob("train", "job_id").resolve(context)).spec.params or {}
        return value["folder"] in given.values() and Path(value["folder"]).name == value["sha256"]


@dataclass(frozen=True)
class HandedRegistration(Handed):
    """The run's job keeps what came of it."""

    def known(self, control: HttpControl, context: Any, value: Any) -> bool:
        makers = control.jobs_that_registered(str(value["model"]), str(value["version"]))
        return any(is_of_run(job, context["ti"]) and job.results.get("registration") == value for job in makers)
