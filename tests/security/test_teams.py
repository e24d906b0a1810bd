"""Every route that acts x every role: who is let in, who is refused, and that what was refused changed nothing.

The roles: a stranger, a reader, somebody of no team, a member with a job of theirs and with another's, an owner, an
administrator of Airflow, and the same people by a signed request that acts for them.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Header, HTTPException
from fastapi.routing import APIRoute

import tests.airflow_home  # noqa: F401 - before what may import Airflow
from elastic_airflow.api_server import control_app
from elastic_core.control.plane import LedgerControl
from elastic_core.control.teams.permissions import ACTS
from elastic_core.domain import JobState
from elastic_core.errors import NotFound
from elastic_core.protocol.callers import Caller, OnBehalf, Way
from elastic_core.protocol.tokens import ServiceSigner
from elastic_core.spec import QueueSpec
from tests.builders import (
    CONTROL_SECRET,
    FACTS,
    GONE_AT_BOUNDARY,
    FakeClock,
    FakeJobRuns,
    KeptChampions,
    Life,
    a_cluster,
    a_commit,
    a_control,
    a_spec,
)
from tests.conftest import TestServer
from tests.control.serving import served

GROUPS = {"ann": {"vision"}, "ben": {"vision"}, "olga": {"leads"}, "eve": {"speech"}, "root": {"admin"}}
TEAM = QueueSpec(name="vision", owners=("group:leads",), members=("group:vision",), max_priority=5)
OWN_PAGE = {"content-type": "application/json", "sec-fetch-site": "same-origin"}
SUBMITTED_BY = {"anns": "ann", "bens": "ben"}
CHECKPOINTS = {"anns": 1, "bens": 2}  # of jobs of the same two that are over


def person(name: str, way: Way) -> Caller:
    groups = frozenset(GROUPS.get(name, ()))
    return Caller(name=name, way=way, groups=groups, unrestricted="admin" in groups)


class Directory:
    """`Users` of the tests: the groups above; every run was started, and marked last, by the user it is named after."""

    def named(self, name: str, way: Way) -> Caller:
        return person(name, way)

    def started(self, dag_id: str, run_id: str, way: Way) -> Caller:
        return person(run_id, way)

    def marked(self, dag_id: str, run_id: str, task_id: str, map_index: int) -> Caller:
        return person(run_id, Way.AIRFLOW)

    def approved(self, dag_id: str, run_id: str, task_id: str) -> Caller:
        return person(run_id, Way.AIRFLOW)


def reads(x_user: str = Header(default="")) -> None:
    if x_user not in GROUPS and x_user != "reader":
        raise HTTPException(401)


def writes(x_user: str = Header(default="")) -> Caller:
    reads(x_user)
    if x_user == "reader":
        raise HTTPException(403)
    return person(x_user, Way.PAGE)


@pytest.fixture
def teams_url(postgres_server: TestServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A ledger with a team's queue, and of two of its members a job each and a checkpoint of one that is over."""

    def prepare(url: str) -> None:
        with closing(a_control(url, tmp_path_factory.mktemp("teams"), FakeClock(), FakeJobRuns())) as plane:
            plane.set_cluster(a_cluster().model_copy(update={"queues": (TEAM,)}))
            for job_id, name in SUBMITTED_BY.items():
                plane.acting(person(name, Way.REST)).submit(job_id, a_spec(queue="vision"), FACTS)
                kept = {f"of-{job_id}/1": {"uri": "ckpt/1", "metrics": {"accuracy": 0.9}, "at": 1.0}}
                plane.record_results(job_id, {"registered_versions": kept})
                plane.acting(person(name, Way.REST)).submit(f"{job_id}-old", a_spec(queue="vision"), FACTS)
                order = Life(plane, plane.trainer, f"{job_id}-old").start()
                made = plane.trainer(order.token).commit(a_commit(order, 3, finished=True))
                plane.process_group_gone(order.origin_epoch, GONE_AT_BOUNDARY)
                assert made.checkpoint_id == CHECKPOINTS[job_id]

    name = f"teams_{uuid.uuid4().hex[:12]}"
    yield postgres_server.create_prepared(name, "teams", prepare).render_as_string(hide_password=False)
    postgres_server.drop(name)


@pytest.fixture
def control(teams_url: str, tmp_path: Path) -> Iterator[LedgerControl]:
    with closing(a_control(teams_url, tmp_path, FakeClock(), FakeJobRuns())) as plane:
        plane._champions = KeptChampions(**{f"of-{job_id}": ("1",) for job_id in SUBMITTED_BY})
        yield plane


@pytest.fixture
def app(control: LedgerControl) -> FastAPI:
    return control_app(
        control, control.settings, service_secret=CONTROL_SECRET, reads=reads, writes=writes, users=Directory()
    )


@pytest.fixture
def client(app: FastAPI) -> Iterator[httpx.Client]:
    with served(app) as url, httpx.Client(base_url=url, timeout=60) as made:
        yield made


def signed(client: httpx.Client, name: str, on_behalf: OnBehalf | None, **arguments: Any) -> httpx.Response:
    body, path = json.dumps(arguments).encode(), f"/service/{name}"
    caller = on_behalf.header() if on_behalf is not None else ""
    headers = ServiceSigner(CONTROL_SECRET).headers("POST", path, body, time.time(), caller)
    return client.post(path, content=body, headers=headers)


SPEC = a_spec(queue="vision").model_dump(mode="json")
# route -> body; {job} stands for a job of the member's own, or another's
ROUTES: dict[str, dict[str, Any]] = {
    "/api/v1/jobs/cancel": {"job_ids": ["{job}"], "reason": "enough"},
    "/api/v1/jobs": {"job_id": "new", "spec": SPEC},
    "/api/v1/sweeps": {"group": "many", "spec": SPEC, "grid": {"seed": [1, 2]}},
    "/api/v1/checkpoints/{checkpoint}/fork": {"job_id": "fork-of-{job}"},
    "/api/v1/jobs/{job}/pause": {"reason": "lunch"},
    "/api/v1/jobs/{job}/resume": {},
    "/api/v1/jobs/{job}/checkpoint": {"reason": "a storm comes"},
    "/api/v1/jobs/{job}/stop": {"reason": "enough"},
    "/api/v1/jobs/{job}/cancel": {"reason": "enough"},
    "/api/v1/jobs/{job}/revive": {},
    "/api/v1/jobs/{job}/rollback": {"checkpoint_id": 1},
    "/api/v1/jobs/{job}": {"priority": 1},  # PATCH
    "/api/v1/models/of-{job}/versions/1/promote": {},
    "/api/v1/models/of-{job}/roll-back?to=1": {},
    "/api/v1/nodes/node-a/set-aside": {"reason": "its fan is broken"},
    "/api/v1/nodes/node-a/take-back": {},
}
SUBMITS = ("/api/v1/jobs", "/api/v1/sweeps")
# Routes and methods of the pool itself: the operator's, and administrators'.
POOL = ("/api/v1/nodes/", "set_policy", "set_cluster", "set_aside_", "take_back_")
# role -> (route of an own job, of another's job, a submission) is let in
ROLES = {
    "": (False, False, False),
    "reader": (False, False, False),
    "eve": (False, False, False),
    "ann": (True, False, True),
    "olga": (True, True, True),
    "root": (True, True, True),
}


QUESTIONS = {"/api/v1/what-if"}  # they have a body and change nothing: whoever may look may ask


def test_the_table_names_every_route_that_acts(app: FastAPI) -> None:
    acting = {
        route.path
        for route in app.routes
        if isinstance(route, APIRoute) and route.path.startswith(("/ui", "/api")) and route.methods - {"GET", "HEAD"}
    }
    parts = {
        "{checkpoint}": "{checkpoint_id}",
        "{job}": "{job_id}",
        "/node-a/": "/{node}/",
        "/of-{job_id}/": "/{name}/",
        "/versions/1/": "/versions/{version}/",
        "?to=1": "",
    }
    named = set(ROUTES)
    for example, part in parts.items():
        named = {path.replace(example, part) for path in named}
    assert acting - QUESTIONS == named


@pytest.mark.parametrize("path", ROUTES)
def test_each_route_lets_in_whom_the_rule_lets_and_nobody_else(
    client: httpx.Client, control: LedgerControl, path: str
) -> None:
    for who, (own, others, submits) in ROLES.items():
        for job_id, is_own in (("bens", False), ("anns", True)):
            before = [(job.job_id, job.state) for job in control.jobs()]
            body = json.loads(json.dumps(ROUTES[path]).replace("{job}", job_id))
            method = "PATCH" if path.endswith("/jobs/{job}") else "POST"
            address = path.replace("{job}", job_id).replace("{checkpoint}", str(CHECKPOINTS[job_id]))
            headers = {**OWN_PAGE, "x-user": who}
            answer = client.request(method, address, json=body, headers=headers)
            let_in = submits if path.endswith(SUBMITS) else own if is_own else others
            if path.startswith(POOL):
                let_in = who == "root"
            if path == "/api/v1/jobs/cancel" and answer.status_code == 200:
                refused = "may not cancel" in (answer.json()[0]["error"] or "")
            else:
                refused = answer.status_code in (401, 403)
            assert refused is not let_in, (who, job_id, answer.status_code, answer.text)
            if refused:
                assert [(job.job_id, job.state) for job in control.jobs()] == before


EXAMPLES = {"job_id": "anns", "decision_id": "1", "name": "of-anns", "answer_id": "0"}
SLOW = ("/replay", "/whatif")  # answered by processes: one role shows that they look too
OF_AIRFLOW = ("/ui/overview",)  # answered with what Airflow's database says, which is not here


def test_every_route_that_looks_lets_in_whoever_may_look_and_nobody_else(app: FastAPI, client: httpx.Client) -> None:
    looking = sorted(
        route.path
        for route in app.routes
        if isinstance(route, APIRoute) and route.path.startswith(("/ui", "/api")) and "GET" in route.methods
    )
    assert {"/api/v1/jobs/{job_id}", "/api/v1/audit", "/api/v1/nodes", "/api/v1/decisions/{decision_id}"} < set(looking)
    for path in looking:
        address = path.format(**EXAMPLES)
        assert client.get(address).status_code == 401, path
        looks = [name for name in ROLES if name and path not in OF_AIRFLOW]
        for who in looks[:1] if path.endswith(SLOW) else looks:
            status = client.get(address, headers={"x-user": who}).status_code
            assert status not in (401, 403), (path, who)


ARGUMENTS: dict[str, dict[str, Any]] = {
    "check_attach": {"job_id": "bens"},
    "cancel": {"job_id": "bens", "reason": "enough"},
    "cancel_jobs": {"job_ids": ["bens"], "reason": "enough"},
    "revive": {"job_id": "bens"},
    "rollback": {"job_id": "bens", "checkpoint_id": 1},
    "revoke": {"segment_id": "bens__seg_0", "reason": "enough"},
    "pause": {"job_id": "bens", "reason": "lunch"},
    "resume": {"job_id": "bens"},
    "set_job": {"job_id": "bens", "changes": {"priority": 1}},
    "checkpoint_now": {"job_id": "bens", "reason": "a storm comes"},
    "stop": {"job_id": "bens", "reason": "enough"},
    "start_job": {"job_id": "new", "spec": SPEC},
    "start_sweep": {"group": "many", "sweep": {"spec": SPEC, "grid": {"seed": [1, 2]}}},
    "fork_job": {"job_id": "fork", "checkpoint_id": CHECKPOINTS["bens"], "changes": {}},
    "check_submission": {"job_id": "new", "spec": SPEC},
    "submit": {"job_id": "new", "spec": SPEC, "facts": {"dataset_samples": 100}},
    "set_policy": {"policy": "fifo"},
    "set_cluster": {"cluster": a_cluster().model_dump(mode="json")},
    "set_aside_node": {"node": "node-a", "reason": "its fan is broken"},
    "take_back_node": {"node": "node-a"},
    "promote": {"model": "of-bens", "version": "1"},
    "roll_back_model": {"model": "of-bens", "to": "1"},
}


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_a_signed_request_has_no_more_rights_than_whom_it_acts_for(client: httpx.Client, name: str) -> None:
    """By name, by the run that they started, and by what they marked."""
    assert ARGUMENTS.keys() == ACTS
    allowed = {
        "eve": False,
        "ann": name in ("start_job", "start_sweep", "check_submission", "submit"),
        "olga": not name.startswith(POOL),
        "root": True,
    }
    for who, let_in in allowed.items():
        for on_behalf in (
            OnBehalf(way=Way.CLI, user=who),
            OnBehalf(way=Way.DAG, run=("a_dag", who)),
            OnBehalf(way=Way.AIRFLOW, run=("a_dag", who), marked=("train", -1)),
            OnBehalf(way=Way.AIRFLOW, run=("a_dag", who), approved="approve"),
        ):
            answer = signed(client, name, on_behalf, **ARGUMENTS[name])
            refused = "may not" in answer.text
            assert refused is not let_in, (who, on_behalf, answer.status_code, answer.text)
    assert "may not" not in signed(client, name, None, **ARGUMENTS[name]).text, "the platform itself asks nobody"


def test_whom_a_request_acts_for_is_signed(client: httpx.Client) -> None:
    body, path = b'{"job_id": "bens", "reason": "x"}', "/service/cancel"
    made = ServiceSigner(CONTROL_SECRET).headers(
        "POST", path, body, time.time(), OnBehalf(way=Way.CLI, user="eve").header()
    )
    for forged in ({"x-elastic-caller": OnBehalf(way=Way.CLI, user="root").header()}, {"x-elastic-caller": ""}):
        assert client.post(path, content=body, headers={**made, **forged}).status_code == 401
    without = {name: value for name, value in made.items() if name != "x-elastic-caller"}
    assert client.post(path, content=body, headers=without).status_code == 401


def test_a_caller_that_names_nobody_is_refused(client: httpx.Client) -> None:
    body, path = b"{}", "/service/jobs"
    for header in ("{}", '{"way": "cli"}', "eve", '{"way": "cli", "user": 3}'):
        headers = ServiceSigner(CONTROL_SECRET).headers("POST", path, body, time.time(), header)
        answer = client.post(path, content=body, headers=headers)
        assert (answer.status_code, "for whom a request acts" in answer.json()["message"]) == (422, True)


def test_every_action_is_on_record_with_who_asked_and_refusals_too(
    client: httpx.Client, control: LedgerControl
) -> None:
    client.post("/api/v1/jobs/bens/cancel", json={"reason": "mine now"}, headers={**OWN_PAGE, "x-user": "ann"})
    client.post("/api/v1/jobs/bens/cancel", json={"reason": "enough"}, headers={**OWN_PAGE, "x-user": "olga"})
    signed(client, "set_policy", OnBehalf(way=Way.CLI, host_user="op@host"), policy="fifo")
    shown = client.get("/api/v1/audit", headers={"x-user": "reader"}).json()
    assert [(r["actor"], r["way"], r["action"], r["subject"], r["done"]) for r in shown] == [
        ("op@host", "cli", "set the policy", "policy fifo", True),
        ("olga", "page", "cancel", "job 'bens'", True),
        ("ann", "page", "cancel", "job 'bens'", False),
        ("ben", "rest", "submit", "job 'bens-old'", True),
        ("ben", "rest", "submit", "job 'bens'", True),
        ("ann", "rest", "submit", "job 'anns-old'", True),
        ("ann", "rest", "submit", "job 'anns'", True),
    ]
    assert shown[1]["detail"] == "enough"
    assert "members act on their own jobs only" in shown[2]["detail"]
    of_job = client.get("/api/v1/audit?job_id=anns", headers={"x-user": "reader"}).json()
    assert [record["actor"] for record in of_job] == ["ann"]
    assert control.job("bens").state is JobState.CANCELLED
    assert client.get("/api/v1/audit").status_code == 401
    assert client.get("/api/v1/audit?limit=0", headers={"x-user": "reader"}).status_code == 422


def test_a_sweep_is_refused_whole_where_one_member_may_not_be_submitted(
    client: httpx.Client, control: LedgerControl
) -> None:
    body = {"group": "many", "spec": SPEC, "grid": {"priority": [5, 6]}}
    refused = client.post("/api/v1/sweeps", json=body, headers={**OWN_PAGE, "x-user": "ann"})
    assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")
    assert "member many-001 of the sweep (priority 6) is refused, so that none is started" in refused.json()["message"]
    with pytest.raises(NotFound):
        control.submission("many-000")
    assert [(r.job_id, r.done) for r in control.audit_records(actor="ann", limit=1)] == [("many-001", False)]
    assert client.post("/api/v1/sweeps", json=body, headers={**OWN_PAGE, "x-user": "olga"}).status_code == 200


def test_a_priority_above_the_queues_is_for_its_owners(client: httpx.Client) -> None:
    body = {"job_id": "new", "spec": {**SPEC, "priority": 6}}
    refused = client.post("/api/v1/jobs", json=body, headers={**OWN_PAGE, "x-user": "ann"})
    assert (refused.status_code, "takes at most 5" in refused.json()["message"]) == (403, True)
    assert client.post("/api/v1/jobs", json=body, headers={**OWN_PAGE, "x-user": "olga"}).status_code == 200
