"""The page of models in a browser, and its routes, on a real MLflow: who may promote and roll back, on record."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import httpx
import pytest
from fastapi import FastAPI, Header, HTTPException
from mlflow import MlflowClient
from playwright.sync_api import Page, expect

from elastic_airflow.api_server import control_app
from elastic_core.control.plane import LedgerControl
from elastic_core.errors import Conflict, Forbidden, InfrastructureError, NotFound
from elastic_core.protocol.callers import Caller, Way
from elastic_core.protocol.records import ChampionMoved
from elastic_core.protocol.rest import rest_client
from elastic_core.protocol.rest.rest_client import RestClient
from elastic_core.settings import Settings
from elastic_core.spec import QueueSpec
from elastic_core.track.champions.model_aliases import move_champion
from elastic_core.track.champions.registry_api import Registry
from elastic_core.track.champions.registry_champions import RegistryChampions
from tests.airflow.page.test_accessibility import faults
from tests.builders import CONTROL_SECRET, FACTS, a_cluster, a_spec
from tests.control.serving import served
from tests.track.mlflow_server import MlflowServer

TEAM = QueueSpec(name="vision", owners=("olga",), members=("ann", "ben"))


@pytest.fixture
def settings(settings: Settings, mlflow_server: MlflowServer) -> Settings:
    return settings.model_copy(update={"mlflow_uri": mlflow_server.uri})


@pytest.fixture
def registry(mlflow_server: MlflowServer) -> MlflowClient:
    return MlflowClient(mlflow_server.uri, registry_uri=mlflow_server.uri)


@pytest.fixture
def model(registry: MlflowClient, settings: Settings, shown: LedgerControl) -> str:
    """Of three versions, two of ann's job and a third made by hand. The champion is the second, after the first."""
    shown._champions = RegistryChampions(settings)
    name = f"cats-{uuid.uuid4().hex[:8]}"
    registry.create_registered_model(name)
    for _ in range(3):
        run = registry.create_run("0")
        registry.create_model_version(name, f"{run.info.artifact_uri}/model", run.info.run_id)
    shown.set_cluster(a_cluster().model_copy(update={"queues": (TEAM,)}))
    shown.acting(Caller(name="ann", way=Way.REST)).submit("cats-1", a_spec("cats", queue="vision"), FACTS)
    made = {f"{name}/{n}": {"uri": f"ckpt/{n}", "metrics": {"accuracy": 0.9 + int(n) / 100}, "at": 1.0} for n in "12"}
    shown.record_results("cats-1", {"registered_versions": made})
    with Registry(settings.mlflow_uri) as asked:
        move_champion(asked, name, "1")
        move_champion(asked, name, "2")
    return name


def champion(registry: MlflowClient, name: str) -> str:
    return str(registry.get_model_version_by_alias(name, "champion").version)


@pytest.fixture
def opened(page: Page, address: str, model: str) -> Page:
    page.goto(f"{address}models/models.html?model={model}")
    expect(page.get_by_role("heading", level=3)).to_have_text(model)
    return page


def test_versions_are_shown_with_what_made_them(opened: Page, model: str) -> None:
    second, third = (opened.locator(f"tr[data-version='{number}']") for number in "23")
    expect(second).to_contain_text("champion")
    expect(second).to_contain_text("accuracy 0.92")
    expect(second.get_by_role("link", name="cats-1")).to_be_visible()
    expect(second.get_by_role("button")).to_be_disabled()
    expect(third).to_contain_text("nobody that the ledger knows")
    expect(opened.locator(f"#list button[data-name='{model}']")).to_contain_text("champion 2")
    assert faults(opened) == []


def test_a_version_is_promoted_and_the_one_before_is_rolled_back_to(
    opened: Page, model: str, registry: MlflowClient, shown: LedgerControl
) -> None:
    registry.set_registered_model_alias(model, "challenger", "3")
    opened.get_by_role("button", name="Promote version 3").click()
    opened.get_by_role("button", name="No", exact=True).click()
    assert champion(registry, model) == "2", "asked first"
    opened.get_by_role("button", name="Promote version 3").click()
    opened.get_by_role("button", name="Yes, promote").click()
    expect(opened.locator(".said")).to_contain_text("Version 3 is the champion; before it was 2.")
    assert champion(registry, model) == "3"
    opened.get_by_role("button", name="Roll back to version 2").click()
    opened.get_by_role("button", name="Yes, roll back").click()
    expect(opened.locator(".said")).to_contain_text("Version 2 is the champion; before it was 3.")
    assert champion(registry, model) == "2"
    expect(opened.locator("tr[data-version='2']")).to_contain_text("champion")
    told = [(record.actor, record.action, record.subject, record.detail) for record in shown.audit_records(limit=2)]
    assert told == [
        ("ann", "promote", f"version 2 of model {model!r}", "rolled back to"),
        ("ann", "promote", f"version 3 of model {model!r}", "by hand"),
    ]


@pytest.mark.nightly
def test_a_registry_that_is_away_is_told(page: Page, address: str, mlflow_server: MlflowServer) -> None:
    mlflow_server.kill()
    try:
        page.goto(f"{address}models/models.html")
        expect(page.locator(".banner")).to_contain_text("does not answer")
    finally:
        mlflow_server.start()


@pytest.fixture
def rest(shown: LedgerControl, settings: Settings) -> Iterator[str]:
    """The routes' address, where a token is its user's name."""

    def reads(authorization: str = Header(default="")) -> None:
        if not authorization:
            raise HTTPException(401, "Not authenticated")

    def writes(authorization: str = Header(default="")) -> Caller:
        reads(authorization)
        name = authorization.removeprefix("Bearer ")
        if name == "viewer":
            raise HTTPException(403, "Forbidden")
        return Caller(name=name, way=Way.REST, unrestricted=name == "admin")

    inner = control_app(shown, settings, service_secret=CONTROL_SECRET, reads=reads, writes=writes)
    app = FastAPI()
    app.mount("/elastic", inner)
    with served(app) as url:
        yield url


def test_the_champion_of_now_is_asked_of_the_registry(model: str, settings: Settings, registry: MlflowClient) -> None:
    champions = RegistryChampions(settings)
    assert champions.champion(model) == "2"
    registry.delete_registered_model_alias(model, "champion")
    assert champions.champion(model) is None
    with pytest.raises(NotFound, match="there is no registered model 'none-such'"):
        champions.champion("none-such")


def test_who_may_act_on_the_job_that_made_a_version_may_promote_it(
    rest: str, model: str, registry: MlflowClient, shown: LedgerControl
) -> None:
    assert httpx.get(f"{rest}/elastic/api/v1/models").status_code == 401
    by = {name: RestClient(rest, token=name) for name in ("viewer", "ann", "ben", "eve", "olga", "admin")}
    assert [version.version for version in by["viewer"].model(model).versions] == ["3", "2", "1"]
    for name in ("viewer", "ben", "eve"):  # of ann's team, and of none
        with pytest.raises(Forbidden):
            by[name].promote(model, "1")
    assert champion(registry, model) == "2"
    assert by["ann"].promote(model, "1") == ChampionMoved(name=model, before="2", now="1")
    assert by["olga"].promote(model, "2").now == "2"
    with pytest.raises(Forbidden, match="version 3 of model"):  # of which nobody knows whose it is
        by["olga"].promote(model, "3")
    assert by["admin"].promote(model, "3").now == "3"
    refused = [record for record in shown.audit_records(limit=20) if not record.done]
    assert {record.actor for record in refused} == {"ben", "eve", "olga"}


def test_a_roll_back_that_was_asked_for_twice_is_one(rest: str, model: str) -> None:
    with RestClient(rest, token="ann") as ann:
        assert ann.model(model).roll_back_to == "1"
        for _ in range(2):
            assert ann.roll_back_model(model, "1").now == "1"
        assert (ann.model(model).model.champion, ann.model(model).roll_back_to) == ("1", None)
        with pytest.raises(Conflict, match="has no champion from before"):
            ann.roll_back_model(model, "2")


def test_what_is_not_there_is_not_found(rest: str, model: str) -> None:
    with RestClient(rest, token="admin") as admin:
        with pytest.raises(NotFound, match="no registered model 'dogs'"):
            admin.model("dogs")
        with pytest.raises(NotFound, match="has no version 9; there are 1, 2, 3"):
            admin.promote(model, "9")
        assert model in [listed.name for listed in admin.all_models()]


def test_models_come_in_pages_and_are_searched_by_name(
    rest: str, model: str, registry: MlflowClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    word = f"zebra{uuid.uuid4().hex[:6]}"
    names = [f"{word}-{number}" for number in range(3)]
    for name in names:
        registry.create_registered_model(name)
    with RestClient(rest, token="viewer") as viewer:
        page = viewer.models(search=word.upper(), offset=1, limit=1)
        assert (page.total, page.offset, [one.name for one in page.models]) == (3, 1, names[1:2])
        monkeypatch.setattr(rest_client, "MOST_MODELS", 2)
        assert [one.name for one in viewer.all_models(search=word)] == names
        assert viewer.models(search="no such model").total == 0
    assert httpx.get(f"{rest}/elastic/api/v1/models?limit=501", headers={"authorization": "x"}).status_code == 422


def test_the_page_lists_the_first_models_and_more_with_a_click_and_searches(
    opened: Page, model: str, registry: MlflowClient
) -> None:
    word = f"yak{uuid.uuid4().hex[:6]}"
    for number in range(51):
        registry.create_registered_model(f"{word}-{number:02}")
    opened.get_by_label("Search").fill(word)
    buttons = opened.locator("#list button")
    expect(buttons).to_have_count(50)
    opened.get_by_role("button", name="1 more of 51").click()
    expect(buttons).to_have_count(51)
    opened.get_by_label("Search").fill("no such model")
    expect(opened.get_by_text("No registered model has that in its name.")).to_be_visible()
    assert faults(opened) == []


@pytest.mark.nightly
def test_rest_says_at_once_that_the_registry_is_away(rest: str, mlflow_server: MlflowServer) -> None:
    mlflow_server.kill()
    try:
        admin = RestClient(rest, token="admin", patience_seconds=0.1)
        with admin, pytest.raises(InfrastructureError, match="does not answer"):
            admin.models()
    finally:
        mlflow_server.start()
