"""Champions are moved by hand, and rolled back to, on a real MLflow server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from mlflow import MlflowClient

from elastic_core.errors import Conflict, NotFound
from elastic_core.track.champions.model_aliases import (
    FORMER,
    ChampionMoved,
    list_models,
    move_champion,
    name_challenger,
    roll_back,
)
from elastic_core.track.champions.registry_api import Registry
from tests.track.mlflow_server import MlflowServer


@pytest.fixture
def registry(mlflow_server: MlflowServer) -> Iterator[Registry]:
    with Registry(mlflow_server.uri) as opened:
        yield opened


@pytest.fixture
def name(client: MlflowClient) -> str:
    """A model of three versions, of which none is the champion."""
    made = f"digits-{uuid.uuid4().hex[:8]}"
    client.create_registered_model(made)
    for _ in range(3):
        run = client.create_run("0")
        client.create_model_version(made, f"{run.info.artifact_uri}/model", run.info.run_id)
    return made


def champion(client: MlflowClient, name: str) -> str:
    return str(client.get_model_version_by_alias(name, "champion").version)


def test_a_champion_is_rolled_back_to_the_one_before_and_to_the_one_before_that(
    client: MlflowClient, registry: Registry, name: str
) -> None:
    assert move_champion(registry, name, "1") == ChampionMoved(name=name, before=None, now="1")
    move_champion(registry, name, "3")
    move_champion(registry, name, "2")
    (listed,) = [model for model in list_models(registry) if model.name == name]
    assert (listed.champion, listed.newest, listed.former) == ("2", "3", ("3", "1"))
    assert roll_back(registry, name) == ChampionMoved(name=name, before="2", now="3")
    assert roll_back(registry, name).now == "1"
    assert champion(client, name) == "1"
    with pytest.raises(Conflict, match="has no champion from before that is still there"):
        roll_back(registry, name)


def test_a_champion_that_has_come_since_is_not_rolled_back(client: MlflowClient, registry: Registry, name: str) -> None:
    for version in ("1", "2", "3"):
        move_champion(registry, name, version)
    for instead_of in ("1", ""):
        with pytest.raises(Conflict, match=f"the champion of {name} is version 3 by now, and was .* it stays"):
            roll_back(registry, name, "2", instead_of)
    assert champion(client, name) == "3"
    assert roll_back(registry, name, "2", "3").now == "2"
    assert roll_back(registry, name, "2", "3").now == "2", "asked again, as a retry does"


def test_a_champion_that_was_deleted_since_is_passed_over(client: MlflowClient, registry: Registry, name: str) -> None:
    for version in ("1", "2", "3"):
        move_champion(registry, name, version)
    client.delete_model_version(name, "2")
    assert roll_back(registry, name).now == "1"


def test_promoting_the_champion_again_forgets_nothing(registry: Registry, name: str) -> None:
    move_champion(registry, name, "1")
    move_champion(registry, name, "2")
    assert move_champion(registry, name, "2") == ChampionMoved(name=name, before="2", now="2")
    assert roll_back(registry, name).now == "1"


def test_who_was_judged_against_another_champion_is_refused_and_waits_no_longer(
    client: MlflowClient, registry: Registry, name: str
) -> None:
    name_challenger(registry, name, "2")
    assert move_champion(registry, name, "1", instead_of="").before is None
    with pytest.raises(
        Conflict, match=r"version 2 of .* was judged against none, and the champion is version 1 by now"
    ):
        move_champion(registry, name, "2", instead_of="")
    assert client.get_registered_model(name).aliases == {"champion": "1"}
    name_challenger(registry, name, "2")
    move_champion(registry, name, "3")
    with pytest.raises(Conflict, match=rf"against version 1, .* version 3 by now: .* models promote {name} 2`"):
        move_champion(registry, name, "2", instead_of="1")
    assert client.get_registered_model(name).aliases == {"champion": "3"}
    assert move_champion(registry, name, "2", instead_of="3").now == "2"
    assert move_champion(registry, name, "2", instead_of="3").before == "2"  # asked again, as a retry does


def test_what_is_not_there_is_not_found_and_what_is_is_named(registry: Registry, name: str) -> None:
    with pytest.raises(NotFound, match="has no version 9; there are 1, 2, 3"):
        move_champion(registry, name, "9")
    with pytest.raises(NotFound, match="there is no registered model 'nothing'"):
        roll_back(registry, "nothing")


def test_a_tag_that_somebody_wrote_otherwise_offers_nothing(
    client: MlflowClient, registry: Registry, name: str
) -> None:
    move_champion(registry, name, "1")
    for text in ("{", "3", '["7"]'):
        client.set_registered_model_tag(name, FORMER, text)
        with pytest.raises(Conflict):
            roll_back(registry, name)
