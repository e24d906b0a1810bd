"""The registry by its REST API: what MLflow's own client sees and says, and whom it asks as."""

from __future__ import annotations

import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient

from elastic_core.errors import InfrastructureError, NotFound, UserError
from elastic_core.settings import Settings
from elastic_core.track.champions import registry_api
from elastic_core.track.champions.registry_api import Registry, open_registry
from tests.track.mlflow_server import MlflowServer


@pytest.fixture
def registry(mlflow_server: MlflowServer) -> Iterator[Registry]:
    with Registry(mlflow_server.uri) as opened:
        yield opened


def a_model(client: MlflowClient, name: str, versions: int) -> str:
    client.create_registered_model(name)
    for _ in range(versions):
        run = client.create_run("0")
        client.create_model_version(name, f"{run.info.artifact_uri}/model", run.info.run_id)
    return name


@pytest.mark.parametrize("name", ["cats", "it's", "dogs and cats", 'a"b'])
def test_it_sees_what_mlflows_own_client_sees(client: MlflowClient, registry: Registry, name: str) -> None:
    model = a_model(client, f"{name}-{uuid.uuid4().hex[:6]}", 3)
    client.set_registered_model_alias(model, "champion", "2")
    client.set_registered_model_tag(model, "key", "value")
    seen = registry.model(model)
    assert (seen.name, seen.aliases, seen.tags, seen.newest) == (model, {"champion": "2"}, {"key": "value"}, "3")
    versions = registry.versions(model)
    assert [version.number for version in versions] == ["1", "2", "3"]
    assert versions[0].at == client.get_model_version(model, "1").creation_timestamp / 1000
    assert model in [each.name for each in registry.models()]


def test_mlflows_own_client_sees_what_it_does(client: MlflowClient, registry: Registry) -> None:
    model = a_model(client, f"cats-{uuid.uuid4().hex[:6]}", 2)
    registry.set_alias(model, "champion", "1")
    registry.set_alias(model, "champion", "2")
    registry.set_alias(model, "challenger", "1")
    registry.set_tag(model, "key", "value")
    registry.drop_alias(model, "challenger")
    seen = client.get_registered_model(model)
    assert ({key: str(value) for key, value in seen.aliases.items()}, seen.tags) == (
        {"champion": "2"},
        {"key": "value"},
    )


def test_there_may_be_more_than_one_page(
    client: MlflowClient, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry_api, "PAGE", 2)
    model = a_model(client, f"cats-{uuid.uuid4().hex[:6]}", 5)
    assert [version.number for version in registry.versions(model)] == ["1", "2", "3", "4", "5"]
    assert {each.name for each in registry.models()} == {each.name for each in client.search_registered_models()}


def test_what_is_not_there_is_not_found_and_what_is_refused_is_told(registry: Registry) -> None:
    with pytest.raises(NotFound, match="no registered model 'nothing'"):
        registry.model("nothing")
    with pytest.raises(NotFound):
        registry.set_alias("nothing", "champion", "1")
    with pytest.raises(UserError, match="answered 400"):
        registry.set_alias("nothing", "not/an alias", "1")


def test_a_server_that_is_away_is_told_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with Registry(f"http://127.0.0.1:{port}") as registry, pytest.raises(InfrastructureError, match="does not answer"):
        registry.models()


def test_who_is_asked_and_as_whom_is_what_the_settings_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="ELASTIC_MLFLOW_URI is 'none'"):
        open_registry(Settings(home=tmp_path, mlflow_uri="none"))
    with pytest.raises(UserError, match="asked over HTTP"):
        open_registry(Settings(home=tmp_path, mlflow_uri="sqlite:///runs.db"))
    with pytest.raises(UserError, match="elastic up"):  # the embedded server's password is not there
        open_registry(Settings(home=tmp_path))

    def header(**given: str) -> str:
        for name in ("TOKEN", "USERNAME", "PASSWORD"):
            monkeypatch.delenv(f"MLFLOW_TRACKING_{name}", raising=False)
        for name, value in given.items():
            monkeypatch.setenv(f"MLFLOW_TRACKING_{name}", value)
        with open_registry(Settings(home=tmp_path, mlflow_uri="http://127.0.0.1:9")) as opened:
            return opened._http.headers.get("authorization", "")

    assert header() == ""
    assert header(TOKEN="a-token") == "Bearer a-token"
    assert header(USERNAME="ann", PASSWORD="secret") == "Basic YW5uOnNlY3JldA=="


def test_neither_mlflow_nor_torch_is_loaded_for_it() -> None:
    code = (
        "import sys; import elastic_core.track.champions.model_aliases, elastic_core.commands.model_commands; "
        "print(*({'torch', 'mlflow', 'pandas', 'sklearn'} & set(sys.modules)), 'end')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["end"]
