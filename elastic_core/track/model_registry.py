"""The model registry: a job's checkpoint as a model that MLflow can serve, and which version is the champion.

A version holds weights as safetensors, the job spec, one small Python file (`served_model.py`, MLflow's "models from
code") and the code that the job was pinned to; no pickle. Where none was pinned, it loads where the task's module can
be imported. Everything here may be repeated: a second call finds what the first one made.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Literal

from mlflow import MlflowClient
from mlflow.entities import LoggedModelStatus
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from elastic_core.errors import Conflict, Forbidden, InfrastructureError, UserError
from elastic_core.protocol.process_groups import code_of
from elastic_core.protocol.records import REGISTERED_VERSIONS, CheckpointRecord, JobStatus, registered_key
from elastic_core.protocol.service import JobControl, JobRecords
from elastic_core.settings import Settings
from elastic_core.state.format.manifest import read_manifest
from elastic_core.state.stores.store_urls import open_store
from elastic_core.track import facts
from elastic_core.track.champions.judging import Decision, RegisteredVersion, judge, unmeasured
from elastic_core.track.champions.model_aliases import CHAMPION, move_champion, name_challenger
from elastic_core.track.champions.paired_test import PairedTest
from elastic_core.track.champions.registered_versions import described, registered_version
from elastic_core.track.champions.registry_api import open_registry
from elastic_core.track.export import read_model
from elastic_core.track.export_process import save_model_as_user
from elastic_core.track.mlflow_client import open_client
from elastic_core.track.mlflow_runs import Runs, talking_to_mlflow

Move = Callable[[str, str, str], object]  # model, version, and that which it was judged against; empty: none
MOST_RIVALS = 10  # how often another job may move the champion while one is judged


@dataclass(frozen=True, slots=True)
class Measured:
    """What a champion was found to be on a candidate's held-out data. `test`: of the two, sample by sample; what it
    takes for chance is not better. `fault`: why it could not be measured there; it stays champion then."""

    metrics: Mapping[str, float] | None
    test: PairedTest | None = None
    fault: str = ""


_NOT_MEASURED = Measured(None)


def register_model(
    control: JobControl,
    settings: Settings,
    job_id: str,
    metrics: Mapping[str, float],
    which: Literal["last", "best"] = "last",
) -> RegisteredVersion:
    """Export the job's last checkpoint (or the best by its own metric) and register it under the spec's model name.

    `metrics` are the exported checkpoint's on held-out data. The job's results then name the version, its checkpoint
    (`registered_checkpoint`) and all that were ever registered (`registered_checkpoints`), which the sweeper keeps.
    Raises `UserError` when the job has no good checkpoint or its task cannot be served, `InfrastructureError` when
    MLflow or the store is away.
    """
    job = control.job(job_id)
    checkpoint = choose_checkpoint(control.checkpoints(job_id), job, which)
    return _register(control, settings, job, checkpoint, metrics, job.spec.registered_model or job.spec.name)


def register_checkpoint(
    control: JobControl, settings: Settings, job_id: str, sha256: str, name: str
) -> RegisteredVersion:
    """Export one committed checkpoint of a job, by its manifest's SHA-256, and register it under any name.

    It has no held-out metrics, and no alias moves. Raises as `register_model`, and `UserError` for a checkpoint that
    the ledger does not know or holds for bad, or a name that MLflow could not find again.
    """
    if not name or set(name) & set("/:@"):
        raise UserError(f"{name!r} is no name of a registered model: it needs one, without '/', ':' and '@'.")
    job = control.job(job_id)
    for checkpoint in control.checkpoints(job_id):
        if checkpoint.manifest_sha256 == sha256:
            break
    else:
        raise UserError(
            f"The ledger holds no checkpoint of job {job_id} with manifest {sha256}: it was never committed, or it "
            f"was deleted. `elastic checkpoint ls {job_id}` lists those that can be registered."
        )
    if checkpoint.bad:
        raise UserError(f"Checkpoint {checkpoint.uri} was found corrupt: it is not registered. Choose another one.")
    return _register(control, settings, job, checkpoint, {}, name)


def _register(
    control: JobControl,
    settings: Settings,
    job: JobStatus,
    checkpoint: CheckpointRecord,
    metrics: Mapping[str, float],
    name: str,
) -> RegisteredVersion:
    client, job_id = _client(settings), job.job_id
    # before the export: from here on the sweeper must not take it
    registered_uris = sorted({*job.results.get("registered_checkpoints", ()), checkpoint.uri})
    control.record_results(job_id, {"registered_checkpoint": checkpoint.uri, "registered_checkpoints": registered_uris})
    with talking_to_mlflow(f"register {checkpoint.uri} as model {name}"):
        version = _find_version(client, name, checkpoint.uri)
        if version is None:
            model_id = _export(client, settings, job, checkpoint, metrics)
            version = _create_version(client, name, job, checkpoint, metrics, model_id)
    known, key = control.job(job_id).results.get(REGISTERED_VERSIONS, {}), registered_key(name, str(version.version))
    entry = known.get(key, {})
    if entry.get("uri") != checkpoint.uri:  # new, or the number belonged to a server that was set up anew since
        entry = {"uri": checkpoint.uri, "metrics": dict(metrics), "at": time.time()}
    results = {
        "registered_model": name,
        "registered_version": str(version.version),
        REGISTERED_VERSIONS: {**known, key: entry},
    }
    return described(control, control.record_results(job_id, results), name, str(version.version))


def champion(control: JobRecords, settings: Settings, name: str) -> RegisteredVersion | None:
    """The version that holds the alias `champion`, None when nobody does.

    MLflow says which version that is; what it is (its checkpoint, its metrics) is the ledger's word alone: tags can be
    set by whoever can write to MLflow.
    """
    with talking_to_mlflow(f"look for the champion of {name}"):
        try:
            version = str(_client(settings).get_model_version_by_alias(name, CHAMPION).version)
        except MlflowException as error:
            if error.error_code in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                return None
            raise
    return registered_version(control, name, version)


def champion_checkpoint(control: JobRecords, settings: Settings, name: str) -> CheckpointRecord | None:
    """The ledger's record of the champion's checkpoint, whose manifest in the store was seen to be the committed one.

    None when there is no champion. Raises `UserError` for a champion that no job registered, or whose checkpoint is
    gone or held for bad; `CorruptCheckpoint` for another manifest in the store.
    """
    holder = champion(control, settings, name)
    if holder is None:
        return None
    way_out = "Give the alias to another version, or start anew (start_from)."
    if not holder.checkpoint_uri:
        raise UserError(
            f"Version {holder.version} of model {name} holds MLflow's alias {CHAMPION!r}, and no job of the ledger has "
            f"registered it: nothing says which checkpoint it is. {way_out}"
        )
    for checkpoint in control.checkpoints(holder.job_id):
        if checkpoint.uri == holder.checkpoint_uri and not checkpoint.bad:
            store = open_store(settings.store_url(), endpoint=settings.s3_endpoint)
            read_manifest(store, checkpoint.uri, checkpoint.manifest_sha256)
            return checkpoint
    raise UserError(
        f"The checkpoint of version {holder.version} of model {name}, {holder.checkpoint_uri} of job {holder.job_id}, "
        f"is no longer there or was found corrupt. {way_out}"
    )


def promote_if_better(
    control: JobRecords,
    settings: Settings,
    name: str,
    candidate_version: str | RegisteredVersion,
    metric: str,
    mode: str,
    candidate_metrics: Mapping[str, float],
    measure: Callable[[RegisteredVersion], Measured] | None = None,
    margin: float = 0.0,
    hold: bool = False,
    move: Move | None = None,
) -> Decision:
    """Move the alias `champion` to the candidate if it is better at `metric` (`mode` "min" or "max").

    `margin`: better by less is not better. `hold`: the candidate gets the alias `challenger` instead, and whoever is
    asked decides. So it does where `move`, which moves the alias, raises `Forbidden`: the champion is somebody else's.

    Both must have been measured on the same held-out data: `measure` does that to a champion, again to each that there
    is by then. Without it, and for a champion of no known checkpoint, the metrics that it was registered with are used.
    Equal is not better, and one that was not measured at `metric` is not.

    Jobs that register the same model at once are judged against each other: whoever became champion between the look
    and the move is measured and compared with, too. (MLflow has no lock to hold: of two moves that cross on their way
    to it, within one request, who sees the other as champion is judged against that.)
    """
    registry, version = open_registry(settings), str(candidate_version)
    decision = Decision(promoted=True, reason=f"version {version} of {name} is the champion already", against=version)
    for _ in range(MOST_RIVALS):
        holder, rival = champion(control, settings, name), _NOT_MEASURED
        if holder is not None and holder.version == version:
            return decision
        if measure is not None and holder is not None and holder.manifest_sha256:
            rival, now = measure(holder), champion(control, settings, name)
            if now is None or now.version != holder.version:
                continue  # measuring takes its time, and another is champion by now
            if rival.fault:
                return unmeasured(version, holder, rival.fault)
        judged = judge(version, metric, mode, candidate_metrics, holder, rival.metrics, margin, rival.test)
        if not judged.promoted:
            return judged
        better = judged.reason.removesuffix(": promoted")
        if hold:
            name_challenger(registry, name, version)
            return replace(judged, reason=f"{better}, and is a challenger until somebody decides")
        try:
            (move or partial(move_champion, registry))(name, version, "" if holder is None else holder.version)
        except Conflict:
            continue
        except Forbidden as refusal:
            name_challenger(registry, name, version)
            return replace(judged, promoted=False, reason=f"{better}, and stays a challenger: {refusal}")
        decision = judged  # unless a move that crossed it on the way is found at the next look
    raise InfrastructureError(
        f"The champion of {name} changed {MOST_RIVALS} times while version {version} was judged. It is tried again."
    )


def choose_checkpoint(checkpoints: Sequence[CheckpointRecord], job: JobStatus, which: str) -> CheckpointRecord:
    """The last good checkpoint of the job's lineage, or the best by the job's metric (the last, if none has it)."""
    good = [c for c in checkpoints if c.lineage == job.lineage and not c.bad]
    if not good:
        raise UserError(
            f"Job {job.job_id} has no good checkpoint in lineage {job.lineage}: there is nothing to register."
        )
    measured = [c for c in good if not math.isnan(c.metrics.get(job.facts.metric, math.nan))]
    if which == "best" and measured:
        sign = 1 if job.facts.metric_mode == "max" else -1
        return max(measured, key=lambda c: (sign * c.metrics[job.facts.metric], c.step))
    return max(good, key=lambda c: c.step)


def _client(settings: Settings) -> MlflowClient:
    if settings.mlflow_uri == "none":
        raise UserError("There is no model registry: ELASTIC_MLFLOW_URI is 'none'. Set it to an MLflow server.")
    return open_client(settings)


def _find_version(client: MlflowClient, name: str, uri: str) -> ModelVersion | None:
    versions = client.search_model_versions(f"name = '{name}' AND tags.`elastic.checkpoint_uri` = '{uri}'")
    return min(versions, key=lambda version: int(version.version), default=None)


def _export(
    client: MlflowClient,
    settings: Settings,
    job: JobStatus,
    checkpoint: CheckpointRecord,
    metrics: Mapping[str, float],
) -> str:
    """The id of the LoggedModel that holds the served model; versions if an earlier call completed it."""
    experiment, run_id = job.results.get("mlflow_experiment_id"), job.results.get("mlflow_run_id")
    runs = Runs(client, proxied_only=not settings.mlflow_uri)
    if experiment is None:  # the tracker has not shown the job yet
        experiment = runs.experiment(facts.experiment_name(job.spec))
    condition = f"tags.`elastic.served_checkpoint` = '{checkpoint.uri}'"
    models = client.search_logged_models([experiment], condition, max_results=1)
    model = (
        models[0]
        if models
        else client.create_logged_model(
            experiment,
            name=f"{job.spec.name}-served-{checkpoint.step}",
            source_run_id=run_id,
            tags={"elastic.served_checkpoint": checkpoint.uri, "elastic.job_id": job.job_id},
            params=facts.checkpoint_params(checkpoint),
            model_type="served",
        )
    )
    if model.status == LoggedModelStatus.READY:
        return str(model.model_id)
    runs.check_location(model.artifact_location, f"model {model.model_id}")
    store = open_store(settings.store_url(), endpoint=settings.s3_endpoint)
    weights = read_model(store, checkpoint)
    with tempfile.TemporaryDirectory(prefix="elastic-export-") as scratch:
        folder = Path(scratch) / "model"
        identity = {"model_id": model.model_id, "run_id": run_id}
        save_model_as_user(folder, job.spec, settings, weights, identity, code_of(job.results).sha256)
        client.log_model_artifacts(model.model_id, str(folder))
    if run_id is not None:
        at, values = checkpoint.committed_at, facts.prefixed("served", metrics)
        client.log_batch(run_id, list(facts.points(values, at, checkpoint.step, model.model_id)), synchronous=True)
    client.finalize_logged_model(model.model_id, LoggedModelStatus.READY)
    return str(model.model_id)


def _create_version(
    client: MlflowClient,
    name: str,
    job: JobStatus,
    checkpoint: CheckpointRecord,
    metrics: Mapping[str, float],
    model_id: str,
) -> ModelVersion:
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    tags = facts.version_tags(job, checkpoint, metrics)
    source, run_id = client.get_logged_model(model_id).artifact_location, job.results.get("mlflow_run_id")
    return client.create_model_version(name, source, run_id, tags=tags, model_id=model_id)
