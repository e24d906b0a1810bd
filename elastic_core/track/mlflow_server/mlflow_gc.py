"""What was deleted in the embedded MLflow goes for good, rows and files, as by `mlflow gc`: nobody runs that by hand.

The model that showed a checkpoint goes as soon as that is swept: nothing is left that could be restored. What people
delete, they may restore for `ELASTIC_KEEP_DAYS`. Nothing goes that a registered version is made of, and no run of a job
that still trains, since the tracker would open it anew. MLflow changes no status of a deleted run: one that was deleted
while it was RUNNING stays, with its experiment, until somebody restores it and deletes it once it has ended. Each time
takes `BATCH` of a kind, the oldest first; files go before their row, so that what is broken off is found again.
"""

# mypy: allow-untyped-calls
# MLflow's classes are typed in part only.

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import unquote, urlsplit

from mlflow.entities import LifecycleStage, RunStatus
from mlflow.exceptions import MlflowException
from mlflow.store.model_registry.dbmodels import models as registry_tables
from mlflow.store.tracking.dbmodels import models as tracking_tables
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
from sqlalchemy import exists, func, or_
from sqlalchemy.exc import SQLAlchemyError

from elastic_core.protocol.events import SWEPT
from elastic_core.track.mlflow_runs import RETIRED
from elastic_core.track.mlflow_server.artifact_folder import ConfinedArtifacts
from elastic_core.track.mlflow_server.guarded_stores import is_own

SqlModelVersion: Any = registry_tables.SqlModelVersion  # as Any: their columns have no types
SqlExperiment: Any = tracking_tables.SqlExperiment
SqlLoggedModel: Any = tracking_tables.SqlLoggedModel
SqlLoggedModelTag: Any = tracking_tables.SqlLoggedModelTag
SqlRun: Any = tracking_tables.SqlRun

log = logging.getLogger("elastic_core.track.mlflow_server")

EVERY_SECONDS = 900.0  # as often as the ledger lets go of what is too old
FIRST_SECONDS = 20.0  # after the server's start, which has other work at first
BATCH = 500
DAY_MS = 86_400_000.0
_GONE = "Deleted_Internal"  # MLflow's word for the stage of a version that was deleted


@dataclass(frozen=True, slots=True)
class Collected:
    """Numbers of what is gone for good."""

    models: int = 0
    runs: int = 0
    experiments: int = 0

    def __str__(self) -> str:
        return f"{self.models} logged models, {self.runs} runs, {self.experiments} experiments"


def collect_for_ever(store: SqlAlchemyStore, root: Path, keep_days: float, stop: Event) -> None:
    """A thread of the server. Whatever fails is logged, and tried again the next time."""
    wait = FIRST_SECONDS
    while not stop.wait(wait):
        wait = EVERY_SECONDS
        try:
            gone = collect(store, root, keep_days)
        except (MlflowException, SQLAlchemyError, OSError):
            log.exception("what was deleted could not be collected; it is tried again in %.0f s", EVERY_SECONDS)
        else:
            if gone != Collected():
                log.info("gone for good: %s", gone)


def collect(store: SqlAlchemyStore, root: Path, keep_days: float) -> Collected:
    """`root`: the folder of artifacts. `keep_days`: for which what people have deleted can be restored."""
    before = 1000.0 * time.time() - keep_days * DAY_MS
    models = _found(store, lambda session: _models(session, before))
    runs = _found(store, lambda session: _runs(session, before))
    for model_id, location in models:
        _remove_files(root, location)
        store._hard_delete_logged_model(model_id)
    for run_id, location in runs:
        _remove_files(root, location)
        store._hard_delete_run(run_id)
    experiments = _found(store, lambda session: _experiments(session, before))  # once nothing is left in them
    for (experiment_id,) in experiments:
        store._hard_delete_experiment(str(experiment_id))
    return Collected(len(models), len(runs), len(experiments))


def _found(store: SqlAlchemyStore, query: Callable[[Any], Any]) -> list[Any]:
    with store.ManagedSessionMaker() as session:
        return [tuple(row) for row in query(session).limit(BATCH)]


def _models(session: Any, before: float) -> Any:
    swept = exists().where(
        SqlLoggedModelTag.model_id == SqlLoggedModel.model_id, SqlLoggedModelTag.tag_key == RETIRED,
        SqlLoggedModelTag.tag_value == SWEPT,
    )  # fmt: skip
    of_a_deleted_experiment = exists().where(
        SqlExperiment.experiment_id == SqlLoggedModel.experiment_id,
        SqlExperiment.lifecycle_stage == LifecycleStage.DELETED, SqlExperiment.last_update_time <= before,
    )  # fmt: skip
    deleted = SqlLoggedModel.lifecycle_stage == LifecycleStage.DELETED
    too_old = or_(deleted & (SqlLoggedModel.last_updated_timestamp_ms <= before), of_a_deleted_experiment)
    return (
        session.query(SqlLoggedModel.model_id, SqlLoggedModel.artifact_location)
        .filter(or_(deleted & swept, too_old), ~_registered(SqlLoggedModel.artifact_location))
        .order_by(SqlLoggedModel.last_updated_timestamp_ms)
    )


def _runs(session: Any, before: float) -> Any:
    return (
        session.query(SqlRun.run_uuid, SqlRun.artifact_uri)
        .filter(
            SqlRun.lifecycle_stage == LifecycleStage.DELETED, SqlRun.deleted_time <= before,
            SqlRun.status != RunStatus.to_string(RunStatus.RUNNING), ~_registered(SqlRun.artifact_uri),
        )
        .order_by(SqlRun.deleted_time)
    )  # fmt: skip


def _experiments(session: Any, before: float) -> Any:
    def empty(kind: Any) -> Any:
        return ~exists().where(kind.experiment_id == SqlExperiment.experiment_id)

    return session.query(SqlExperiment.experiment_id).filter(
        SqlExperiment.lifecycle_stage == LifecycleStage.DELETED, SqlExperiment.last_update_time <= before,
        empty(SqlRun), empty(SqlLoggedModel),
    )  # fmt: skip


def _registered(location: Any) -> Any:
    """Whether a version of a registered model is made of what lies there, or below it.

    Where a version's source is another name for it (`models:/m-…`), MLflow keeps the place itself beside that.
    """
    made_of = func.coalesce(SqlModelVersion.storage_location, SqlModelVersion.source)
    there = or_(made_of == location, made_of.like(location + "/%"))
    return exists().where(there, SqlModelVersion.current_stage != _GONE)


def _remove_files(root: Path, location: str) -> None:
    """Below the folder of artifacts; a location of another server, from before this one, is left alone."""
    if not is_own(location):
        log.warning("the artifacts at %s are not this server's and stay; their row goes", location)
        return
    folder = Path(os.path.normpath(root / unquote(urlsplit(location).path).lstrip("/")))
    if folder == root:
        return
    ConfinedArtifacts(str(folder), root).delete_artifacts()
    with suppress(OSError):  # others' files are in it
        folder.parent.rmdir()
