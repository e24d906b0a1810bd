"""What pyproject.toml declares is all that fsspec, pandas and MLflow need to find `elastic://` by themselves."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

from elastic_core.state.stores.store_urls import open_store
from tests.view.builders import write_job

PROJECT = Path(__file__).parents[2]
SCRIPT = """
import fsspec, json, pandas, mlflow.artifacts, mlflow.data, sys, tempfile
from mlflow.exceptions import MlflowException
from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository
here = "elastic://digits/checkpoints/newest"
with fsspec.open(here + "/header.json") as file:
    assert json.load(file)["step"] == 7
table = pandas.read_csv(here + "/data/step-8/rank-0.csv")
assert len(table) == 10
folder = mlflow.artifacts.download_artifacts(here + "/layouts/written/rank-1", dst_path=tempfile.mkdtemp())
assert pandas.read_json(folder + "/tensors.json")["name"].tolist() == ["model/bias", "model/blocks.0.weight"]
file = mlflow.artifacts.download_artifacts(here + "/tensors/model/blocks.0.weight[0:2,:].npy")
import numpy
assert numpy.load(file).tolist() == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
assert "newest/tensors" in [found.path for found in mlflow.artifacts.list_artifacts(here)]
assert mlflow.artifacts.list_artifacts(here + "/header.json") == []
data = mlflow.data.from_pandas(table, source=here + "/data/step-8/rank-0.csv")
assert data.source.uri.startswith("elastic://"), data.source
assert len(pandas.read_csv(data.source.load())) == 10
try:
    get_artifact_repository(here).log_artifact(file)
except MlflowException as error:
    assert "is read-only" in str(error)
else:
    raise AssertionError("written")
print("all of it")
"""


def test_the_entry_points_are_all_that_it_takes(tmp_path: Path) -> None:
    declared = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["entry-points"]
    info = tmp_path / "site" / "elastic_files-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: elastic-files\nVersion: 1\n")
    groups = ("fsspec.specs", "mlflow.artifact_repository")
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in declared[group].items()) for group in groups]
    (info / "entry_points.txt").write_text("\n".join(lines))
    write_job(open_store(str(tmp_path / "store")))
    path = os.pathsep.join([str(info.parent), str(PROJECT)])
    environment = {**os.environ, "PYTHONPATH": path, "ELASTIC_STORE": str(tmp_path / "store"), "TMPDIR": str(tmp_path)}
    environment |= {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db", "MLFLOW_DISABLE_TELEMETRY": "true"}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.strip().endswith("all of it")
