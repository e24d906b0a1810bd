"""What the control plane asks of others: the runs that take care of jobs and of their segments, and where models'
champions are kept.

Ports: it knows no Airflow and no registry, and Airflow's API server brings the implementations. A run inspects the
task in a process of its own, records the job in the ledger, drives its segments, evaluates the model and registers it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from elastic_core.protocol.callers import Caller
from elastic_core.protocol.records import ChampionMoved


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    dag_id: str
    run_id: str
    conf: Mapping[str, Any]  # what it was started with
    succeeded: bool | None  # None while it works
    refusal: str | None = None  # why its task that submits would not have the job
    started_by: str | None = None  # None where nobody is known to have


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


class Champions(Protocol):
    """A registry of models, for the control plane, which knows none. Whether somebody may is asked before.

    Raises `InfrastructureError` while it is away.
    """

    def champion(self, model: str) -> str | None:
        """The version that is champion now. Raises `NotFound` for a model that is not there."""

    def promote(self, model: str, version: str, instead_of: str | None = None) -> ChampionMoved:
        """The version is the champion, and the challenger no more. Raises `NotFound`, and `Conflict` where it was
        judged against another version than the champion of now; empty: there was none; None: that is not asked."""

    def roll_back(self, model: str, to: str, instead_of: str | None = None) -> ChampionMoved:
        """The champion of before is the champion again. Raises `Conflict` where that is not version `to`, and where
        the champion of now is not `instead_of`; None: that is not asked."""
