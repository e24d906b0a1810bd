"""`elastic checkpoint export`: a checkpoint's weights for others, as one safetensors file or as an MLflow model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elastic_core.commands.opening import Sha256, Store, open_api, open_checkpoint
from elastic_core.commands.printing import Json, Words, print_json
from elastic_core.errors import InfrastructureError, UserError
from elastic_core.protocol.process_groups import code_of
from elastic_core.settings import Settings
from elastic_core.spec import JobSpec, entry_points, parse_job_spec
from elastic_core.spec.inputs.value_files import read_values
from elastic_core.text import size_text

if TYPE_CHECKING:  # torch takes seconds to import: each command brings it when it needs it
    from elastic_core.state.format.manifest import Manifest
    from elastic_core.state.stores.store import CheckpointStore

_out = Words(highlight=False, soft_wrap=True)

REGISTRY = "models:/"  # MLflow's own way to name what is in its registry


def export(
    uri: str,
    out: Annotated[Path | None, typer.Option(help="safetensors file to write, e.g. model.safetensors")] = None,
    mlflow_model: Annotated[
        str, typer.Option(help="MLflow model to make: a new folder, or models:/NAME for a version in the registry")
    ] = "",
    prefix: Annotated[str, typer.Option(help="names to take for --out; it is cut off")] = "model/",
    spec: Annotated[
        Path | None, typer.Option(help="job spec (JSON) that says how the model is made, if the ledger is not there")
    ] = None,
    store: Store = "",
    sha256: Sha256 = "",
    as_json: Json = False,
) -> None:
    """The model's weights as one plain safetensors file, or the model as one that MLflow loads and serves.

    For an MLflow model the job's own code makes the model, and goes with it where the job was pinned to it; else it
    must be importable here. It must be allowed (ELASTIC_TASKS).
    """
    if (out is None) == (not mlflow_model):
        raise UserError(
            "Say what to export to, one of the two: --out FILE (a safetensors file), or --mlflow-model FOLDER or "
            f"{REGISTRY}NAME."
        )
    given = None if spec is None else parse_job_spec(read_values(spec, "job spec"))
    place, manifest = open_checkpoint(uri, store, sha256)
    if out is not None:
        _export_weights(place, manifest, out, prefix, as_json)
    elif mlflow_model.startswith(REGISTRY):
        _register(manifest, mlflow_model.removeprefix(REGISTRY), given, as_json)
    else:
        _export_model(place, manifest, Path(mlflow_model), given, as_json)


def _export_weights(place: CheckpointStore, manifest: Manifest, out: Path, prefix: str, as_json: bool) -> None:
    from elastic_core.state.format.inspecting import export as export_tensors

    names = export_tensors(place, manifest, out, prefix)
    size = out.stat().st_size
    if as_json:
        print_json({"out": str(out), "size_bytes": size, "tensors": names})
    else:
        _out.print(f"{len(names)} tensors, {size_text(size)}, in {out}", markup=False)


def _export_model(
    place: CheckpointStore, manifest: Manifest, folder: Path, given: JobSpec | None, as_json: bool
) -> None:
    settings = Settings()
    spec, code = (given, "") if given is not None else _spec_and_code_of(manifest, settings)
    entry_points.reach(settings.project)
    from elastic_core.track.export_process import export_model

    export_model(folder, spec, settings, place, manifest, code)
    if as_json:
        print_json({"mlflow_model": str(folder), "entry_point": spec.entry_point, "step": manifest.header.step})
    else:
        _out.print(f"MLflow model of step {manifest.header.step} ({spec.entry_point}) in {folder}", markup=False)


def _register(manifest: Manifest, name: str, given: JobSpec | None, as_json: bool) -> None:
    if given is not None:
        raise UserError(
            f"--spec is for a model in a folder: a version of {REGISTRY}{name} is made of a checkpoint that the ledger "
            "knows, with its job's own spec. Leave it out."
        )
    settings = Settings()
    entry_points.reach(settings.project)
    from elastic_core.track.model_registry import register_checkpoint

    control = open_api(settings)
    made = register_checkpoint(control, settings, manifest.header.job_id, manifest.sha256, name)
    if as_json:
        print_json({"mlflow_model": made.uri, "name": made.name, "version": made.version, "step": made.step})
    else:
        _out.print(f"version {made.version} of model {made.name}, step {made.step}: {made.uri}", markup=False)


def _spec_and_code_of(manifest: Manifest, settings: Settings) -> tuple[JobSpec, str]:
    """A checkpoint holds tensors, and not the code that they belong to: its job's spec names that, and its results have
    the SHA-256 of what was pinned ("": nothing)."""
    name = manifest.header.job_id
    try:
        job = open_api(settings).job(name)
    except InfrastructureError as error:
        raise InfrastructureError(
            f"How the model of job {name} is made is in its spec, which the ledger has, and that cannot be asked: "
            f"{error} Or give the spec: --spec FILE."
        ) from error
    return job.spec, code_of(job.results).sha256
