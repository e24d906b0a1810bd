"""The job's code makes the model that is exported: code that the job was pinned to in a process that has it, and with
`ELASTIC_WORKER_USER` all code in a process of that user.

Root reads the checkpoint, and what the user's process has written it copies file by file, following no link, before
anything of it goes to MLflow. `python -m elastic_core.track.export_process` is that process.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlflow.models import Model
from safetensors.torch import load_file, save_file
from torch import Tensor

from elastic_core import logs
from elastic_core.errors import InfrastructureError, UserError
from elastic_core.host.worker_user.foreign_files import by_descriptor, is_regular, opened_below
from elastic_core.host.worker_user.giving import give_folder, let_read
from elastic_core.host.worker_user.identity import WorkerUser
from elastic_core.settings import Settings
from elastic_core.spec import JobSpec, entry_points
from elastic_core.state.format.manifest import Manifest
from elastic_core.state.format.reading import read_tensors
from elastic_core.state.job_code import pinned_code
from elastic_core.state.stores.store import CheckpointStore
from elastic_core.track.export import save_model
from elastic_core.train.checkpoint.training_state import MODEL
from elastic_core.train.process import child

TIMEOUT_SECONDS = 3600.0


def save_model_as_user(
    folder: Path, spec: JobSpec, settings: Settings, weights: Mapping[str, Tensor], identity: Mapping[str, Any],
    code: str = "",
) -> None:  # fmt: skip
    """As `export.save_model`, `identity` as arguments of MLflow's `Model`; by the workers' user where there is one.

    `code`: the SHA-256 of the job's pinned code, which makes the model and goes with it; "" where nothing is pinned:
    the code is that of the project, and does not.
    """
    user = WorkerUser.of(settings)
    if user is None and not code:
        save_model(folder, spec, settings.tasks, weights, Model(**identity), settings.project)
        return
    with tempfile.TemporaryDirectory(prefix="elastic-export-") as scratch:
        given, made = Path(scratch) / "given", Path(scratch) / "made"
        given.mkdir()
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, given / "weights.safetensors")
        (given / "identity.json").write_text(json.dumps(dict(identity)))
        arguments = ["--given", str(given), "--made", str(made)]
        if (pinned := pinned_code.fetch(settings, code, Path(scratch) / "code")) is not None:
            arguments += ["--code", str(pinned)]
        if user is None:
            made.mkdir()
        else:
            let_read(given, user)
            give_folder(made, user)
            os.chown(scratch, -1, user.gid)
            os.chmod(scratch, 0o710)
        child.call("elastic_core.track.export_process", spec, settings, arguments, TIMEOUT_SECONDS)
        take_over(made / "model", folder)


def export_model(
    folder: Path, spec: JobSpec, settings: Settings, store: CheckpointStore, manifest: Manifest, code: str = ""
) -> None:
    """A checkpoint as an MLflow model in a new folder, which is there when it is complete and not before.

    `mlflow.pyfunc.load_model(folder)` loads it where the platform is installed, and without pinned `code` where the
    task's module can be imported. Raises `UserError` when
    something is there already, or the checkpoint is of another model than the spec's; `CorruptCheckpoint`.
    """
    if folder.exists():
        raise UserError(f"{folder} exists already: an MLflow model is written to a new folder. Give another name.")
    header, model = manifest.header, [name for name in manifest.tensors if name.startswith(MODEL)]
    weights = {name.removeprefix(MODEL): tensor for name, tensor in read_tensors(store, manifest, model).items()}
    origin = {"job": header.job_id, "lineage": header.lineage, "step": header.step, "manifest_sha256": manifest.sha256}
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
        save_model_as_user(Path(scratch) / "model", spec, settings, weights, {"metadata": {"elastic": origin}}, code)
        os.rename(Path(scratch) / "model", folder)


def take_over(source: Path, target: Path) -> None:
    """Copy a folder that another user may be changing to a new one of our own: regular files only.

    Raises `InfrastructureError` for anything else in it, which is not read.
    """
    root = os.path.realpath(source.parent)
    try:
        target.mkdir()
        for folder, folders, files, fd in os.fwalk(source):
            copied = target / Path(folder).relative_to(source)
            for name in folders:
                (copied / name).mkdir()
            for name in files:
                with opened_below(root, Path(by_descriptor(fd)) / name) as file:
                    if not is_regular(file):
                        raise OSError(f"{folder}/{name} is no regular file")
                    shutil.copyfile(by_descriptor(file), copied / name)
    except OSError as error:
        raise InfrastructureError(f"The model that {source} holds cannot be taken over: {error}") from error


def main(argv: Sequence[str]) -> int:
    logs.configure("export")
    parser = child.parser("elastic_core.track.export_process", __doc__)
    parser.add_argument("--given", type=Path, required=True, help="folder of weights.safetensors and identity.json")
    parser.add_argument("--made", type=Path, required=True, help="folder in which the folder `model` is made")
    parser.add_argument("--code", type=Path, metavar="DIR", help="folder of the job's pinned code, if it has any")
    options = parser.parse_args(argv)
    for folder in filter(None, (Settings().project, options.code)):
        entry_points.reach(folder)
    return child.answer(
        options.output,
        lambda: _save(child.read_spec(options.spec), Settings(), options.given, options.made, options.code),
    )


def _save(spec: JobSpec, settings: Settings, given: Path, made: Path, code: Path | None) -> None:
    entry_points.check(spec.entry_point, settings.tasks)
    identity = json.loads((given / "identity.json").read_text())
    weights = load_file(given / "weights.safetensors")
    save_model(made / "model", spec, settings.tasks, weights, Model(**identity), settings.project, code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
