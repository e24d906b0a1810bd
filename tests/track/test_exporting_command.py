"""`elastic checkpoint export --mlflow-model`: to a folder, without any service, and to a real registry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import numpy as np
import pytest
from typer.testing import CliRunner, Result

from elastic_core.commands.checkpoints import exporting
from elastic_core.commands.checkpoints.checkpoint_commands import app
from elastic_core.errors import ElasticError, InfrastructureError, UserError
from elastic_core.settings import Settings
from examples.digits import split_digits
from tests.track.story import SPEC
from tests.track.test_registry import trained  # noqa: F401 - a fixture
from tests.track.trained_job import TrainedJob


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["export", *map(str, arguments)])


def shown(*arguments: object) -> Any:
    result = run(*arguments, "--json")
    assert result.exit_code == 0, (result.output, result.exception)
    return json.loads(result.stdout)


def refusal(*arguments: object) -> ElasticError:
    error = run(*arguments).exception
    assert isinstance(error, ElasticError), error
    return error


def spec_file(folder: Path, **update: Any) -> Path:
    path = folder / "spec.json"
    made = SPEC.model_copy(update={"params": {"width": 8}, "entry_point": "examples.digits:Digits", **update})
    path.write_text(made.model_dump_json())
    return path


@pytest.fixture
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainedJob:
    """A checkpoint in a folder, and no service anywhere."""
    monkeypatch.setenv("ELASTIC_HOME", str(tmp_path))
    job = TrainedJob(Settings(home=tmp_path))
    job.checkpoint(10)
    return job


def test_a_folder_is_made_that_pyfunc_loads_and_that_holds_no_pickle(alone: TrainedJob, tmp_path: Path) -> None:
    model = alone.checkpoint(20, seed=1)
    folder = tmp_path / "models" / "digits"
    made = shown(alone.records[1].uri, "--mlflow-model", folder, "--spec", spec_file(tmp_path))
    assert (made["mlflow_model"], made["step"]) == (str(folder), 20)
    files = [path for path in folder.rglob("*") if path.is_file()]  # before Python compiles what it loads
    loaded = mlflow.pyfunc.load_model(str(folder))
    images = split_digits()[1].tensors[0][:5]
    np.testing.assert_array_equal(loaded.predict(images.numpy()), model(images).detach().numpy())
    assert loaded.metadata.metadata["elastic"]["step"] == 20
    assert loaded.metadata.metadata["elastic"]["manifest_sha256"] == alone.records[1].manifest_sha256
    assert {path.suffix for path in files} <= {".py", ".json", ".safetensors", ".txt", ".yaml", ".yml", ""}
    assert not any(path.read_bytes()[:2] in (b"\x80\x02", b"\x80\x04", b"\x80\x05", b"PK") for path in files)
    assert [path.name for path in folder.parent.iterdir()] == ["digits"]


def test_what_cannot_be_exported_is_refused_and_leaves_nothing(
    alone: TrainedJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri, folder = alone.records[0].uri, tmp_path / "new" / "model"
    for both_or_none in ((), ("--out", tmp_path / "w", "--mlflow-model", folder)):
        assert "one of the two: --out FILE" in str(refusal(uri, *both_or_none))
    error = refusal(uri, "--mlflow-model", folder)
    assert isinstance(error, InfrastructureError)
    assert "Or give the spec: --spec FILE" in str(error)
    assert "cannot be read" in str(refusal(uri, "--mlflow-model", folder, "--spec", tmp_path / "none.json"))
    other = refusal(uri, "--mlflow-model", folder, "--spec", spec_file(tmp_path, params={"width": 16}))
    assert isinstance(other, UserError)
    assert "The checkpoint is of another model" in str(other)
    foreign = refusal(uri, "--mlflow-model", folder, "--spec", spec_file(tmp_path, entry_point="os:system"))
    assert "matches none of the operator's patterns" in str(foreign)
    assert "--spec is for a model in a folder" in str(
        refusal(uri, "--mlflow-model", "models:/digits", "--spec", spec_file(tmp_path))
    )
    assert list(folder.parent.iterdir() if folder.parent.exists() else ()) == []
    folder.mkdir(parents=True)
    assert f"{folder} exists already" in str(refusal(uri, "--mlflow-model", folder, "--spec", spec_file(tmp_path)))


def test_any_committed_checkpoint_becomes_a_version_of_any_model(
    trained: TrainedJob,  # noqa: F811
    client: mlflow.MlflowClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ELASTIC_HOME", str(tmp_path))
    monkeypatch.setenv("ELASTIC_MLFLOW_URI", trained.settings.mlflow_uri)
    monkeypatch.setattr(exporting, "open_api", lambda settings: trained)
    models = [trained.checkpoint(step, seed=step) for step in (10, 20)]
    name = f"chosen-{trained.name}"
    made = [shown(trained.records[i].uri, "--mlflow-model", f"models:/{name}") for i in (0, 1, 0)]
    assert [(one["version"], one["step"]) for one in made] == [("1", 10), ("2", 20), ("1", 10)]
    images = split_digits()[1].tensors[0][:5]
    for one, model in zip(made[:2], models, strict=True):
        loaded = mlflow.pyfunc.load_model(one["mlflow_model"])
        np.testing.assert_array_equal(loaded.predict(images.numpy()), model(images).detach().numpy())
    assert trained.results["registered_checkpoints"] == [record.uri for record in trained.records]
    assert client.get_registered_model(name).aliases == {}

    uri = trained.records[0].uri
    for bad in ("", "a/1", "a:b", "a@champion"):
        assert "is no name of a registered model" in str(refusal(uri, "--mlflow-model", f"models:/{bad}"))
    trained.checkpoint(30)
    unknown = trained.records.pop()
    error = refusal(unknown.uri, "--mlflow-model", f"models:/{name}")
    assert f"`elastic checkpoint ls {trained.name}` lists" in str(error)
    assert len(client.search_model_versions(f"name = '{name}'")) == 2
