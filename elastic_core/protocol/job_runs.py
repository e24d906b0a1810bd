"""The runs that take care of jobs and of their segments, as the control plane sees them: start one, look at one.

A port: the control plane knows no Airflow, and Airflow's API server brings the implementation. A run inspects the
task in a process of its own, records the job in the ledger, drives its segments, evaluates the model and registers it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from elastic_core.protocol.callers import Caller


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    dag_id: str
    run_id: str
    conf: Mapping[str, Any]  # what it was started with
    succeeded: bool | None  # None while it works
    refusal: str | None = None  # why its task that submits would not have the job


class JobRuns(Protocol):
    def look(self, job_id: str, results: Mapping[str, Any]) -> JobRun | None:
        """The run that takes care of the job: the one that its results name, else the one under its id."""

    def start(self, job_id: str, conf: Mapping[str, Any], caller: Caller | None = None) -> bool:
        """A run under the job's id exists when this returns; False where it did before, and was left as it is.

        The run is the caller's: what its tasks ask for is asked on their behalf (`callers.Users.started`). Raises
        `InfrastructureError` where runs cannot be started now.
        """

    def try_again(self, job_id: str) -> None:
        """The run under the job's id, which has ended, does all of its work again."""

    def ensure_segments(self, job_id: str, over: Mapping[str, bool]) -> list[str]:
        """These segments of the job have their runs when this returns: any where `over`, else one that works.

        A run that ended before its segment does its work again. Returns what was done, in words; raises
        `InfrastructureError` where runs cannot be started now.
        """
