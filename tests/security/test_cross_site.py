"""No other site's page acts in a person's name: every route that changes something, by every way a page might try."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

import tests.airflow_home  # noqa: F401 - before what may import Airflow
from elastic_airflow.api_server import control_app
from tests.builders import CONTROL_SECRET, FakeClock, a_control
from tests.control.serving import served

JSON = {"content-type": "application/json"}


def logged_in() -> None:
    """The person's cookie is right: what is tested is whose page sent it."""


@pytest.fixture
def app(ledger_url: str, tmp_path: Path) -> Iterator[FastAPI]:
    control = a_control(ledger_url, tmp_path, FakeClock())
    yield control_app(control, control.settings, service_secret=CONTROL_SECRET, reads=logged_in, writes=logged_in)
    control.close()


@pytest.fixture
def client(app: FastAPI) -> Iterator[httpx.Client]:
    with served(app) as url, httpx.Client(base_url=url, cookies={"_token": "a person's"}) as made:
        yield made


def writes(app: FastAPI) -> list[tuple[str, str]]:
    """Method and path of every route that changes something for a person."""
    routes = [route for route in app.routes if isinstance(route, APIRoute) and route.path.startswith(("/ui", "/api"))]
    found = [(method, route.path) for route in routes for method in route.methods - {"GET", "HEAD"}]
    return [
        (method, path.replace("{job_id}", "job-a").replace("{segment_id}", "job-a__seg_0")) for method, path in found
    ]


@pytest.mark.parametrize(
    ("headers", "status", "says"),
    [
        ({"content-type": "text/plain", "sec-fetch-site": "same-origin"}, 415, "takes application/json only"),
        ({"content-type": "application/x-www-form-urlencoded"}, 415, "takes application/json only"),
        ({"sec-fetch-site": "same-origin"}, 415, "sent as 'nothing'"),
        ({**JSON, "origin": "https://elsewhere.example"}, 403, "a page of https://elsewhere.example"),
        ({**JSON, "origin": "null"}, 403, "a page of null"),
        ({**JSON, "origin": "http://["}, 403, "a page of http://["),
        ({**JSON, "origin": ""}, 403, "a page of "),
        ({**JSON, "sec-fetch-site": "cross-site"}, 403, "Sec-Fetch-Site: cross-site"),
        ({**JSON, "sec-fetch-site": "same-site"}, 403, "Sec-Fetch-Site: same-site"),
        (JSON, 403, "has a cookie at most"),
    ],
)
def test_a_write_that_another_site_may_have_made_is_refused(
    app: FastAPI, client: httpx.Client, headers: dict[str, str], status: int, says: str
) -> None:
    assert {"/api/v1/what-if", "/api/v1/models/{name}/roll-back"} < {path for _, path in writes(app)}
    for method, path in writes(app):
        answer = client.request(method, path, content=b'{"reason": "x"}', headers=headers)
        assert (answer.status_code, says in answer.json()["message"]) == (status, True), (path, answer.text)


@pytest.mark.parametrize("headers", [{"sec-fetch-site": "same-origin"}, {"authorization": "Bearer a-token"}, None])
def test_the_own_page_and_programs_with_a_token_pass(client: httpx.Client, headers: dict[str, str] | None) -> None:
    own = headers or {"origin": str(client.base_url).rstrip("/")}
    answer = client.post("/api/v1/jobs/job-a/cancel", json={"reason": "x"}, headers=own)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), "it came as far as the ledger"


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/api/v1/jobs", b'{"spec": {"params": {"a": "\\u0000"}}}', 422),
        ("/api/v1/jobs", b'{"spec": {"params": {"a": "\\ud800"}}}', 422),
        ("/api/v1/jobs", b'{"spec": ' + b"[" * 60_000 + b"]" * 60_000 + b"}", 422),
        ("/api/v1/jobs", b'{"spec": ' + b"9" * 5_000 + b"}", 422),
        ("/api/v1/jobs", b'{"spec": "' + b"x" * 200_000 + b'"}', 422),
        ("/api/v1/jobs/job-a%00/cancel", b'{"reason": "x"}', 404),
    ],
)
def test_odd_bodies_and_addresses_are_refused_in_words(
    client: httpx.Client, path: str, body: bytes, status: int
) -> None:
    answer = client.post(path, content=body, headers={**JSON, "authorization": "Bearer a-token"})
    assert (answer.status_code, bool(answer.json()["message"])) == (status, True), answer.text[:300]
