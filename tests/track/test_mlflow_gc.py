"""What was deleted in MLflow is gone for good: rows of a real server's database, and files of its artifacts."""

from __future__ import annotations

import time
import uuid
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from sqlalchemy import text

from elastic_core.domain import Layout
from elastic_core.protocol.events import SWEPT
from elastic_core.protocol.records import CheckpointRecord
from elastic_core.track.mlflow_client import open_client
from elastic_core.track.mlflow_runs import Run, Runs
from elastic_core.track.mlflow_server import mlflow_gc
from elastic_core.track.mlflow_server.guarded_stores import GuardedTracking
from elastic_core.track.mlflow_server.mlflow_gc import Collected, collect, collect_for_ever
from tests.e2e.platform import PATIENCE
from tests.security.mlflow_process import MlflowProcess
from tests.track.mlflow_server import MlflowServer

YEARS = 10_000.0  # days; nothing that is deleted is as old
NOTHING_IS_KEPT = -1.0


@pytest.fixture
def store(mlflow_server: MlflowServer) -> GuardedTracking:
    """The database of the server, as a process of its own; what other tests have left behind is gone."""
    opened = GuardedTracking(f"sqlite:///{mlflow_server.folder}/mlflow.db", "mlflow-artifacts:/")
    collect(opened, root_of(mlflow_server), NOTHING_IS_KEPT)
    return opened


def root_of(server: MlflowServer) -> Path:
    return (server.folder / "artifacts").resolve()


@pytest.fixture
def root(mlflow_server: MlflowServer) -> Path:
    return root_of(mlflow_server)


@pytest.fixture
def run(client: MlflowClient) -> Run:
    experiment = client.create_experiment(f"gc-{uuid.uuid4().hex[:8]}")
    return Run(client.create_run(experiment).info.run_id, experiment)


def model_of(client: MlflowClient, run: Run, uri: str) -> Any:
    """As the tracker shows a checkpoint that is committed."""
    record = CheckpointRecord(
        checkpoint_id=1, job_id="mine", lineage=0, step=1, samples=32, epoch=1, segment_id="mine__seg_0", uri=uri,
        manifest_sha256="a" * 64, size_bytes=1000, layout=Layout(), metrics={"accuracy": 0.5}, committed_at=1e9,
        final=False,
    )  # fmt: skip
    Runs(client, proxied_only=True).checkpoint_model(run, "mine-step-1", record, {"elastic.job_id": "mine"})
    return Runs(client, proxied_only=True).find_checkpoint(run.experiment_id, uri)


def files(root: Path, run: Run) -> set[str]:
    folder = root / run.experiment_id
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def rows(store: GuardedTracking, table: str, column: str, value: str) -> int:
    with store.engine.connect() as connection:
        query = text(f"SELECT count(*) FROM {table} WHERE {column} = :value")
        return int(connection.execute(query, {"value": value}).scalar_one())


def test_a_swept_checkpoint_leaves_no_row_and_no_file(
    client: MlflowClient, run: Run, store: GuardedTracking, root: Path
) -> None:
    swept, kept = (model_of(client, run, f"mine/lineage-0/step-{step}") for step in (1, 2))
    assert len(files(root, run)) == 2
    Runs(client, proxied_only=True).retire_checkpoint(run.experiment_id, "mine/lineage-0/step-1", SWEPT)
    assert len(files(root, run)) == 2, "MLflow itself only marks it"
    assert collect(store, root, YEARS) == Collected(models=1)
    assert {path.split("/")[1] for path in files(root, run)} == {kept.model_id}
    assert not (root / run.experiment_id / "models" / swept.model_id).exists()
    for table in ("logged_models", "logged_model_tags", "logged_model_params", "logged_model_metrics"):
        assert rows(store, table, "model_id", swept.model_id) == 0
        assert rows(store, table, "model_id", kept.model_id) > 0
    assert collect(store, root, YEARS) == Collected()


def test_a_checkpoint_that_is_retired_for_another_reason_stays(
    client: MlflowClient, run: Run, store: GuardedTracking, root: Path
) -> None:
    model = model_of(client, run, "mine/lineage-0/step-1")
    Runs(client, proxied_only=True).retire_checkpoint(run.experiment_id, "mine/lineage-0/step-1", "found corrupt")
    assert collect(store, root, NOTHING_IS_KEPT) == Collected()
    assert client.get_logged_model(model.model_id).tags["elastic.retired"] == "found corrupt"


def test_what_people_delete_can_be_restored_for_the_days_that_things_are_kept(
    client: MlflowClient, run: Run, store: GuardedTracking, root: Path
) -> None:
    client.log_text(run.run_id, "hello", "note.txt")
    model = model_of(client, run, "mine/lineage-0/step-1")
    client.set_terminated(run.run_id)
    client.delete_run(run.run_id)
    client.delete_logged_model(model.model_id)
    assert collect(store, root, 30.0) == Collected()
    assert collect(store, root, NOTHING_IS_KEPT) == Collected(models=1, runs=1)
    assert files(root, run) == set()
    with pytest.raises(MlflowException, match="not found"):
        client.restore_run(run.run_id)


def test_the_run_of_a_job_that_trains_stays_deleted(
    client: MlflowClient, run: Run, store: GuardedTracking, root: Path
) -> None:
    """Were it gone, the tracker would show the job anew, though somebody wanted it shown no more."""
    client.delete_run(run.run_id)
    assert collect(store, root, NOTHING_IS_KEPT) == Collected()
    assert client.get_run(run.run_id).info.lifecycle_stage == "deleted"
    with pytest.raises(MlflowException, match="must be in the 'active' state"):
        client.set_terminated(run.run_id)
    client.restore_run(run.run_id)
    client.set_terminated(run.run_id)
    client.delete_run(run.run_id)
    assert collect(store, root, NOTHING_IS_KEPT) == Collected(runs=1)


@pytest.mark.parametrize("source", ["{model.artifact_location}", "models:/{model.model_id}"])
def test_what_a_registered_version_is_made_of_stays(
    client: MlflowClient, run: Run, store: GuardedTracking, root: Path, source: str
) -> None:
    """By its place, or by the name that `mlflow.register_model` gives it."""
    model, name = model_of(client, run, "mine/lineage-0/step-1"), f"gc-{uuid.uuid4().hex[:8]}"
    client.create_registered_model(name)
    client.create_model_version(name, source.format(model=model), run.run_id, model_id=model.model_id)
    client.log_text(run.run_id, "weights", "model/weights.txt")
    below_the_run = f"{client.get_run(run.run_id).info.artifact_uri}/model"
    second = client.create_model_version(name, below_the_run, run.run_id).version
    client.set_terminated(run.run_id)
    client.delete_run(run.run_id)
    Runs(client, proxied_only=True).retire_checkpoint(run.experiment_id, "mine/lineage-0/step-1", SWEPT)
    assert collect(store, root, NOTHING_IS_KEPT) == Collected()
    client.delete_model_version(name, "1")
    client.delete_model_version(name, second)
    assert collect(store, root, NOTHING_IS_KEPT) == Collected(models=1, runs=1)


def test_a_deleted_experiment_goes_with_all_that_is_in_it_and_gives_back_its_name(
    client: MlflowClient, run: Run, store: GuardedTracking, root: Path
) -> None:
    model_of(client, run, "mine/lineage-0/step-1")
    client.set_terminated(run.run_id)
    name = client.get_experiment(run.experiment_id).name
    client.delete_experiment(run.experiment_id)
    assert collect(store, root, 30.0) == Collected()
    assert collect(store, root, NOTHING_IS_KEPT) == Collected(models=1, runs=1, experiments=1)
    assert files(root, run) == set()
    assert client.create_experiment(name)


def test_each_time_takes_a_bounded_number_the_oldest_first(
    client: MlflowClient, run: Run, store: GuardedTracking, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in range(3):
        model_of(client, run, f"mine/lineage-0/step-{step}")
        Runs(client, proxied_only=True).retire_checkpoint(run.experiment_id, f"mine/lineage-0/step-{step}", SWEPT)
    monkeypatch.setattr(mlflow_gc, "BATCH", 2)
    assert [collect(store, root, YEARS).models for _ in range(3)] == [2, 1, 0]


def test_what_is_broken_off_after_the_files_is_done_again(
    client: MlflowClient, run: Run, store: GuardedTracking, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model_of(client, run, "mine/lineage-0/step-1")
    Runs(client, proxied_only=True).retire_checkpoint(run.experiment_id, "mine/lineage-0/step-1", SWEPT)
    with monkeypatch.context() as patch:
        patch.setattr(store, "_hard_delete_logged_model", lambda _: (_ for _ in ()).throw(OSError("broken off")))
        with pytest.raises(OSError, match="broken off"):
            collect(store, root, YEARS)
    assert files(root, run) == set()
    assert collect(store, root, YEARS) == Collected(models=1)


def test_nothing_outside_of_the_folder_of_artifacts_is_removed(
    client: MlflowClient, run: Run, store: GuardedTracking, root: Path, tmp_path: Path
) -> None:
    """Whatever location is in the database."""
    outside = tmp_path / "kept.txt"
    outside.write_text("mine")
    for location in (
        str(tmp_path),
        f"file://{tmp_path}",
        f"mlflow-artifacts:/../../..{tmp_path}",
        "mlflow-artifacts:/",
    ):
        model = model_of(client, run, "mine/lineage-0/step-1")
        Runs(client, proxied_only=True).retire_checkpoint(run.experiment_id, "mine/lineage-0/step-1", SWEPT)
        with store.engine.begin() as connection:
            change = text("UPDATE logged_models SET artifact_location = :location WHERE model_id = :model")
            connection.execute(change, {"location": location, "model": model.model_id})
        assert collect(store, root, YEARS) == Collected(models=1)
    assert outside.read_text() == "mine"
    assert (root / run.experiment_id).exists()


def test_a_server_collects_by_itself_and_goes_on_after_a_failure(
    client: MlflowClient, run: Run, store: GuardedTracking, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mlflow_gc, "FIRST_SECONDS", 0.01)
    monkeypatch.setattr(mlflow_gc, "EVERY_SECONDS", 0.05)
    model_of(client, run, "mine/lineage-0/step-1")
    failed: list[int] = []

    def fails_once(model_id: str) -> None:
        if not failed:
            failed.append(1)
            raise OSError("the disk is away")
        GuardedTracking._hard_delete_logged_model(store, model_id)

    monkeypatch.setattr(store, "_hard_delete_logged_model", fails_once)
    stop = Event()
    thread = Thread(target=collect_for_ever, args=(store, root, YEARS, stop))
    thread.start()
    try:
        Runs(client, proxied_only=True).retire_checkpoint(run.experiment_id, "mine/lineage-0/step-1", SWEPT)
        deadline = time.monotonic() + 60.0
        while rows(store, "logged_models", "experiment_id", run.experiment_id):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        stop.set()
        thread.join()
    assert failed


@pytest.mark.e2e
def test_the_embedded_server_takes_what_was_swept_and_serves_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("USERNAME", "PASSWORD"):  # which the client is given in its environment
        monkeypatch.setenv(f"MLFLOW_TRACKING_{name}", "")
    process = MlflowProcess(tmp_path)
    try:
        process.start()
        client = open_client(process.settings)
        experiment = client.create_experiment("mine")
        run = Run(client.create_run(experiment).info.run_id, experiment)
        model_of(client, run, "mine/lineage-0/step-1")
        Runs(client, proxied_only=True).retire_checkpoint(experiment, "mine/lineage-0/step-1", SWEPT)
        process.stop()
        process.start()
        deadline = time.monotonic() + mlflow_gc.FIRST_SECONDS + 60.0 * PATIENCE
        while files(process.artifacts, run):
            assert time.monotonic() < deadline, process.log.read_text()[-3000:]
            time.sleep(0.5)
        assert client.get_run(run.run_id).info.run_id == run.run_id
    finally:
        process.stop()
    assert "gone for good: 1 logged models, 0 runs, 0 experiments" in process.log.read_text()
