"""The typed client against the API's own routes, on a real server, behind a login with tokens that run out."""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

import pytest
from fastapi import Depends, FastAPI, Header, HTTPException
from fastapi.routing import APIRoute

from elastic_airflow.page.page_api import log_router
from elastic_core.client import RestClient
from elastic_core.control.plane import LedgerControl
from elastic_core.control.rpc.api_v1 import PREFIX
from elastic_core.control.rpc.http_api import create_app
from elastic_core.domain import JobState
from elastic_core.errors import Conflict, Forbidden, InfrastructureError, NotFound, Unauthorized, UserError
from elastic_core.host.messages import WorkersByRank
from elastic_core.host.rundir import RunDir
from elastic_core.protocol.callers import Caller, Way
from elastic_core.protocol.rest import rest_client
from elastic_core.protocol.rest.answers import SortBy
from elastic_core.settings import Settings
from elastic_core.spec.inputs.sweeps import expand, parse_sweep
from tests.builders import CONTROL_SECRET, FACTS, FakeClock, FakeJobRuns, Life, a_cluster, a_commit, a_control, a_spec
from tests.control.serving import served


@dataclass
class Login:
    """What Airflow's API server does at its door: gives tokens for a password, and lets them in."""

    good: set[str] = field(default_factory=set)
    numbers: Iterator[int] = field(default_factory=count)

    def new_token(self, asked: dict[str, str]) -> dict[str, str]:
        if asked != {"username": "ann", "password": "right"}:
            raise HTTPException(401, "Invalid credentials")
        token = f"token-{next(self.numbers)}"
        self.good.add(token)
        return {"access_token": token}

    def check(self, authorization: str = Header(default="")) -> None:
        if authorization == "Bearer viewer":
            return
        if authorization.removeprefix("Bearer ") not in self.good:
            raise HTTPException(401, "Not authenticated")

    def check_acting(self, authorization: str = Header(default="")) -> Caller:
        self.check(authorization)
        if authorization == "Bearer viewer":
            raise HTTPException(403, "Forbidden")
        return Caller(name="ann", way=Way.REST, unrestricted=True)


@pytest.fixture
def login() -> Login:
    return Login()


@pytest.fixture
def runs() -> FakeJobRuns:
    return FakeJobRuns()


@pytest.fixture
def control(ledger_url: str, tmp_path: Path, runs: FakeJobRuns) -> Iterator[LedgerControl]:
    plane = a_control(ledger_url, tmp_path, FakeClock(), runs)
    plane.set_cluster(a_cluster())
    yield plane
    plane.close()


@pytest.fixture
def inner(control: LedgerControl, login: Login, tmp_path: Path) -> FastAPI:
    app = create_app(control, service_secret=CONTROL_SECRET, user_reads=login.check, user_writes=login.check_acting)
    settings = Settings(home=tmp_path)
    app.include_router(log_router(control, settings), prefix=PREFIX, dependencies=[Depends(login.check)])
    return app


@pytest.fixture
def url(inner: FastAPI, login: Login) -> Iterator[str]:
    app = FastAPI()
    app.post("/auth/token")(login.new_token)
    app.mount("/elastic", inner)
    with served(app) as address:
        yield address


@pytest.fixture
def client(url: str) -> Iterator[RestClient]:
    with RestClient(url, user="ann", password="right", patience_seconds=0.5) as made:
        yield made


def test_a_job_is_submitted_looked_at_and_steered_in_records(client: RestClient, control: LedgerControl) -> None:
    assert client.submit(a_spec(), job_id="job-a").job_id == "job-a"
    control.submit("job-a", a_spec(), FACTS)
    order = Life(control, control.trainer, "job-a").start()
    control.trainer(order.token).commit(a_commit(order, 3))
    (record,) = client.checkpoints("job-a").checkpoints
    assert tuple(client.all_checkpoints("job-a")) == (record,)
    assert client.job("job-a") == control.job("job-a")
    assert client.segments("job-a").segments == tuple(control.segments("job-a"))
    assert client.explanation("job-a") == control.explain("job-a")
    assert client.forecasts("job-a") == tuple(control.forecasts("job-a"))
    assert client.submission("job-a") == control.submission("job-a")
    assert client.set_job("job-a", priority=3, max_slots=2).changes.max_slots == 2
    assert client.checkpoint_now("job-a", "a storm").revoke_reason == "a storm"
    paused = client.pause("job-a", "lunch").paused
    assert paused is not None
    assert (paused.by, paused.reason) == ("ann", "lunch")
    assert client.resume("job-a").paused is None
    assert client.stop("job-a").state is JobState.ACTIVE
    assert client.cancel("job-a", "enough").error == "enough"
    assert client.revive("job-a").state is JobState.ACTIVE
    assert client.rollback("job-a", record.checkpoint_id).lineage == 1
    assert client.fork(record.checkpoint_id, job_id="fork", changes={"priority": 3}).job_id == "fork"
    assert (client.job("fork").step, client.job("fork").spec.priority) == (3, 3)
    assert client.fork(record.checkpoint_id, code_now=True).job_id.startswith(f"fork-{record.checkpoint_id}-")


def test_a_sweep_is_submitted_and_its_jobs_are_listed(
    client: RestClient, control: LedgerControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_core.control.sweep_starts.START_SECONDS", 0.0)  # one a request
    started = client.submit_sweep(a_spec(), members=({"seed": 1}, {"seed": 2, "batch.max": 64}), group="night")
    assert (started.left, [one.values for one in started.members]) == (0, [{"seed": 1}, {"seed": 2, "batch.max": 64}])
    assert client.submit_sweep(a_spec(), members=[{"seed": 1}, {"seed": 2, "batch.max": 64}], group="night") == started
    for member in expand("night", parse_sweep(a_spec(), members=[{"seed": 1}, {"seed": 2, "batch.max": 64}])):
        control.submit(member.job_id, member.spec, FACTS)
    control.submit("alone", a_spec(), FACTS)
    assert [job.job_id for job in client.all_jobs(group="night")] == ["night-000", "night-001"]
    assert client.jobs(group="night", limit=1).total == 2
    with pytest.raises(UserError, match="did you mean 'seed'"):
        client.submit_sweep(a_spec(), grid={"sede": [1]})
    with pytest.raises(Conflict, match=r"member night-000 of the sweep \(seed 3\) is refused"):
        client.submit_sweep(a_spec(), grid={"seed": [3]}, group="night")


def test_a_sweep_is_cancelled_as_one_with_what_its_members_are_about_to_become(
    client: RestClient, control: LedgerControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_core.protocol.rest.cancelling_many.AT_ONCE", 1)
    monkeypatch.setattr("elastic_core.protocol.rest.cancelling_many.POLL_SECONDS", 0.01)
    started = client.submit_sweep(a_spec(), grid={"seed": [1, 2, 3, 4]}, group="night")
    sweep = expand("night", parse_sweep(a_spec(), grid={"seed": [1, 2, 3, 4]}))
    for member in sweep[:3]:
        control.submit(member.job_id, member.spec, FACTS)
    control.cancel("night-001", "it diverged")
    assert len(started.members) == 4
    outcomes = {one.job_id: one for one in client.cancel_group("night", "enough", wait_seconds=0.0)}
    assert {job_id: one.state for job_id, one in outcomes.items()} == {
        "night-000": JobState.CANCELLED, "night-002": JobState.CANCELLED, "night-003": None,
    }  # fmt: skip
    assert "cancel the group again" in (outcomes["night-003"].error or "")
    assert control.job("night-000").error == "enough"
    assert [one.state for one in client.cancel_jobs(["night-001", "nothing"])] == [JobState.CANCELLED, None]


def test_who_held_what_is_read_page_by_page(
    client: RestClient, control: LedgerControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest_client, "MOST_LISTED", 1)
    for name in ("job-a", "job-b"):
        control.submit(name, a_spec(slots=(1, 1)), FACTS)
        Life(control, control.trainer, name).start()
    client.set_aside("node-a", "its fan")
    now = control.now()
    assert list(client.all_held(now - 60, now)) == control.timeline(now - 60)
    assert client.timeline(limit=1).total == 2
    assert client.node_events() == tuple(control.node_events(now - 60))


def test_the_pool_its_decisions_and_who_did_what_are_told_in_records(
    client: RestClient, control: LedgerControl
) -> None:
    control.submit("job-a", a_spec(), FACTS)
    Life(control, control.trainer, "job-a").start()
    assert {slot.job for slot in client.cluster().slots} == {"job-a"}
    assert client.nodes() == tuple(control.nodes())
    assert client.policy() == control.policy()
    newest = client.decisions(limit=1)[0]
    assert client.decision(newest.decision_id) == control.decision(newest.decision_id)
    assert all(one.decision_id < newest.decision_id for one in client.decisions(before=newest.decision_id))
    assert client.set_aside("node-a", "its fan").set_aside_by == "ann"
    assert client.set_aside("node-a", "sold", leaves_at=2e9).leaves_at == 2e9
    assert client.take_back("node-a").set_aside_at is None
    assert [record.action for record in client.audit(actor="ann")] == ["take back", "set aside", "set aside"]
    assert client.forecast_report().jobs == 0


def test_who_did_what_is_read_page_by_page(
    client: RestClient, control: LedgerControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        client.set_aside("node-a", f"its fan, {number}")
        client.take_back("node-a")
    newest, *_ = client.audit(limit=1)
    older = client.audit(limit=2, before=newest.record_id)
    assert [record.action for record in (newest, *older)] == ["take back", "set aside", "take back"]
    monkeypatch.setattr(rest_client, "MOST_RECORDS", 2)
    assert tuple(client.all_audit(actor="ann")) == client.audit(actor="ann")
    assert len(client.audit(actor="ann")) == 6
    with pytest.raises(UserError, match="limit"):
        client.audit(limit=501)


def test_all_jobs_are_read_page_by_page(
    client: RestClient, control: LedgerControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest_client, "MOST_JOBS", 2)
    for number in range(5):
        control.submit(f"job-{number}", a_spec(priority=number), FACTS)
    assert [job.job_id for job in client.all_jobs()] == [f"job-{number}" for number in range(5)]
    page = client.jobs(sort=SortBy.PRIORITY, descending=True, limit=1)
    assert (page.total, page.jobs[0].job_id) == (5, "job-4")


def test_what_a_job_prints_is_followed_to_the_end_of_its_attempt(
    client: RestClient, control: LedgerControl, tmp_path: Path
) -> None:
    control.submit("job-a", a_spec(slots=(1, 1)), FACTS)
    life = Life(control, control.trainer, "job-a")
    order = life.start()
    folder = RunDir.of(tmp_path, order.origin_epoch)
    folder.create()
    folder.write(WorkersByRank((0,)))
    folder.log(0).write_text("epoch 1\n")
    printed = client.follow_log("job-a")
    assert next(printed) == "epoch 1\n"
    folder.log(0).write_text("epoch 1\nepoch 2\n")
    assert next(printed) == "epoch 2\n"
    life.leave(order, "user_error", "it broke")
    assert list(printed) == []
    assert client.log("job-a", after=8).text == "epoch 2\n"


def test_a_log_is_followed_from_before_the_job_is_there_and_of_none_that_will_never_print(
    client: RestClient, control: LedgerControl, runs: FakeJobRuns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rest_client, "LOG_POLL_SECONDS", 0.05)
    client.submit(a_spec(slots=(1, 1)), job_id="job-a")
    with ThreadPoolExecutor(1) as threads:
        printed = threads.submit(next, client.follow_log("job-a"))
        time.sleep(0.3)
        control.submit("job-a", a_spec(slots=(1, 1)), FACTS)
        time.sleep(0.3)
        assert not printed.done()
        order = Life(control, control.trainer, "job-a").start()
        folder = RunDir.of(tmp_path, order.origin_epoch)
        folder.create()
        folder.write(WorkersByRank((0,)))
        folder.log(0).write_text("epoch 1\n")
        assert printed.result(60) == "epoch 1\n"
    client.submit(a_spec(), job_id="job-b")
    runs.end("job-b", succeeded=False, refusal="its task has no loss")
    with pytest.raises(UserError, match=r"job 'job-b' was refused: its task has no loss"):
        next(client.follow_log("job-b"))
    control.submit("job-c", a_spec(), FACTS)
    control.cancel("job-c", "enough")
    with pytest.raises(NotFound, match="job job-c has printed nothing: it had no slots yet"):
        next(client.follow_log("job-c"))
    with pytest.raises(NotFound, match="no job was submitted as 'nobody'"):
        next(client.follow_log("nobody"))


def test_jobs_that_are_submitted_in_one_second_without_an_id_are_as_many(client: RestClient) -> None:
    assert len({client.submit(a_spec(seed=seed)).job_id for seed in (1, 1, 2)}) == 3


def test_a_token_that_has_run_out_is_replaced_with_the_password_only(
    url: str, client: RestClient, login: Login
) -> None:
    client.jobs()
    login.good.clear()
    assert client.jobs().total == 0
    (token,) = login.good
    with RestClient(url, token=token) as with_token:
        assert with_token.jobs().total == 0
        login.good.clear()
        with pytest.raises(Unauthorized, match=r"GET /elastic/api/v1/jobs was refused: Not authenticated"):
            with_token.jobs()
    with (
        RestClient(url, user="ann", password="wrong") as stranger,
        pytest.raises(Unauthorized, match=r"POST /auth/token was refused: Invalid credentials"),
    ):
        stranger.jobs()


def test_errors_are_of_the_platforms_kinds(url: str, client: RestClient, control: LedgerControl) -> None:
    with pytest.raises(NotFound, match=r"there is no job .nothing here."):
        client.job("nothing here")
    with pytest.raises(UserError, match=r"/jobs was refused: limit: Input should be less than or equal to 500"):
        client.jobs(limit=501)
    control.submit("job-a", a_spec(), FACTS)
    control.cancel("job-a", "enough")
    with pytest.raises(Conflict):
        client.pause("job-a")
    with RestClient(url, token="viewer") as viewer, pytest.raises(Forbidden, match="Forbidden"):
        viewer.cancel("job-a")
    with pytest.raises(UserError, match="either a token, or a user with a password"):
        RestClient(url)


def test_a_server_that_is_away_is_told_with_its_address() -> None:
    with (
        RestClient("http://127.0.0.1:9", token="t", patience_seconds=0.1) as client,
        pytest.raises(InfrastructureError, match=r"http://127\.0\.0\.1:9 gave no answer to GET /elastic/api/v1/jobs"),
    ):
        client.jobs()


def test_the_client_has_a_method_for_every_route(inner: FastAPI) -> None:
    source = inspect.getsource(RestClient)
    called = re.findall(r'_of_job\(job_id(?:, "(\w+)")?\)', source)
    named = {f"/jobs/{{job_id}}/{part}" if part else "/jobs/{job_id}" for part in called}
    named |= {
        re.sub(r"\{quote\(node[^}]*\}", "{node}", path) for path in re.findall(r'f?"(/[\w/{}(),=\' -]+)"', source)
    }
    routes = {route.path.removeprefix(PREFIX) for route in inner.routes
              if isinstance(route, APIRoute) and route.path.startswith(PREFIX) and route.include_in_schema}  # fmt: skip
    assert routes <= named | {"/jobs"}, routes - named
