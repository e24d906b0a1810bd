"""A form of `elastic_job` that can be no job is refused where it was filled in: by Airflow's own API, before a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from airflow import settings as airflow_settings
from airflow.api_fastapi.app import create_app, get_auth_manager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.models.base import Base
from airflow.models.dagrun import DagRun
from airflow.utils.session import create_session
from fastapi.testclient import TestClient

from elastic_airflow.page import form_check
from tests.security.odd_specs.server_process import store_dags

ROUTE = "/api/v2/dags/elastic_job/dagRuns"
DIGITS = "examples.digits:Digits"


@pytest.fixture(scope="module")
def airflow() -> Iterator[TestClient]:
    """Airflow's API server with the plugin in it, over the platform's DAGs. Nothing runs what it starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", "ann:user,vic:viewer")
        store_dags()
        yield TestClient(create_app(apps="core"), raise_server_exceptions=False)
    Base.metadata.drop_all(airflow_settings.engine)


@pytest.fixture(autouse=True)
def no_runs(airflow: TestClient) -> Iterator[None]:
    yield
    with create_session() as session:
        session.query(DagRun).delete()


def login(name: str, role: str) -> dict[str, str]:
    token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username=name, role=role))
    return {"authorization": f"Bearer {token}"}


def trigger(airflow: TestClient, form: dict[str, Any], name: str = "ann", role: str = "user") -> tuple[int, str]:
    """Status and words of the answer to the request that Airflow's form sends."""
    answer = airflow.post(ROUTE, json={"conf": form, "logical_date": None}, headers=login(name, role))
    return answer.status_code, str(answer.json().get("detail", ""))


def started() -> int:
    with create_session() as session:
        return int(session.query(DagRun).count())


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ({"preset": "digits", "work_samples": 9, "work_epochs": 2}, "both epochs"),
        ({"preset": "digits", "batch_maxx": 9}, "did you mean 'batch_max'?"),
        ({"preset": "digits", f"{DIGITS}.widht": 9}, "did you mean 'width'?"),
        ({"preset": "plain-loop", f"{DIGITS}.width": 9}, "is filled in, and the job trains examples.plain_loop:train"),
        ({"preset": "digit"}, "no preset 'digit': there are"),
        ({"preset": "digits", "entry_point": "os:system"}, "matches none of the operator's patterns (examples.*)"),
        ({"preset": "digits", "batch_min": 512, "batch_max": 64}, "batch"),
        ({}, "name: is needed and was not given"),
    ],
)
def test_what_the_fields_come_to_is_judged_before_there_is_a_run(
    airflow: TestClient, form: dict[str, Any], says: str
) -> None:
    status, words = trigger(airflow, form)
    assert (status, says in words) == (422, True), words
    assert started() == 0


def test_airflow_judges_each_field_by_itself(airflow: TestClient) -> None:
    status, words = trigger(airflow, {"preset": "digits", f"{DIGITS}.width": 3})
    assert (status, "3 is less than the minimum of 4" in words, started()) == (400, True, 0)


@pytest.mark.parametrize(
    "form",
    [
        {"preset": "digits", f"{DIGITS}.width": 16, "name": None, "examples.tabular:Tabular.depth": None},
        {"job_id": "some-job", "batch_maxx": 9},  # a run that may attach to a job
        {"spec": {"name": "mine", "entry_point": DIGITS, "work": {"epochs": 1}, "batch": {"min": 8, "max": 8}}},
    ],
)
def test_a_form_that_can_be_a_job_starts_a_run_with_all_that_was_filled_in(
    airflow: TestClient, form: dict[str, Any]
) -> None:
    assert trigger(airflow, form)[0] == 200
    with create_session() as session:
        assert form.items() <= session.query(DagRun).one().conf.items()


def test_who_may_not_start_runs_is_told_that_and_nothing_of_the_form(airflow: TestClient) -> None:
    wrong = {"preset": "digits", "batch_maxx": 9}
    assert airflow.post(ROUTE, json={"conf": wrong, "logical_date": None}).status_code == 401
    status, words = trigger(airflow, wrong, "vic", "viewer")
    assert (status, "batch" in words, started()) == (403, False, 0)


@pytest.mark.parametrize("sent", [b"no json", b"[]", b'{"conf": 7}', b'{"conf": ' + b"[" * 9_999])
def test_what_is_no_form_is_airflows_to_refuse(airflow: TestClient, sent: bytes) -> None:
    headers = {**login("ann", "user"), "content-type": "application/json"}
    with_it = airflow.post(ROUTE, content=sent, headers=headers)
    assert with_it.status_code in (400, 422)
    assert started() == 0


def test_what_cannot_be_judged_here_is_left_to_the_runs_first_task(
    airflow: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = {"preset": "digits", "batch_maxx": 9}
    with monkeypatch.context() as patch:
        patch.setattr(form_check, "find_presets", lambda _: {})  # of a host without the project
        assert trigger(airflow, wrong)[0] == 200
    with monkeypatch.context() as patch:
        patch.setattr(form_check, "find_presets", lambda _: 1 / 0)
        assert trigger(airflow, {**wrong, "name": "again"})[0] == 200
    monkeypatch.setattr(form_check, "MOST_BYTES", 10)
    assert trigger(airflow, {**wrong, "name": "large"})[0] == 200


def test_forms_of_other_dags_pass(airflow: TestClient) -> None:
    asked = {"conf": {"batch_maxx": 1}, "logical_date": None}
    answer = airflow.post("/api/v2/dags/somebody_elses/dagRuns", json=asked, headers=login("ann", "user"))
    assert (answer.status_code, answer.json()["detail"]) == (404, "Dag with dag_id: 'somebody_elses' not found")
