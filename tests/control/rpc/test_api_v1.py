"""The REST API for users: pages of jobs, steering, decisions, and a description that is true of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from fastapi.routing import APIRoute

from elastic_core.control.plane import LedgerControl
from elastic_core.control.rpc.http_api import create_app
from elastic_core.domain import JobState
from elastic_core.protocol.callers import Caller, Way
from elastic_core.spec import parse_job_spec
from elastic_core.spec.inputs.sweeps import expand, parse_sweep
from elastic_core.spec.job_changes import JobChanges
from tests.builders import CONTROL_SECRET, FACTS, FakeClock, FakeJobRuns, Life, a_commit, a_spec
from tests.control.serving import served

ANN = Caller(name="ann", way=Way.REST, unrestricted=True)
HEADERS = {"authorization": "Bearer a-token", "content-type": "application/json"}


@pytest.fixture
def app(control: LedgerControl) -> FastAPI:
    mounted = FastAPI()
    inner = create_app(control, service_secret=CONTROL_SECRET, user_reads=lambda: None, user_writes=lambda: ANN)
    mounted.mount("/elastic", inner)
    mounted.state.inner = inner
    return mounted


@pytest.fixture
def api(app: FastAPI) -> Iterator[httpx.Client]:
    with served(app) as url, httpx.Client(base_url=f"{url}/elastic/api/v1", headers=HEADERS, timeout=60) as client:
        yield client


def ok(answer: httpx.Response) -> Any:
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_jobs_come_in_pages_searched_filtered_and_sorted(
    api: httpx.Client, control: LedgerControl, clock: FakeClock
) -> None:
    for index, name in enumerate(("cats", "dogs", "dogs-wide", "cows")):
        control.acting(ANN if index % 2 else None).submit(f"{name}-1", a_spec(name, priority=index), FACTS)
        clock.advance(1)
    control.cancel("cows-1", "enough")
    control.pause("cats-1", "lunch")
    control.set_job("dogs-1", JobChanges(priority=9))

    def ids(**wanted: Any) -> list[str]:
        return [job["job_id"] for job in ok(api.get("/jobs", params=wanted))["jobs"]]

    assert ids() == ["cats-1", "dogs-1", "dogs-wide-1", "cows-1"]
    assert ids(search="DOGS", sort="priority", descending=True) == ["dogs-1", "dogs-wide-1"]
    assert ids(user="ann") == ["dogs-1", "cows-1"]
    assert (ids(state="active"), ids(state="paused"), ids(state="cancelled")) == (
        ["cats-1", "dogs-1", "dogs-wide-1"], ["cats-1"], ["cows-1"],
    )  # fmt: skip
    page = ok(api.get("/jobs", params={"sort": "id", "offset": 1, "limit": 2}))
    assert (page["total"], [job["job_id"] for job in page["jobs"]]) == (4, ["cows-1", "dogs-1"])


def test_many_jobs_are_cancelled_each_by_itself(api: httpx.Client, control: LedgerControl) -> None:
    for job_id in ("job-a", "job-b", "ended"):
        control.submit(job_id, a_spec(), FACTS)
    control.cancel("ended", "enough")
    told = ok(api.post("/jobs/cancel", json={"job_ids": ["job-a", "ended", "nothing"], "reason": "cleaning up"}))
    assert [(one["job_id"], one["state"]) for one in told] == [
        ("job-a", "cancelled"), ("ended", "cancelled"), ("nothing", None),
    ]  # fmt: skip
    assert "there is no job" in told[2]["error"]
    assert control.job("job-a").error == "cleaning up"
    assert control.job("job-b").state is JobState.ACTIVE


def test_the_active_jobs_of_a_sweep_are_cancelled_by_its_name(api: httpx.Client, control: LedgerControl) -> None:
    for member in expand("night", parse_sweep(a_spec(), grid={"seed": [1, 2, 3]})):
        control.submit(member.job_id, member.spec, FACTS)
    control.submit("alone", a_spec(), FACTS)
    control.cancel("night-001", "enough")
    told = ok(api.post("/jobs/cancel", json={"group": "night"}))
    assert [one["job_id"] for one in told] == ["night-000", "night-002"]
    assert [job.job_id for job in control.jobs(active_only=True)] == ["alone"]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "name jobs (`job_ids`), or a sweep (`group`)"),
        ({"job_ids": ["job-a"], "group": "night"}, "one of both"),
        ({"group": ""}, "group: String should have at least 1 character"),
        ({"job_ids": "job-a"}, "job_ids: Input should be a valid list"),
        ({"job_ids": [1]}, "job_ids.0: Input should be a valid string"),
        ({"job_ids": [f"job-{number}" for number in range(1001)]}, "1001 jobs are named; at most 1000 go at once"),
    ],
)
def test_what_does_not_say_which_jobs_cancels_none(
    api: httpx.Client, control: LedgerControl, body: dict[str, Any], says: str
) -> None:
    control.submit("job-a", a_spec(), FACTS)
    answer = api.post("/jobs/cancel", json=body)
    assert (answer.status_code, says in answer.json()["message"]) == (422, True), answer.text
    assert ok(api.post("/jobs/cancel", json={"job_ids": []})) == []
    assert control.job("job-a").state is JobState.ACTIVE


def test_who_held_what_in_a_window_is_told_in_pages_and_what_happened_to_nodes(
    api: httpx.Client, control: LedgerControl, clock: FakeClock
) -> None:
    control.submit("job-a", a_spec(slots=(4, 4)), FACTS)
    began = clock.now
    order = Life(control, control.trainer, "job-a").start()
    clock.advance(60)
    control.acting(ANN).set_aside_node("node-a", "its fan")
    clock.advance(7200)
    page = ok(api.get("/cluster/timeline", params={"since": began, "until": began + 10}))
    assert (page["since"], page["until"], page["total"], page["offset"]) == (began, began + 10, 1, 0)
    (held,) = page["held"]
    assert (held["job_id"], held["segment_id"], held["since"]) == ("job-a", order.segment_id, began)
    assert ok(api.get("/cluster/timeline", params={"since": began, "offset": 1}))["held"] == []
    assert ok(api.get("/cluster/timeline"))["total"] == 1, "it still holds them"
    assert ok(api.get("/cluster/events")) == [], "an hour"
    (event,) = ok(api.get("/cluster/events", params={"since": began}))
    assert (event["node"], event["what"], event["why"]) == ("node-a", "set aside", "its fan, by ann")
    refused = api.get("/cluster/timeline", params={"since": began + 1, "until": began})
    assert (refused.status_code, "before it begins" in refused.json()["message"]) == (422, True)
    assert api.get("/cluster/events", params={"since": "nan"}).status_code == 422


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("/jobs?limit=501", "limit: Input should be less than or equal to 500, it is '501'"),
        ("/jobs?sort=colour", "sort: Input should be 'submitted', "),
        ("/jobs?state=runing", "state: Input should be 'active', 'paused', 'finished', 'failed' or 'cancelled', it is"),
        ("/decisions/last", "decision_id: Input should be a valid integer"),
    ],
)
def test_a_wrong_parameter_is_refused_in_the_words_that_errors_are_described_with(
    api: httpx.Client, path: str, problem: str
) -> None:
    answer = api.get(path)
    told = answer.json()
    assert (answer.status_code, told["code"], list(told)) == (422, "user_error", ["code", "message"])
    assert f"GET /elastic/api/v1{path.partition('?')[0]} was refused: {problem}" in told["message"]


def test_what_there_is_not_is_told_as_an_error_too(api: httpx.Client) -> None:
    listed = "/elastic/api/v1/openapi.json lists what there is"
    nowhere, method = api.get("/jbos"), api.put("/jobs")
    assert (nowhere.status_code, nowhere.json()) == (
        404, {"code": "not_found", "message": f"there is no GET /elastic/api/v1/jbos; {listed}"},
    )  # fmt: skip
    assert (method.status_code, method.json()["message"]) == (
        405, f"there is no PUT /elastic/api/v1/jobs; {listed}",
    )  # fmt: skip


def test_a_job_is_steered_through_its_life(api: httpx.Client, control: LedgerControl) -> None:
    control.submit("job-a", a_spec(), FACTS)
    order = Life(control, control.trainer, "job-a").start()
    assert ok(api.patch("/jobs/job-a", json={"max_slots": 2}))["changes"]["max_slots"] == 2
    assert ok(api.post("/jobs/job-a/checkpoint", json={"reason": "a storm"}))["revoke_reason"] == "a storm"
    assert ok(api.post("/jobs/job-a/pause", json={"reason": "lunch"}))["paused"]["by"] == "ann"
    assert ok(api.post("/jobs/job-a/resume", json={}))["paused"] is None
    control.trainer(order.token).commit(a_commit(order, 3))
    (record,) = ok(api.get("/jobs/job-a/checkpoints"))["checkpoints"]
    assert ok(api.post("/jobs/job-a/stop", json={}))["paused"]["ends"] is True
    assert ok(api.post("/jobs/job-a/cancel", json={"reason": "enough"}))["error"] == "enough"
    refused = api.post("/jobs/job-a/pause", json={})
    assert (refused.status_code, refused.json()["code"]) == (409, "conflict")
    assert ok(api.post("/jobs/job-a/revive", json={}))["state"] == JobState.ACTIVE
    rolled = ok(api.post("/jobs/job-a/rollback", json={"checkpoint_id": record["checkpoint_id"]}))
    assert rolled["lineage"] == 1


def test_a_job_is_submitted_under_its_id_or_one_that_is_made(api: httpx.Client) -> None:
    spec = a_spec().model_dump(mode="json")
    assert ok(api.post("/jobs", json={"job_id": "mine", "spec": spec}))["job_id"] == "mine"
    assert ok(api.post("/jobs", json={"spec": spec}))["job_id"].startswith("digits-")
    assert ok(api.get("/jobs/mine/submission"))["state"] == "starting"


SWEEP = {"group": "night", "spec": a_spec().model_dump(mode="json"), "grid": {"seed": [1, 2], "batch.max": [64, 128]}}


def test_a_sweep_makes_the_jobs_of_its_grid_once(api: httpx.Client, control: LedgerControl, runs: FakeJobRuns) -> None:
    started = ok(api.post("/sweeps", json=SWEEP))
    ids = [f"night-00{index}" for index in range(4)]
    assert (started["group"], [one["job_id"] for one in started["members"]], list(runs.runs)) == ("night", ids, ids)
    assert started["members"][1]["values"] == {"seed": 1, "batch.max": 128}
    assert {one["submission"]["state"] for one in started["members"]} == {"starting"}
    assert ok(api.post("/sweeps", json=SWEEP)) == started
    for job_id in ids:  # what each run does first
        control.submit(job_id, parse_job_spec(runs.runs[job_id].conf["spec"]), FACTS)
    control.submit("alone", a_spec(), FACTS)
    listed = ok(api.get("/jobs", params={"group": "night"}))
    assert (listed["total"], [job["job_id"] for job in listed["jobs"]]) == (4, ids)
    assert listed["jobs"][3]["spec"]["group"] == {
        "id": "night", "name": "digits", "index": 3, "swept": ["seed", "batch.max"]
    }  # fmt: skip
    assert ok(api.post("/sweeps", json={**SWEEP, "group": None}))["group"].startswith("digits-")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"grid": {"sede": [1]}}, "did you mean 'seed'?"),
        ({"grid": {"seed": []}}, "the sweep gives no values for 'seed'"),
        ({"grid": {"seed": 1}}, "grid.seed: Input should be a valid list"),
        ({"grid": None}, "either a grid"),
        ({"grid": None, "members": [{"seed": n} for n in range(257)]}, "the sweep has 257 members; allowed are 256"),
        ({"gird": {}}, "gird: Extra inputs are not permitted"),
        ({"group": "a/b"}, "the group's id 'a/b' cannot be used"),
        ({"grid": {"slots.min": [1, 4], "slots.max": [2]}}, "1 of 2 members of the sweep is wrong"),
        (
            {"grid": {"queue": ["default", "none"]}},
            "member night-001 of the sweep (queue none) is refused, so that none",
        ),
    ],
)
def test_a_sweep_that_is_wrong_starts_nothing(
    api: httpx.Client, runs: FakeJobRuns, change: dict[str, Any], says: str
) -> None:
    answer = api.post("/sweeps", json={**SWEEP, **change})
    assert (answer.status_code, says in answer.json()["message"]) == (422, True), answer.text
    assert runs.runs == {}


def test_a_checkpoint_is_forked_under_an_id_or_one_that_is_made(api: httpx.Client, control: LedgerControl) -> None:
    control.submit("job-a", a_spec(), FACTS)
    order = Life(control, control.trainer, "job-a").start()
    number = control.trainer(order.token).commit(a_commit(order, 3)).checkpoint_id
    wanted = {"job_id": "fork", "changes": {"name": "wider", "priority": 3}}
    assert ok(api.post(f"/checkpoints/{number}/fork", json=wanted))["state"] == "accepted"
    shown = ok(api.get("/jobs/fork"))
    assert (shown["step"], shown["spec"]["name"], shown["submitted_by"]) == (3, "wider", "ann")
    assert shown["results"]["forked_from"]["job_id"] == "job-a"
    assert ok(api.post(f"/checkpoints/{number}/fork", json={}))["job_id"].startswith(f"fork-{number}-2")
    assert ok(api.post(f"/checkpoints/{number}/fork", json={"changes": {"name": "b"}}))["job_id"].startswith("b-2")
    assert api.post("/checkpoints/99/fork", json={}).status_code == 404
    refused = api.post(f"/checkpoints/{number}/fork", json={"changes": {"seed": 2}})
    assert (refused.status_code, "another seed than its parent" in refused.json()["message"]) == (422, True)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"{", "is no JSON object"),
        (b"[]", "the body"),
        (b'{"reason": 3}', "reason: Input should be a valid string"),
        (b'{"raeson": "x"}', "raeson: Extra inputs are not permitted"),
    ],
)
def test_a_body_that_is_wrong_is_refused_by_field(
    api: httpx.Client, control: LedgerControl, body: bytes, says: str
) -> None:
    control.submit("job-a", a_spec(), FACTS)
    answer = api.post("/jobs/job-a/pause", content=body)
    assert (answer.status_code, says in answer.json()["message"]) == (422, True), answer.text


def test_the_cluster_and_its_decisions_are_told_with_their_inputs(api: httpx.Client, control: LedgerControl) -> None:
    control.submit("job-a", a_spec(), FACTS)
    Life(control, control.trainer, "job-a").start()
    cluster = ok(api.get("/cluster"))
    assert [slot["job"] for slot in cluster["slots"]] == ["job-a"] * 4
    listed = ok(api.get("/decisions"))
    assert listed == sorted(listed, key=lambda decision: -decision["decision_id"])
    newest = listed[0]
    told = ok(api.get(f"/decisions/{newest['decision_id']}"))
    assert told["decision"] == newest
    assert (told["plan"]["policy"], [job["job_id"] for job in told["snapshot"]["jobs"]]) == ("fair_share", ["job-a"])
    assert [d["decision_id"] for d in ok(api.get("/decisions", params={"before": newest["decision_id"]}))] == [
        d["decision_id"] for d in listed[1:]
    ]
    assert api.get("/decisions/99999").status_code == 404
    assert ok(api.post("/nodes/node-a/set-aside", json={"reason": "its fan"}))["set_aside_reason"] == "its fan"
    assert ok(api.get("/nodes"))[0]["set_aside_by"] == "ann"
    assert [record["action"] for record in ok(api.get("/audit", params={"actor": "ann"}))] == ["set aside"]


def test_the_description_names_every_route_with_its_answer_and_what_it_takes(api: httpx.Client, app: FastAPI) -> None:
    described = ok(api.get("/openapi.json"))
    routes = {
        (method.lower(), route.path)
        for route in app.state.inner.routes
        if isinstance(route, APIRoute) and route.path.startswith("/api/v1") and route.include_in_schema
        for method in route.methods
    }
    told = {(method, path) for path, methods in described["paths"].items() for method in methods}
    assert told == routes
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
            assert schema, f"{method} {path} does not say what it answers"
    (server,) = described["servers"]
    assert ok(api.get(f"{api.base_url.copy_with(path=server['url'])}/api/v1/jobs"))["total"] == 0
    queued = described["components"]["schemas"]["InQueue"]["properties"]
    assert {"place", "held_by", "preempted_by", "starts_at", "unknown", "words"} <= queued.keys()
    pause = described["paths"]["/api/v1/jobs/{job_id}/pause"]["post"]
    assert "reason" in pause["requestBody"]["content"]["application/json"]["schema"]["properties"]
