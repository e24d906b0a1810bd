"""A checkpoint becomes a served model without a pickle, once; the alias moves only to the better one."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import mlflow.pyfunc
import numpy as np
import pytest
from mlflow import MlflowClient

from elastic_airflow.tasks.job_tasks import RegisterOperator
from elastic_core.errors import CorruptCheckpoint, Forbidden, UserError
from elastic_core.protocol.process_groups import code_of
from elastic_core.protocol.records import DATA_SHA256
from elastic_core.settings import Settings
from elastic_core.state.job_code.pinned_code import pin
from elastic_core.track.champions.judging import RegisteredVersion, judge
from elastic_core.track.champions.model_aliases import ChampionMoved, former_champion, move_champion
from elastic_core.track.champions.paired_test import PairedTest
from elastic_core.track.champions.registry_api import open_registry
from elastic_core.track.model_registry import (
    Measured,
    champion,
    champion_checkpoint,
    choose_checkpoint,
    promote_if_better,
    register_model,
)
from elastic_core.train.task import Task
from examples.digits import Digits, split_digits
from tests.airflow.doubles import a_context
from tests.builders import CONTROL_SECRET
from tests.launch.builders import order
from tests.track.trained_job import TrainedJob

ROOT = Path(__file__).parents[2]


def promote(settings: Settings, name: str, version: str) -> ChampionMoved:
    with open_registry(settings) as registry:
        return move_champion(registry, name, version)


@pytest.fixture
def trained(mlflow_server, tmp_path, monkeypatch) -> TrainedJob:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server.uri)  # what a user's load_model reads
    return TrainedJob(Settings(home=tmp_path, mlflow_uri=mlflow_server.uri))


def test_a_registered_model_loads_and_predicts_what_the_checkpoint_does(trained, client, tmp_path):
    trained.checkpoint(10)
    model = trained.checkpoint(20, seed=1)
    made = register_model(trained, trained.settings, trained.name, {"accuracy": 0.9})
    assert (made.name, made.version, made.step, made.metrics) == (trained.name, "1", 20, {"accuracy": 0.9})

    images = split_digits()[1].tensors[0][:5]
    loaded = mlflow.pyfunc.load_model(made.uri)
    np.testing.assert_array_equal(loaded.predict(images.numpy()), model(images).detach().numpy())
    assert loaded.metadata.signature.inputs.input_types() == [np.dtype("float32")]

    version = client.get_model_version(made.name, made.version)
    assert version.tags["elastic.job_id"] == trained.name
    assert version.tags["elastic.step"] == "20"
    assert version.tags["elastic.checkpoint_uri"] == trained.records[1].uri
    assert trained.results["registered_checkpoint"] == trained.records[1].uri


def test_a_version_says_of_which_code_and_data_and_how_many_segments_it_is_made(trained, client):
    pin(trained, trained.settings, replace(order(), spec=trained.job(trained.name).spec))
    code = code_of(trained.results).sha256
    trained.results[DATA_SHA256] = "d" * 64
    trained.checkpoint(10)
    trained.records[0] = replace(trained.records[0], segment_id=f"{trained.name}__seg_4")
    made = register_model(trained, trained.settings, trained.name, {})
    tags = client.get_model_version(made.name, made.version).tags
    assert (tags["elastic.code_sha256"], tags["elastic.data_sha256"]) == (code, "d" * 64)
    assert tags["elastic.segments"] == "5"


@pytest.fixture
def stood_back(trained, monkeypatch) -> list[int]:
    """What the task that registers asks of `os.nice`, in a process of its own; this one goes on testing."""
    monkeypatch.setenv("ELASTIC_HOME", str(trained.settings.home))
    monkeypatch.setenv("ELASTIC_MLFLOW_URI", trained.settings.mlflow_uri)
    connection = {"conn_type": "http", "host": "http://127.0.0.1:9", "password": CONTROL_SECRET.decode()}
    monkeypatch.setenv("AIRFLOW_CONN_ELASTIC_CONTROL", json.dumps(connection))  # by which it signs what it hands over
    monkeypatch.setattr(RegisterOperator, "control", lambda _: trained)
    monkeypatch.setattr(RegisterOperator, "ended", lambda self, control: control.job(self.job_id))
    monkeypatch.setattr(RegisterOperator, "show_links", lambda *_: None)
    asked: list[int] = []
    monkeypatch.setattr(os, "nice", asked.append)
    return asked


def test_the_task_that_registers_hands_on_what_the_data_was(trained, client, stood_back):
    """As Airflow has filled its template in."""
    trained.checkpoint(10)
    outcome = RegisterOperator(task_id="register", job_id=trained.name, data_sha256="e" * 64).execute(a_context())
    assert stood_back == [10]
    tags = client.get_model_version(outcome["model"], outcome["version"]).tags
    assert tags["elastic.data_sha256"] == "e" * 64


def test_the_task_that_registers_crowns_a_version_once_and_no_champion_falls_by_clearing_it(trained, stood_back):
    """An owner has rolled the better one back: by its metrics it would be champion again."""
    name, register = trained.name, RegisterOperator(task_id="register", job_id=trained.name)
    outcomes = []
    for step, accuracy in ((10, 0.5), (20, 0.9)):
        trained.checkpoint(step)
        trained.results["evaluation"] = {"accuracy": accuracy}
        outcomes.append(register.execute(a_context()))
    assert [(outcome["better"], outcome["against"]) for outcome in outcomes] == [(True, ""), (True, "1")]
    assert champion(trained, trained.settings, name).version == "2"
    promote(trained.settings, name, "1")
    assert register.execute(a_context()) == outcomes[1]
    assert champion(trained, trained.settings, name).version == "1"


def test_what_was_measured_as_no_number_is_registered_and_no_champion(trained, stood_back):
    """The ledger keeps such a metric as text."""
    name, register = trained.name, RegisterOperator(task_id="register", job_id=trained.name)
    trained.checkpoint(10)
    trained.results["evaluation"] = {"accuracy": "NaN"}
    diverged = register.execute(a_context())
    assert (diverged["better"], diverged["verdict"]) == (False, "version 1 has accuracy nan: not promoted")
    promote(trained.settings, name, diverged["version"])
    trained.checkpoint(20)
    trained.results["evaluation"] = {"accuracy": 0.1}
    assert (
        register.execute(a_context())["verdict"]
        == "version 2 (accuracy 0.1) is better than version 1 (accuracy nan): promoted"
    )


def test_a_version_of_a_job_without_pinned_code_or_snapshot_claims_neither(trained, client):
    trained.checkpoint(10)
    made = register_model(trained, trained.settings, trained.name, {})
    tags = client.get_model_version(made.name, made.version).tags
    assert {"elastic.code_sha256", "elastic.data_sha256"} & set(tags) == set()
    assert tags["elastic.segments"] == "1"


@pytest.mark.nightly
def test_mlflows_own_server_of_models_answers_with_what_the_checkpoint_predicts(trained, tmp_path):
    """`mlflow models serve` on loopback, in this environment."""
    trained.checkpoint(10)
    model = trained.checkpoint(20, seed=1)
    made = register_model(trained, trained.settings, trained.name, {"accuracy": 0.9})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "models", "serve", "--model-uri", made.uri, "--env-manager", "local",
               "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]  # fmt: skip
    path = os.pathsep.join([str(ROOT), str(ROOT / "plugins")])
    environment = {**os.environ, "MLFLOW_TRACKING_URI": trained.settings.mlflow_uri, "PYTHONPATH": path,
                   "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}  # fmt: skip
    with (tmp_path / "serving.log").open("wb") as log:
        serving = subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)
    try:
        images = split_digits()[1].tensors[0][:5]
        answer = asked_until_it_answers(
            f"http://127.0.0.1:{port}/invocations", {"inputs": images.numpy().tolist()}, serving, tmp_path
        )
    finally:
        os.killpg(serving.pid, signal.SIGKILL)
        serving.wait()
    np.testing.assert_allclose(answer["predictions"], model(images).detach().numpy(), rtol=1e-5)


def asked_until_it_answers(url: str, body: Any, serving: subprocess.Popen[bytes], folder: Path) -> Any:
    """What it answers once it is up. Fails with its log where it ends, or says anything but 200."""
    deadline = time.monotonic() + 240
    while True:
        try:
            answer = httpx.post(url, json=body, timeout=60)
        except httpx.TransportError:
            said = (folder / "serving.log").read_text()[-3000:]
            assert serving.poll() is None, said
            assert time.monotonic() < deadline, said
            time.sleep(0.5)
            continue
        assert answer.status_code == 200, answer.text
        return answer.json()


def test_a_task_that_gives_no_example_has_a_signature_of_what_it_is_trained_on(trained, monkeypatch):
    monkeypatch.setattr(Digits, "example_input", Task.example_input)
    trained.checkpoint(10)
    made = register_model(trained, trained.settings, trained.name, {})
    signature = mlflow.models.get_model_info(made.uri).signature
    (taken,), (given,) = signature.inputs, signature.outputs
    assert (taken.shape, given.shape) == ((-1, 1, 8, 8), (-1, 10))


def test_no_file_of_a_registered_model_is_a_pickle(trained, tmp_path):
    trained.checkpoint(10)
    made = register_model(trained, trained.settings, trained.name, {})
    folder = Path(mlflow.artifacts.download_artifacts(made.uri, dst_path=str(tmp_path / "model")))
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= {".py", ".json", ".safetensors", ".txt", ".yaml", ".yml", ""}
    assert not any(path.read_bytes()[:2] in (b"\x80\x02", b"\x80\x04", b"\x80\x05", b"PK") for path in files)
    spec = json.loads(next(path for path in files if path.name == "spec.json").read_text())
    assert (spec["entry_point"], spec["params"]) == ("examples.digits:Digits", {"width": 8})


def test_a_registered_model_asks_for_the_packages_of_its_task_beside_the_platforms(trained, tmp_path):
    trained.checkpoint(10)
    made = register_model(trained, trained.settings, trained.name, {})
    folder = Path(mlflow.artifacts.download_artifacts(made.uri, dst_path=str(tmp_path / "model")))
    lines = (folder / "requirements.txt").read_text().split()
    assert len(lines) == len(set(lines))
    wanted = ("elastic-airflow", "torch", "safetensors", "numpy", "pydantic", "scikit-learn")
    assert {f"{name}=={version(name).partition('+')[0]}" for name in wanted} <= set(lines)


def test_registering_again_gives_the_same_version_and_a_newer_checkpoint_a_new_one(trained, client):
    trained.checkpoint(10)
    first = register_model(trained, trained.settings, trained.name, {"accuracy": 0.5})
    assert register_model(trained, trained.settings, trained.name, {"accuracy": 0.5}) == first
    trained.checkpoint(20)
    second = register_model(trained, trained.settings, trained.name, {"accuracy": 0.6})
    assert (first.version, second.version) == ("1", "2")
    assert len(client.search_model_versions(f"name = '{trained.name}'")) == 2


def test_the_best_checkpoint_can_be_asked_for(trained):
    trained.checkpoint(10, accuracy=0.9)
    trained.checkpoint(20, accuracy=0.8)
    assert register_model(trained, trained.settings, trained.name, {}, which="best").step == 10


def test_a_bad_checkpoint_or_one_of_another_lineage_is_not_chosen(trained):
    for step, bad in ((10, False), (20, True)):
        trained.checkpoint(step, bad=bad)
    job = trained.job("")
    other = replace(trained.records[0], lineage=1, step=30)
    assert choose_checkpoint([*trained.records, other], job, "last").step == 10
    with pytest.raises(UserError, match=f"Job {trained.name} has no good checkpoint in lineage 0"):
        choose_checkpoint([other], job, "last")


def test_a_flipped_byte_is_not_registered(trained, client):
    trained.checkpoint(10)
    (shard,) = (trained.settings.home / "store" / trained.records[0].uri).glob("*.safetensors")
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    with pytest.raises(CorruptCheckpoint, match=r"shard-0\.safetensors"):
        register_model(trained, trained.settings, trained.name, {})
    assert client.search_model_versions(f"name = '{trained.name}'") == []


@pytest.mark.parametrize(
    ("mode", "new", "old", "margin", "promoted"),
    [
        ("max", 0.61, 0.60, 0.0, True),
        ("max", 0.60, 0.60, 0.0, False),
        ("max", 0.61, 0.60, 0.02, False),
        ("max", 0.63, 0.60, 0.02, True),
        ("min", 0.60, 0.61, 0.02, False),
        ("min", 0.58, 0.61, 0.02, True),
        ("max", 0.10, float("nan"), 0.5, True),
    ],
)
def test_better_by_less_than_the_margin_is_not_better(mode, new, old, margin, promoted):
    holder = RegisteredVersion(name="m", version="1")
    decision = judge("2", "accuracy", mode, {"accuracy": new}, holder, {"accuracy": old}, margin)
    assert decision.promoted is promoted
    assert ("by 0.02 than" in decision.reason) == (margin == 0.02)


@pytest.mark.parametrize(("p_value", "promoted"), [(0.01, True), (0.2, False)])
def test_better_by_what_chance_gives_is_not_better(p_value, promoted):
    holder = RegisteredVersion(name="m", version="1")
    test = PairedTest(p_value=p_value, alpha=0.05, samples=300)
    decision = judge("2", "accuracy", "max", {"accuracy": 0.9}, holder, {"accuracy": 0.8}, 0.0, test)
    assert decision.promoted is promoted
    assert str(test) in decision.reason
    worse = judge("2", "accuracy", "max", {"accuracy": 0.7}, holder, {"accuracy": 0.8}, 0.0, test)
    assert not worse.promoted


def test_a_better_one_that_is_held_is_challenger_until_it_is_promoted(trained):
    name, settings = trained.name, trained.settings
    for step in (10, 20):
        trained.checkpoint(step)
        register_model(trained, settings, name, {"accuracy": step / 100})
    metrics = {"accuracy": 0.2}
    first = promote_if_better(trained, settings, name, "1", "accuracy", "max", {"accuracy": 0.1}, hold=True)
    waits = "and is a challenger until somebody decides"
    assert str(first) == f"version 1 (accuracy 0.1) has no champion to beat, {waits}"
    promote_if_better(trained, settings, name, "1", "accuracy", "max", {"accuracy": 0.1})
    held = promote_if_better(trained, settings, name, "2", "accuracy", "max", metrics, hold=True)
    assert (held.promoted, held.against) == (True, "1")
    assert str(held) == f"version 2 (accuracy 0.2) is better than version 1 (accuracy 0.1), {waits}"
    client = MlflowClient(settings.tracking_uri())
    assert champion(trained, settings, name).version == "1"
    assert client.get_model_version_by_alias(name, "challenger").version == "2"
    assert promote(settings, name, "2").before == "1"
    assert champion(trained, settings, name).version == "2"
    assert "challenger" not in client.get_registered_model(name).aliases


def test_a_better_one_whose_submitter_may_not_replace_the_champion_is_challenger(trained):
    name, settings = trained.name, trained.settings
    for step, accuracy in ((10, 0.5), (20, 0.6)):
        trained.checkpoint(step)
        register_model(trained, settings, name, {"accuracy": accuracy})
    promote(settings, name, "1")
    asked = []

    def refused(*move):
        asked.append(move)
        raise Forbidden("'ben' may not replace version 1")

    decision = promote_if_better(trained, settings, name, "2", "accuracy", "max", {"accuracy": 0.6}, move=refused)
    assert asked == [(name, "2", "1")]
    assert (decision.promoted, decision.against) == (False, "1")
    better = "version 2 (accuracy 0.6) is better than version 1 (accuracy 0.5)"
    assert str(decision) == f"{better}, and stays a challenger: 'ben' may not replace version 1"
    client = MlflowClient(settings.tracking_uri())
    assert champion(trained, settings, name).version == "1"
    assert client.get_model_version_by_alias(name, "challenger").version == "2"


def test_champion_is_the_first_then_only_a_better_one(trained):
    name, settings = trained.name, trained.settings
    assert champion(trained, settings, name) is None
    for step, accuracy in ((10, 0.5), (20, 0.4), (30, 0.6)):
        trained.checkpoint(step)
        register_model(trained, settings, name, {"accuracy": accuracy})
    assert champion(trained, settings, name) is None

    def promote(version: str, accuracy: float, holder: float | None = None):
        measure = None if holder is None else lambda _: Measured({"accuracy": holder})
        return promote_if_better(trained, settings, name, version, "accuracy", "max", {"accuracy": accuracy}, measure)

    first = promote("1", 0.5)
    assert (first.promoted, str(first)) == (True, "version 1 (accuracy 0.5) has no champion to beat: promoted")
    assert not promote("2", 0.4).promoted
    assert champion(trained, settings, name).version == "1"
    third = promote("3", 0.6)
    assert str(third) == "version 3 (accuracy 0.6) is better than version 1 (accuracy 0.5): promoted"
    again = promote("3", 0.6)
    assert again.promoted
    assert champion(trained, settings, name).version == "3"
    assert not promote("1", 0.9, holder=0.95).promoted
    assert champion(trained, settings, name).version == "3"


def promoted_after_the_next_look(trained: TrainedJob, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """Somebody is faster, once: when the champion was looked up, and nothing is moved yet."""
    kind = type(trained)
    claimants = kind.jobs_that_registered

    def faster(job: TrainedJob, model: str, looked_up: str):
        monkeypatch.setattr(kind, "jobs_that_registered", claimants)
        promote(trained.settings, trained.name, version)
        return claimants(job, model, looked_up)

    monkeypatch.setattr(kind, "jobs_that_registered", faster)


def test_who_became_champion_while_one_was_judged_is_compared_with_too(trained, monkeypatch):
    name, settings = trained.name, trained.settings
    for step, accuracy in ((10, 0.5), (20, 0.9), (30, 0.6), (40, 0.95)):
        trained.checkpoint(step)
        register_model(trained, settings, name, {"accuracy": accuracy})
    promote(settings, name, "1")
    promoted_after_the_next_look(trained, monkeypatch, "2")
    lesser = promote_if_better(trained, settings, name, "3", "accuracy", "max", {"accuracy": 0.6})
    assert str(lesser) == ("version 3 (accuracy 0.6) is not better than version 2 (accuracy 0.9): the champion stays")
    assert champion(trained, settings, name).version == "2"
    promoted_after_the_next_look(trained, monkeypatch, "2")
    promote(settings, name, "1")
    best = promote_if_better(trained, settings, name, "4", "accuracy", "max", {"accuracy": 0.95})
    assert str(best) == "version 4 (accuracy 0.95) is better than version 2 (accuracy 0.9): promoted"
    assert champion(trained, settings, name).version == "4"


def test_who_became_champion_while_another_was_measured_is_measured_too(trained):
    name, settings = trained.name, trained.settings
    for step in (10, 20, 30):
        trained.checkpoint(step)
        register_model(trained, settings, name, {"accuracy": 0.99})  # on data that has changed since
    promote(settings, name, "1")
    asked = []

    def measure(holder: RegisteredVersion) -> Measured:
        asked.append(holder.version)
        promote(settings, name, "2")  # somebody, meanwhile
        return Measured({"accuracy": {"1": 0.5, "2": 0.8}[holder.version]})

    lesser = promote_if_better(trained, settings, name, "3", "accuracy", "max", {"accuracy": 0.7}, measure)
    assert str(lesser) == "version 3 (accuracy 0.7) is not better than version 2 (accuracy 0.8): the champion stays"
    assert (asked, champion(trained, settings, name).version) == (["1", "2"], "2")


def test_a_champion_that_cannot_be_measured_on_the_data_stays_and_the_verdict_says_why(trained):
    name, settings = trained.name, trained.settings
    for step in (10, 20):
        trained.checkpoint(step)
        register_model(trained, settings, name, {"accuracy": 0.1})
    promote(settings, name, "1")

    def measure(_: RegisteredVersion) -> Measured:
        return Measured(None, fault="folder: Extra inputs are not permitted.")

    decision = promote_if_better(trained, settings, name, "2", "accuracy", "max", {"accuracy": 0.9}, measure)
    assert (decision.promoted, decision.against) == (False, "1")
    assert "by its own job's code and parameters: folder: Extra inputs are not permitted. The champion" in str(decision)
    assert f"`elastic models promote {name} 2` makes version 2 champion all the same" in str(decision)
    assert champion(trained, settings, name).version == "1"


def test_who_became_champion_between_the_look_and_the_move_is_measured_too(trained, monkeypatch):
    name, settings = trained.name, trained.settings
    for step in (10, 20, 30):
        trained.checkpoint(step)
        register_model(trained, settings, name, {"accuracy": 0.1})  # on data that has changed since
    promote(settings, name, "1")
    asked, champions = [], []

    def measure(holder: RegisteredVersion) -> Measured:
        asked.append(holder.version)
        champions.append(champion(trained, settings, name).version)
        if holder.version == "1":
            promoted_after_the_next_look(trained, monkeypatch, "2")
            return Measured({"accuracy": 0.5})
        return Measured({"accuracy": 0.65}, PairedTest(p_value=0.2, alpha=0.05, samples=300))

    decision = promote_if_better(trained, settings, name, "3", "accuracy", "max", {"accuracy": 0.7}, measure)
    assert (decision.promoted, decision.against) == (False, "2")
    assert "maybe by chance" in decision.reason
    assert asked == champions == ["1", "2"], "whoever is measured is champion meanwhile"
    assert champion(trained, settings, name).version == "2"
    with open_registry(settings) as registry:
        assert former_champion(registry, name) == "1", "who never was champion is nothing to roll back to"


def test_a_candidate_that_somebody_promotes_while_it_is_judged_is_not_judged_against_itself(trained, monkeypatch):
    name, settings = trained.name, trained.settings
    for step, accuracy in ((10, 0.5), (20, 0.6)):
        trained.checkpoint(step)
        register_model(trained, settings, name, {"accuracy": accuracy})
    promote(settings, name, "1")
    promoted_after_the_next_look(trained, monkeypatch, "2")
    decision = promote_if_better(trained, settings, name, "2", "accuracy", "max", {"accuracy": 0.6})
    assert str(decision) == "version 2 (accuracy 0.6) is better than version 1 (accuracy 0.5): promoted"
    assert champion(trained, settings, name).version == "2"

    def measure(holder: RegisteredVersion) -> Measured:
        promote(settings, name, "2")
        return Measured(holder.metrics)

    promote(settings, name, "1")
    decision = promote_if_better(trained, settings, name, "2", "accuracy", "max", {"accuracy": 0.6}, measure)
    assert (decision.promoted, decision.against) == (True, "2")


@pytest.mark.parametrize(
    ("mode", "candidate", "holder", "promoted"),
    [
        ("min", 0.1, 0.2, True),
        ("min", 0.2, 0.1, False),
        ("max", 0.2, 0.1, True),
        ("max", 0.1, 0.1, False),
        ("min", float("nan"), 0.1, False),
        ("min", float("nan"), float("nan"), False),
        ("max", 0.1, float("nan"), True),
        ("max", float("inf"), 0.1, False),
        ("min", 0.1, float("-inf"), True),
    ],
)
def test_judging(mode, candidate, holder, promoted):
    champion = RegisteredVersion(
        name="a", version="1", job_id="j", step=1, checkpoint_uri="u", metrics={"m": holder}
    )  # fmt: skip
    assert judge("9", "m", mode, {"m": candidate}, champion, None).promoted is promoted


def test_a_candidate_that_was_not_measured_is_not_promoted_and_it_is_said():
    decision = judge("9", "accuracy", "max", {"loss": 1.0}, None, None)
    assert not decision.promoted
    assert "version 9 was not measured at accuracy, only at loss" in decision.reason


@pytest.mark.parametrize("compared", [None, {"loss": 0.3}])
def test_a_champion_that_was_not_measured_at_the_metric_stays_and_it_is_said(compared):
    champion = RegisteredVersion(
        name="a", version="1", job_id="j", step=1, checkpoint_uri="u", metrics={"loss": 0.2}
    )  # fmt: skip
    decision = judge("9", "anything", "max", {"anything": 1e9}, champion, compared)
    assert (decision.promoted, decision.against) == (False, "1")
    assert "version 1, the champion, was not measured at it, only at loss: the champion stays" in decision.reason


def test_a_loop_that_does_not_say_how_its_model_is_made_cannot_be_registered(trained):
    trained.checkpoint(10)
    trained.entry_point = "tests.track.loops:bare"
    settings = trained.settings.model_copy(update={"tasks": "tests.*"})
    with pytest.raises(UserError, match=r"Give\s+@session_task\(model=...\)"):
        register_model(trained, settings, trained.name, {})


def test_without_mlflow_there_is_no_registry(trained):
    with pytest.raises(UserError, match="ELASTIC_MLFLOW_URI is 'none'"):
        champion(trained, Settings(mlflow_uri="none"), "digits")


def crowned(trained: TrainedJob, client: MlflowClient) -> TrainedJob:
    """With two versions, the first of which is the champion."""
    for step, accuracy in ((10, 0.5), (20, 0.9)):
        trained.checkpoint(step)
        register_model(trained, trained.settings, trained.name, {"accuracy": accuracy})
    client.set_registered_model_alias(trained.name, "champion", "1")
    return trained


def test_forged_tags_change_neither_the_champions_checkpoint_nor_its_metrics(trained, client):
    name = crowned(trained, client).name
    forged = {"checkpoint_uri": "another/step-1", "job_id": "another", "step": "1", "metrics": '{"accuracy": 1.0}'}
    for key, value in forged.items():
        client.set_model_version_tag(name, "1", f"elastic.{key}", value)
    holder = champion(trained, trained.settings, name)
    first = trained.records[0]
    assert (holder.job_id, holder.step, holder.metrics) == (trained.name, 10, {"accuracy": 0.5})
    assert (holder.checkpoint_uri, holder.manifest_sha256) == (first.uri, first.manifest_sha256)
    assert champion_checkpoint(trained, trained.settings, name) == first


def test_who_is_champion_can_still_be_changed_in_mlflow(trained, client):
    name = crowned(trained, client).name
    client.set_registered_model_alias(name, "champion", "2")
    assert champion_checkpoint(trained, trained.settings, name) == trained.records[1]


def test_a_champion_that_no_job_registered_is_no_start(trained, client):
    name = crowned(trained, client).name
    tags = {"elastic.checkpoint_uri": trained.records[0].uri, "elastic.job_id": trained.name}
    run = client.create_run("0").info
    made = client.create_model_version(name, f"{run.artifact_uri}/by-hand", run.run_id, tags=tags)
    client.set_registered_model_alias(name, "champion", made.version)
    assert champion(trained, trained.settings, name).checkpoint_uri == ""
    with pytest.raises(
        UserError, match=rf"Version {made.version} of model {name} .* no job of the ledger has registered"
    ):
        champion_checkpoint(trained, trained.settings, name)


def test_a_champion_whose_manifest_was_exchanged_or_that_is_bad_is_no_start(trained, client):
    name = crowned(trained, client).name
    manifest = next((trained.settings.home / "store" / trained.records[0].uri).glob("manifest*"))
    committed = manifest.read_bytes()
    manifest.write_bytes(committed.replace(b"1", b"2", 1))
    with pytest.raises(CorruptCheckpoint):
        champion_checkpoint(trained, trained.settings, name)
    manifest.write_bytes(committed)
    trained.records[0] = replace(trained.records[0], bad=True)
    with pytest.raises(UserError, match="is no longer there or was found corrupt"):
        champion_checkpoint(trained, trained.settings, name)


def test_a_version_that_an_earlier_release_registered_is_known(trained, client):
    name = crowned(trained, client).name
    client.set_registered_model_alias(name, "champion", "2")
    del trained.results["registered_versions"]  # what it did not keep
    assert champion_checkpoint(trained, trained.settings, name) == trained.records[1]


def test_of_two_that_claim_a_version_the_later_registration_counts(trained, client):
    name = crowned(trained, client).name
    older = replace(trained.job(name), job_id="older", results={
        "registered_versions": {f"{name}/1": {"uri": "older/step-1", "metrics": {}, "at": 1.0}}
    })  # fmt: skip
    trained.jobs = lambda active_only=False: [trained.job(name), older]
    assert champion(trained, trained.settings, name).job_id == trained.name
