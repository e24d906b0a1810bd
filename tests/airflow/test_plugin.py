"""The plugin: light where it must be, never in the API server's way, and behind Airflow's login."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi import FastAPI, HTTPException
from fastapi.testclient import TestClient

from elastic_airflow import api_server
from elastic_airflow.api_server import mount_app, user_may
from elastic_airflow.page.kept_answers import KEEP_SECONDS
from elastic_airflow.page.page_api import OverviewReader, log_router, ui_router
from elastic_airflow.plugin import ElasticPlugin
from elastic_core.control.plane import LedgerControl
from elastic_core.control.rpc.api_v1 import PREFIX, described
from elastic_core.control.rpc.http_api import create_app
from elastic_core.errors import InfrastructureError
from elastic_core.host.rundir import RunDir
from elastic_core.settings import Settings
from tests.builders import CONTROL_SECRET, FACTS, FakeClock, Life, a_beat, a_commit, a_spec, an_observation

ROOT = Path(__file__).parents[2]


def anybody() -> None:
    """A user whom Airflow lets in."""


def nobody() -> None:
    raise HTTPException(403, "Forbidden")


def ready() -> FastAPI:
    app = FastAPI()

    @app.get("/ping")
    def ping() -> str:
        return "pong"

    return app


def eventually(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_importing_the_plugin_imports_nothing_heavy() -> None:
    code = (
        "import airflow.plugins_manager, sys; before = set(sys.modules); import elastic_airflow.plugin; "
        "print(*(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    new = set(done.stdout.split())
    assert new <= {"elastic_airflow", "elastic_airflow.plugin", "elastic_airflow.names"}


@pytest.mark.parametrize("installed", [True, False])
def test_it_registers_once_from_the_plugins_folder_installed_or_not(installed: bool) -> None:
    absent = (
        "import importlib.metadata as m; m.entry_points = lambda **k: []; p._load_entrypoint_plugins = lambda: ([], {})"
    )
    code = (
        f"from airflow import plugins_manager as p; import sys; {'' if installed else absent}\n"
        "plugins, errors = p._get_plugins()\n"
        "print([x.name for x in plugins].count('elastic'), errors, 'elastic_airflow.api_server' in sys.modules)"
    )
    environment = {**os.environ, "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins")}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.splitlines()[-1] == "1 {} False"


def test_the_page_is_in_the_navigation_and_asks_for_nothing_elsewhere() -> None:
    views = ElasticPlugin().external_views
    assert [view["href"] for view in views] == [
        "/elastic/page/", "/elastic/page/table.html", "/elastic/page/job/job.html",
        "/elastic/page/what_if/what_if.html", "/elastic/page/decisions/decisions.html",
        "/elastic/page/models/models.html",
    ]  # fmt: skip
    assert len({view["url_route"] for view in views}) == 6
    for view in views:
        assert view["destination"] == "nav"
        assert all(view[key].startswith("/elastic/page/") for key in ("href", "icon"))


def test_a_control_plane_that_cannot_start_is_told_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = threading.Event()
    broken.set()

    def build() -> FastAPI:
        if broken.is_set():
            raise InfrastructureError("the ledger at db:5432 does not answer")
        return ready()

    with TestClient(mount_app(build, anybody)) as client:  # entering runs the start-up, as the API server does
        eventually(lambda: "does not answer" in client.get("/ping").text)
        assert client.get("/ping").status_code == 503
        assert client.get("/page/").status_code == 200, "the page must be there to say so"
        broken.clear()
        eventually(lambda: client.get("/ping").status_code == 200)


def test_any_exception_at_start_leaves_the_server_up() -> None:
    def build() -> FastAPI:
        raise RuntimeError("a bug")

    with TestClient(mount_app(build, anybody)) as client:
        eventually(lambda: "RuntimeError: a bug" in client.get("/service/jobs").text)


def test_a_pause_of_reconciliation_is_looked_for_as_long_as_the_api_server_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("ELASTIC_HOME", str(tmp_path))
    monkeypatch.setattr(api_server, "PAUSE_SECONDS", 0.01)
    looks: list[int] = []

    def take_back_pause() -> bool:
        looks.append(len(looks))
        if len(looks) == 1:
            raise OSError("Airflow's database is away")
        return True

    monkeypatch.setattr("elastic_airflow.airflow_runs.take_back_pause", take_back_pause)
    with TestClient(api_server.plugin_app()):
        eventually(lambda: len(looks) > 2)
    seen = len(looks)
    time.sleep(0.1)
    assert len(looks) == seen


@pytest.mark.parametrize(
    "path",
    ["/page/", "/page/app.js", "/page/icon.svg", "/page/table.html", "/page/steering.js", "/page/job/job.js"],
)
def test_the_page_is_for_users_whom_airflow_lets_in(path: str) -> None:
    assert TestClient(mount_app(ready, anybody)).get(path).status_code == 200
    assert TestClient(mount_app(ready, nobody)).get(path).status_code == 403


def test_airflows_own_rule_refuses_who_is_not_logged_in() -> None:
    assert TestClient(mount_app(ready, user_may("GET"))).get("/page/").status_code == 401


def test_the_pages_policy_forbids_inline_scripts_and_other_hosts() -> None:
    policy = TestClient(mount_app(ready, anybody)).get("/page/").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy


def test_a_file_that_is_not_the_pages_is_not_there() -> None:
    client = TestClient(mount_app(ready, anybody))
    for path in ("/page/nothing.js", "/page/..%2Fplugin.py", "/page/%2e%2e/plugin.py"):
        assert client.get(path).status_code != 200


@pytest.fixture
def page_data(plane: LedgerControl, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """The page's route over a real ledger. Airflow's own database is not there: no DAG is paused."""
    monkeypatch.setattr("elastic_airflow.page.page_api.paused_dags", lambda: ["elastic_segment"])
    monkeypatch.setattr("elastic_airflow.page.page_api.seconds_without_reconciliation", lambda: 3700.0)
    app = create_app(plane, service_secret=CONTROL_SECRET, user_reads=anybody, user_writes=nobody)
    app.include_router(ui_router(plane, Settings()), prefix="/ui")
    return TestClient(app)


def test_the_overview_tells_who_holds_what_who_waits_and_why(
    page_data: TestClient, plane: LedgerControl, life: Life
) -> None:
    plane.submit("digits-1", a_spec(slots=(4, 4)), FACTS)
    order = life.start()
    plane.trainer(order.token).commit(a_commit(order, 100, final=True))
    plane.submit("late-1", a_spec("late"), FACTS)
    plane.acquire("late-1__seg_0")
    seen = page_data.get("/ui/overview").json()
    running, waiting = seen["jobs"]
    assert (running["slots"], running["step"], running["progress"]) == (4, 100, 0.1)
    assert (waiting["slots"], waiting["segment_state"]) == (0, "waiting")
    assert waiting["reason"]
    assert waiting["waiting_since"] is not None
    assert [hold["segment_id"] for hold in seen["holds"]] == ["digits-1__seg_0", "digits-1__seg_1"]
    assert seen["holds"][1]["until"] is None
    assert [node["num_slots"] for node in seen["nodes"]] == [2, 2]
    assert seen["paused"] == ["elastic_segment"]
    assert seen["decision"]["policy"] == "fair_share"


@pytest.mark.usefixtures("page_data")
def test_the_overview_says_for_how_long_nobody_has_reconciled_where_that_is_too_long(
    plane: LedgerControl, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = OverviewReader(plane, Settings())
    assert reader.read(15).unreconciled is None, "the platform has just come up"
    clock.advance(301)
    assert reader.read(15).unreconciled == 3700.0
    for lately, told in ((61.0, None), (None, 301.0)):  # never yet, since the platform came up
        monkeypatch.setattr(
            "elastic_airflow.page.page_api.seconds_without_reconciliation", lambda seconds=lately: seconds
        )
        assert reader.read(15).unreconciled == told


def test_what_a_job_prints_is_read_where_its_workers_run(
    page_data: TestClient, plane: LedgerControl, life: Life, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELASTIC_HOME", str(tmp_path))
    app = FastAPI()
    app.include_router(ui_router(plane, Settings()), prefix="/ui")
    plane.submit("digits-1", a_spec(), FACTS)
    order = life.start()
    folder = RunDir.of(tmp_path, order.origin_epoch)
    folder.create()
    folder.log(0).write_text("epoch 1\nepoch 2\n")
    reading = TestClient(app)
    seen = reading.get("/ui/jobs/digits-1/log").json()
    assert (seen["attempt"], seen["ranks"], seen["text"], seen["end"]) == (1, 1, "epoch 1\nepoch 2\n", 16)
    assert reading.get("/ui/jobs/digits-1/log?after=8").json()["text"] == "epoch 2\n"
    for bad in ("rank=-1", "after=-1", "rank=x"):
        assert reading.get(f"/ui/jobs/digits-1/log?{bad}").status_code == 422


def test_the_log_is_read_and_described_by_the_rest_api(plane: LedgerControl) -> None:
    app = create_app(plane, service_secret=CONTROL_SECRET, user_reads=anybody, user_writes=nobody)
    app.include_router(log_router(plane, Settings()), prefix=PREFIX)
    plane.submit("digits-1", a_spec(), FACTS)
    answer = TestClient(app).get(f"{PREFIX}/jobs/digits-1/log")
    assert (answer.status_code, "it had no slots yet" in answer.json()["message"]) == (404, True)
    assert "get" in described(app)["paths"][f"{PREFIX}/jobs/{{job_id}}/log"]


def test_the_overview_says_what_is_expected_of_a_job_and_how_that_turned_out(
    page_data: TestClient, plane: LedgerControl, life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_airflow.page.page_api.REPORT_SECONDS", -1.0)  # not remembered
    clock = plane._ledger.clock
    assert isinstance(clock, FakeClock)
    plane.submit("digits-1", a_spec(batch=(10, 10)), FACTS)
    order = life.start()
    trainer = plane.trainer(order.token)
    trainer.heartbeat(a_beat(200))
    trainer.observe([an_observation(200, order, step_seconds=0.1)])
    plane.decide("a look")
    (running,) = page_data.get("/ui/overview?minutes=60").json()["jobs"]
    low, median, high = running["forecast"]["finish_in"]
    assert low < median < high
    assert (running["forecast"]["work_left"], running["forecast"]["work_basis"]) == ([8000.0] * 3, "as declared")
    assert (running["forecast"]["declared"], running["hindsight"]) == (True, [])
    assert "nobody else arrives" in running["forecast"]["assumes"]
    clock.advance(1000.0)
    trainer.commit(a_commit(order, 1000, finished=True))
    seen = page_data.get("/ui/overview?minutes=90").json()
    (ended,) = seen["jobs"]
    (grade,) = ended["hindsight"]
    assert (grade["quantity"], grade["stage"], grade["held"]) == ("finish", 0.25, False)
    assert grade["error"] < -0.9, "80 s were told, 1000 s it took"
    assert (seen["forecasts"]["jobs"], seen["forecasts"]["declared"]) == (1, 1)


def test_a_job_of_progress_shows_passes_read_predicted_and_declared(
    page_data: TestClient, plane: LedgerControl, life: Life
) -> None:
    plane.submit("digits-1", a_spec(slots=(4, 4), work={"samples": 10_000, "measure": "progress"}), FACTS)
    order = life.start()
    gain = order.allocation.global_batch / 16 / 2  # a sample is worth half of one at the base batch
    plane.trainer(order.token).commit(a_commit(order, 200, progress=1_000.0, gain=gain))
    plane.submit("late-1", a_spec("late"), FACTS)
    plane.acquire("late-1__seg_0")
    first, other = page_data.get("/ui/overview").json()["jobs"]
    assert (first["progress"], first["done_samples"]) == (0.1, 1_000)
    assert first["reading"] == f"2.0 passes read, 20.0 predicted for 10.0 at batch 16, gain {gain:.2f}"
    assert other["reading"] == ""


def test_a_failed_job_shows_the_tracebacks_last_line(page_data: TestClient, plane: LedgerControl, life: Life) -> None:
    plane.submit("digits-1", a_spec(), FACTS)
    life.leave(life.start(), kind="user_error", error="ValueError: boom")
    (job,) = page_data.get("/ui/overview").json()["jobs"]
    assert job["state"] == "failed"
    assert "ValueError: boom" in job["error"]


def test_many_onlookers_cost_one_reading_a_second(
    page_data: TestClient, plane: LedgerControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = []
    jobs = plane.jobs_of_window
    monkeypatch.setattr(plane, "jobs_of_window", lambda *window: read.append(1) or jobs(*window))
    began = time.monotonic()
    for _ in range(20):
        assert page_data.get("/ui/overview").status_code == 200
    assert 1 <= len(read) <= 1 + (time.monotonic() - began) / KEEP_SECONDS


def test_the_control_app_of_the_settings_needs_a_ledger_and_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    monkeypatch.setenv("ELASTIC_HOME", str(tmp_path))
    with pytest.raises(InfrastructureError, match="ledger_url"):
        api_server.build_control_app()
