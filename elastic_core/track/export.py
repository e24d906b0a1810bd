"""A checkpoint as an MLflow model folder: safetensors weights, the job spec, and `served_model.py`. No pickle."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import torch
from mlflow.models import Model, ModelSignature, infer_signature
from safetensors.torch import save_file
from torch import Tensor, nn

from elastic_core.protocol.records import CheckpointRecord
from elastic_core.spec import JobSpec, entry_points
from elastic_core.state.job_code.distributions import requirements_of
from elastic_core.state.stores.store import CheckpointStore
from elastic_core.train import entry
from elastic_core.train.checkpoint.restore import read_weights
from elastic_core.train.checkpoint.training_state import MODEL, load_weights
from elastic_core.train.probe import of_tensors

_REQUIRED = ("elastic-airflow", "torch", "safetensors", "numpy", "pydantic")


def new_model(spec: JobSpec, patterns: str) -> tuple[nn.Module, Any | None]:
    """The spec's model, untrained, and an example of its input if the task gives one.

    Every registered version calls it by these arguments (`served_model`).
    """
    return entry.new_model(entry_points.load(spec.entry_point, patterns), spec)


def read_model(store: CheckpointStore, checkpoint: CheckpointRecord) -> dict[str, Tensor]:
    """The model's `state_dict`. Raises `CorruptCheckpoint`."""
    tensors = read_weights(store, checkpoint.uri, checkpoint.manifest_sha256)
    return {name.removeprefix(MODEL): tensor for name, tensor in tensors.items()}


def save_model(
    folder: Path, spec: JobSpec, patterns: str, weights: Mapping[str, Tensor], identity: Model, project: Path,
    code: Path | None = None,
) -> None:  # fmt: skip
    """Write the model folder to `folder`, which must not exist. `identity` carries the ids that it is known by;
    `project`: where the task's code is, whose installed packages the model needs besides the platform's; `code`: the
    folder of the code that the job was pinned to, which the model takes along."""
    model, given = new_model(spec, patterns)
    # what cannot be loaded now could not be served later
    load_weights(model, {f"{MODEL}{name}": tensor for name, tensor in weights.items()})
    example = given
    if example is None:
        example = entry.model_input(entry_points.load(spec.entry_point, patterns), spec, model)
    signature = None if example is None else _signature(model.eval(), example)
    parts = folder.with_name(f"{folder.name}-parts")
    parts.mkdir()
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, parts / "weights.safetensors")
    (parts / "spec.json").write_text(spec.model_dump_json())
    mlflow.pyfunc.save_model(
        path=str(folder),
        python_model=str(Path(__file__).with_name("served_model.py")),
        artifacts={"weights": str(parts / "weights.safetensors"), "spec": str(parts / "spec.json")},
        code_paths=None if code is None else _code_paths(code),
        pip_requirements=_requirements(spec, code or project),
        signature=signature,
        input_example=None if signature is None else arrays(example),
        mlflow_model=identity,
    )


def _code_paths(code: Path) -> list[str]:
    """All but what Python has compiled of it."""
    return [str(path) for path in sorted(code.iterdir()) if path.name != "__pycache__"]


def _requirements(spec: JobSpec, project: Path) -> list[str]:
    own = [f"{name}=={version(name).partition('+')[0]}" for name in _REQUIRED]
    return [*own, *(line for line in requirements_of(spec.entry_point, project) if line not in own)]


def _signature(model: nn.Module, example: Any) -> ModelSignature | None:
    """None of a model that gives something else than tensors, which nothing here could serve either."""
    with torch.inference_mode():
        output = model(example)
    return infer_signature(arrays(example), arrays(output)) if of_tensors(output) else None


def arrays(value: Any) -> Any:
    """Tensors as NumPy arrays; bfloat16, which NumPy lacks, as float32."""
    if isinstance(value, Mapping):
        return {name: arrays(part) for name, part in value.items()}
    return (value.float() if value.dtype == torch.bfloat16 else value).numpy()
