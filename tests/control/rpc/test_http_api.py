"""The API's doors: every route behind one of three kinds of authentication, errors by code, nothing else."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI, Header, HTTPException
from fastapi.routing import APIRoute

import tests.airflow_home  # noqa: F401 - before what may import Airflow
from elastic_airflow.api_server import control_app
from elastic_core.control.plane import LedgerControl
from elastic_core.control.rpc.http_api import create_app
from elastic_core.protocol import calls
from elastic_core.protocol.http_client import HttpTrainer
from elastic_core.protocol.tokens import ServiceSigner
from tests.builders import CONTROL_SECRET, FACTS, FakeClock, Life, a_beat, a_commit, a_control, a_spec
from tests.control.serving import served

READER = {"x-user": "reader"}
OWN_PAGE = {"content-type": "application/json", "sec-fetch-site": "same-origin"}
METRICS_TOKEN = b"metrics-token-of-the-tests-0123456789"
WRITER = {"x-user": "writer", **OWN_PAGE}


@pytest.fixture
def app(control: LedgerControl) -> FastAPI:
    def user_reads(x_user: str = Header(default="")) -> None:
        if x_user not in ("reader", "writer"):
            raise HTTPException(401)

    def user_writes(x_user: str = Header(default="")) -> None:
        if x_user != "writer":
            raise HTTPException(403)

    return control_app(
        control, control.settings, service_secret=CONTROL_SECRET, reads=user_reads, writes=user_writes,
        metrics_token=METRICS_TOKEN,
    )  # fmt: skip


@pytest.fixture
def client(app: FastAPI) -> Iterator[httpx.Client]:
    with served(app) as url, httpx.Client(base_url=url) as made:
        yield made


def signed(path: str, body: bytes, at: float | None = None, secret: bytes = CONTROL_SECRET) -> dict[str, str]:
    return ServiceSigner(secret).headers("POST", path, body, time.time() if at is None else at)


def test_no_route_answers_a_stranger(app: FastAPI, client: httpx.Client) -> None:
    paths = {route.path for route in app.routes if isinstance(route, APIRoute)}
    assert {"/ui/overview", "/api/v1/models", "/api/v1/jobs/{job_id}/log"} < paths, "what the API server mounts besides"
    for route in app.routes:
        assert isinstance(route, APIRoute), "pages that FastAPI adds by itself are off"
        path = route.path.replace("{name}", "jobs").replace("{job_id}", "a").replace("{segment_id}", "a")
        for method in route.methods:
            answer = client.request(method, path, params={"since": 0}, content=b"{}")
            assert answer.status_code in (401, 403), (method, path, answer.status_code)
    for page in ("/openapi.json", "/docs", "/redoc", "/"):
        assert client.get(page).status_code == 404


def test_each_key_opens_its_own_door_only(client: httpx.Client, control: LedgerControl) -> None:
    control.submit("job-a", a_spec(), FACTS)
    order = Life(control, control.trainer, "job-a").start()
    token = {"authorization": f"Bearer {order.token}"}
    assert client.post("/service/jobs", content=b"{}", headers=signed("/service/jobs", b"{}")).status_code == 200
    assert client.post("/service/jobs", content=b"{}", headers=token).status_code == 401
    assert client.get("/ui/overview", headers=token).status_code == 401
    assert client.post("/trainer/observe", content=b'{"observations": []}', headers=token).status_code == 200
    assert client.post("/trainer/observe", content=b"{}", headers=signed("/trainer/observe", b"{}")).status_code == 401


def test_the_metrics_token_opens_the_metrics_and_nothing_else(client: httpx.Client, control: LedgerControl) -> None:
    control.submit("job-a", a_spec(), FACTS)
    order = Life(control, control.trainer, "job-a").start()
    token = {"authorization": f"Bearer {METRICS_TOKEN.decode()}"}
    page = client.get("/metrics", headers=token)
    assert (page.status_code, page.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    assert 'elastic_jobs{queue="default",state="training"} 1.0' in page.text
    assert "job-a" not in page.text
    others = ({}, READER, WRITER, signed("/metrics", b""), {"authorization": f"Bearer {order.token}"},
              {"authorization": "Bearer"}, {"authorization": f"Basic {METRICS_TOKEN.decode()}"})  # fmt: skip
    assert {client.get("/metrics", headers=other).status_code for other in others} == {401}
    for path in ("/ui/overview", "/api/v1/jobs", "/api/v1/audit"):
        assert client.get(path, headers=token).status_code == 401
    for path in ("/service/jobs", "/trainer/heartbeat"):
        assert client.post(path, content=b"{}", headers=token).status_code == 401


def test_without_a_metrics_token_nobody_reads_metrics(control: LedgerControl) -> None:
    app = create_app(control, service_secret=CONTROL_SECRET, user_reads=lambda: None, user_writes=lambda: None)
    with served(app) as url:
        for given in ("", "Bearer x", "Bearer None"):
            assert httpx.get(f"{url}/metrics", headers={"authorization": given}).status_code == 401


WRONG: dict[str, tuple[Callable[[], dict[str, str]], str]] = {
    "none": (dict, "no valid service signature"),
    "by another secret": (
        lambda: signed("/service/jobs", b"{}", secret=b"some-other-secret-0123456789abcdef"),
        "no valid service signature",
    ),
    "of another body": (lambda: signed("/service/jobs", b"other"), "another one was signed"),
    "of another body, whose sum was changed": (
        lambda: {**signed("/service/jobs", b"other"), "x-elastic-body": sha256(b"{}").hexdigest()},
        "no valid service signature",
    ),
    "of another path": (lambda: signed("/service/job", b"{}"), "no valid service signature"),
    "whose time was changed": (
        lambda: {**signed("/service/jobs", b"{}"), "x-elastic-time": "nan"},
        "no valid service signature",
    ),
    "of yesterday": (
        lambda: signed("/service/jobs", b"{}", at=time.time() - 86_400),
        "away from this server's time",
    ),
    "of tomorrow": (lambda: signed("/service/jobs", b"{}", at=time.time() + 86_400), "away from this server's time"),
    "of no time": (lambda: signed("/service/jobs", b"{}", at=float("nan")), "away from this server's time"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_old_or_borrowed_signature_is_refused(client: httpx.Client, wrong: str) -> None:
    headers, says = WRONG[wrong]
    answer = client.post("/service/jobs", content=b"{}", headers=headers())
    assert answer.status_code == 401
    assert answer.json()["code"] == "unauthorized"
    assert says in answer.json()["message"]


def test_more_than_a_method_may_need_is_refused_although_it_is_signed(client: httpx.Client) -> None:
    for name, size in (("submit", 17 * 2**20), ("jobs", 2**20)):
        body = b"x" * size
        answer = client.post(f"/service/{name}", content=body, headers=signed(f"/service/{name}", body))
        assert (answer.status_code, "send less at once" in answer.json()["message"]) == (422, True)


def test_of_a_stranger_no_body_is_waited_for(client: httpx.Client) -> None:
    with socket.create_connection((client.base_url.host, client.base_url.port), timeout=20) as connection:
        connection.sendall(b"POST /service/reconcile HTTP/1.1\r\nhost: x\r\ncontent-length: 16777216\r\n\r\n{")
        assert connection.recv(4096).startswith(b"HTTP/1.1 401 ")


def test_the_signature_covers_the_query(client: httpx.Client) -> None:
    headers = signed("/service/jobs", b"{}")
    assert client.post("/service/jobs?extra=1", content=b"{}", headers=headers).status_code == 401


def test_a_reader_may_look_and_not_act(client: httpx.Client, control: LedgerControl) -> None:
    control.submit("job-a", a_spec(), FACTS)
    order = Life(control, control.trainer, "job-a").start()
    paths = ("api/v1/jobs", "api/v1/jobs/job-a", "api/v1/jobs/job-a/segments", "api/v1/jobs/job-a/checkpoints",
             "api/v1/jobs/job-a/explanation", "api/v1/jobs/job-a/forecasts", "api/v1/forecasts", "api/v1/cluster",
             "api/v1/cluster/timeline", "api/v1/cluster/events",
             "api/v1/decisions", "api/v1/nodes", "ui/jobs/job-a/page")  # fmt: skip
    for path in paths:
        answer = client.get(f"/{path}", headers=READER)
        assert answer.status_code == 200, path
        assert order.token not in answer.text
    body = '{"reason": "enough"}'
    job = "/api/v1/jobs/job-a"
    for path in (f"{job}/cancel", "/api/v1/jobs/cancel"):
        assert client.post(path, content=body, headers=READER).status_code == 403
    assert client.post(f"{job}/checkpoint", content=body, headers=WRITER).status_code == 200
    assert client.post(f"{job}/rollback", content=b'{"checkpoint_id": 1}', headers=WRITER).status_code == 422
    assert client.post(f"{job}/cancel", content=body, headers=WRITER).json()["state"] == "cancelled"


def test_who_may_act_may_set_a_node_aside_and_take_it_back_and_a_reader_may_see_it(client: httpx.Client) -> None:
    body = '{"reason": "its fan is broken"}'
    for action in ("set-aside", "take-back"):
        assert client.post(f"/api/v1/nodes/node-a/{action}", content=body, headers=READER).status_code == 403
    assert client.post("/api/v1/nodes/node-a/set-aside", content=body, headers=WRITER).status_code == 200
    (first, second) = client.get("/api/v1/nodes", headers=READER).json()
    assert (first["set_aside_reason"], second["set_aside_reason"]) == ("its fan is broken", None)
    assert client.post("/api/v1/nodes/node-a/take-back", content="{}", headers=WRITER).json()["set_aside_at"] is None
    assert client.post("/api/v1/nodes/node-x/take-back", content="{}", headers=WRITER).status_code == 404


def test_who_may_act_may_start_a_job_and_a_reader_may_see_what_became_of_it(client: httpx.Client) -> None:
    body = {"spec": a_spec().model_dump(mode="json"), "job_id": "job-a"}
    assert client.post("/api/v1/jobs", json=body, headers=READER).status_code == 403
    started = client.post("/api/v1/jobs", json=body, headers=WRITER)
    assert (started.status_code, started.json()["state"]) == (200, "starting")
    assert client.get("/api/v1/jobs/job-a/submission", headers=READER).json() == started.json()
    other = client.post(
        "/api/v1/jobs", json={**body, "warm_start": "job-z/lineage-0/step-0000000001-epoch-1-z"}, headers=WRITER
    )
    assert (other.status_code, other.json()["code"]) == (409, "conflict")


def test_the_policy_is_for_services_not_for_users(client: httpx.Client) -> None:
    body = b'{"policy": "horizon"}'
    assert client.post("/ui/policy", content=body, headers=WRITER).status_code == 404
    answer = client.post("/service/set_policy", content=body, headers=signed("/service/set_policy", body))
    assert answer.json()["policy"] == "horizon"


def test_wrong_arguments_are_named(client: httpx.Client) -> None:
    for body, says in (
        (b"{", "is not JSON"),
        (b"[]", "takes a JSON object with ['job_id']"),
        (b'{"jobid": "a"}', "of which ['job_id'] are needed; got ['jobid']"),
        (b'{"job_id": 3}', "Input should be a valid string"),
    ):
        answer = client.post("/service/job", content=body, headers=signed("/service/job", body))
        assert (answer.status_code, answer.json()["code"]) == (422, "user_error")
        assert says in answer.json()["message"]


def test_only_the_contract_can_be_called(client: httpx.Client) -> None:
    for name in ("close", "trainer", "allocator", "__init__", "_change_job"):
        answer = client.post(f"/service/{name}", content=b"{}", headers=signed(f"/service/{name}", b"{}"))
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


def test_every_method_of_the_contract_can_be_called(control: LedgerControl) -> None:
    assert all(callable(getattr(control, name)) for name in calls.service_methods())
    assert {"heartbeat", "observe", "commit", "mark_bad", "release_slots", "exited"} == calls.trainer_methods().keys()


def test_an_oversized_body_is_refused_before_it_is_read_whole(client: httpx.Client) -> None:
    answer = client.post("/service/jobs", content=b" " * (17 * 2**20), headers=signed("/service/jobs", b""))
    assert answer.status_code == 422


def test_a_ledger_that_is_away_is_an_infrastructure_fault(tmp_path: Path) -> None:
    nowhere = a_control("postgresql+psycopg2://nobody@127.0.0.1:1/none?connect_timeout=2", tmp_path, time.time)
    app = create_app(nowhere, service_secret=CONTROL_SECRET, user_reads=lambda: None, user_writes=lambda: None)
    with served(app) as url:
        answer = httpx.post(f"{url}/service/jobs", content=b"{}", headers=signed("/service/jobs", b"{}"))
    assert (answer.status_code, answer.json()["code"]) == (503, "infrastructure")
    assert "the ledger's database is away" in answer.json()["message"]


def test_the_clock_of_a_trainer_over_http_is_another_and_its_times_are_put_right(
    app: FastAPI, client: httpx.Client, control: LedgerControl, clock: FakeClock
) -> None:
    control.submit("job-a", a_spec(), FACTS)
    order = Life(control, control.trainer, "job-a").start()
    clock.advance(9)
    with served(app) as url, closing(HttpTrainer(url, order.token, clock=lambda: clock() + 300)) as trainer:
        trainer.commit(a_commit(order, 2, timings={"first_step_at": clock() + 300 - 2}))
    assert next(job.restart_seconds for job in control.snapshot().jobs) == pytest.approx(7.0)


@pytest.mark.parametrize("told", ["soon", "nan", "1e999"])
def test_a_trainer_that_tells_no_time_is_told_so(client: httpx.Client, control: LedgerControl, told: str) -> None:
    control.submit("job-a", a_spec(), FACTS)
    order = Life(control, control.trainer, "job-a").start()
    headers = {"authorization": f"Bearer {order.token}", "x-elastic-sent-at": told}
    answer = client.post("/trainer/observe", content=b'{"observations": []}', headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (422, "user_error")
    assert f"the header 'x-elastic-sent-at' is {told!r}" in answer.json()["message"]


def test_a_trainers_answer_carries_a_new_token_near_the_end(
    client: httpx.Client, control: LedgerControl, clock: FakeClock
) -> None:
    control.submit("job-a", a_spec(), FACTS)
    order = Life(control, control.trainer, "job-a").start()
    clock.advance(1700)
    assert control.trainer(order.token).heartbeat(a_beat(1)).token is None
    clock.advance(200)
    token = control.trainer(order.token).heartbeat(a_beat(1)).token
    assert token is not None
    clock.advance(2000)
    answer = client.post(
        "/trainer/observe", content=b'{"observations": []}', headers={"authorization": f"Bearer {order.token}"}
    )
    assert (answer.status_code, "expired 300 s ago" in answer.json()["message"]) == (401, True)
    control.trainer(token).heartbeat(a_beat(2))
