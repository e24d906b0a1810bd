"""The real ledger's outbox into a real MLflow: by the service's own process, and by the command line."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mlflow import MlflowClient
from typer.testing import CliRunner

from elastic_core.commands.tracker_commands import app
from elastic_core.control.plane import LedgerControl
from elastic_core.settings import Settings
from elastic_core.track.follow import Follower, lag
from elastic_core.track.tracker_service import only_follower, open_tracker
from tests.builders import FACTS, TRAINER_SECRET, Life, a_cluster, a_commit, a_control, a_spec, an_observation
from tests.track.mlflow_server import MlflowServer

pytestmark = pytest.mark.e2e


@pytest.fixture
def control(
    ledger_url: str, tmp_path: Path, mlflow_server: MlflowServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LedgerControl]:
    """A ledger whose settings another process can read from the environment, too."""
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "trainer").write_bytes(TRAINER_SECRET)
    for name, value in (("HOME", str(tmp_path)), ("LEDGER_URL", ledger_url), ("MLFLOW_URI", mlflow_server.uri)):
        monkeypatch.setenv(f"ELASTIC_{name}", value)
    plane = a_control(ledger_url, tmp_path, time.time, mlflow_uri=mlflow_server.uri)
    plane.set_cluster(a_cluster())
    yield plane
    plane.close()


def a_life_with_a_crash_and_a_resize(control: LedgerControl, job_id: str) -> Life:
    """Steps 1-3 committed, 4 lost with a crash; 4-6 by the next attempt, then a boundary and a finish at 8."""
    control.submit(job_id, a_spec(job_id), FACTS)
    life = Life(control, control.trainer, job_id)
    order = life.start()
    trainer = control.trainer(order.token)
    trainer.observe([an_observation(step, order, loss=1 / step) for step in (1, 2, 3, 4)])
    trainer.commit(a_commit(order, 3))
    life.leave(order, "infrastructure", "SIGKILL")
    order = life.start(3)
    trainer = control.trainer(order.token)
    trainer.observe([an_observation(step, order, loss=2 / step) for step in (4, 5, 6)])
    answer = trainer.commit(a_commit(order, 6, final=True))
    assert answer.order is not None
    trainer = control.trainer(answer.order.token)
    trainer.observe([an_observation(step, answer.order, loss=3 / step) for step in (7, 8)])
    trainer.commit(a_commit(answer.order, 8, finished=True))
    life.leave(answer.order, "finished")
    return life


def curve(client: MlflowClient, control: LedgerControl, job_id: str) -> list[tuple[int, float]]:
    run_id = control.job(job_id).results["mlflow_run_id"]
    return sorted((m.step, m.value) for m in client.get_metric_history(run_id, "loss"))


WANT = [(step, a / step) for step, a in ((1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (6, 2), (7, 3), (8, 3))]


def test_a_jobs_life_in_the_ledger_becomes_one_curve_and_its_checkpoints(control, client):
    life = a_life_with_a_crash_and_a_resize(control, "ledger-a")
    settings = control.settings
    Follower(control.feed, open_tracker(settings, control, control.feed), page=3).catch_up()
    assert curve(client, control, life.job_id) == WANT
    run = client.get_run(control.job(life.job_id).results["mlflow_run_id"])
    assert run.info.status == "FINISHED"
    models = client.search_logged_models(
        [run.info.experiment_id], order_by=[{"field_name": "metrics.checkpoint/loss", "ascending": True}]
    )
    assert [model.params["step"] for model in models] == ["8", "6", "3"]
    children = client.search_runs([run.info.experiment_id], f"tags.`mlflow.parentRunId` = '{run.info.run_id}'")
    assert sorted(child.info.status for child in children) == ["FAILED", "FINISHED", "FINISHED"]
    assert lag(control.feed).events == 0

    control.swept([control.checkpoints(life.job_id)[0].checkpoint_id])
    Follower(control.feed, open_tracker(settings, control, control.feed)).catch_up()
    left = client.search_logged_models([run.info.experiment_id])
    assert sorted(model.params["step"] for model in left) == ["6", "8"]


def test_the_service_follows_until_it_is_told_to_stop_and_a_killed_one_leaves_no_gap(control, client, tmp_path):
    def start() -> subprocess.Popen[bytes]:
        with (tmp_path / "log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "elastic_core.track.tracker_service"],
                env=dict(os.environ),
                stdout=log,
                stderr=log,
            )

    def wait_for(job_id: str) -> None:
        deadline = time.monotonic() + 180
        while lag(control.feed).events:
            assert time.monotonic() < deadline, (tmp_path / "log").read_text()
            time.sleep(0.1)

    service = start()
    try:
        a_life_with_a_crash_and_a_resize(control, "ledger-b")
        wait_for("ledger-b")
        service.kill()
        service.wait()
        a_life_with_a_crash_and_a_resize(control, "ledger-c")
        service = start()
        wait_for("ledger-c")
        assert curve(client, control, "ledger-b") == WANT
        assert curve(client, control, "ledger-c") == WANT
        service.send_signal(signal.SIGTERM)
        assert service.wait(30) == 0
    finally:
        service.kill()
        service.wait()


def test_status_tells_the_lag_and_catch_up_removes_it(control):
    a_life_with_a_crash_and_a_resize(control, "ledger-d")
    runner = CliRunner()
    before = json.loads(runner.invoke(app, ["status", "--json"]).stdout)
    assert before["position"] == 0
    assert before["events"] > 10
    assert "events behind position 0" in runner.invoke(app, ["status"]).stdout
    done = runner.invoke(app, ["catch-up"])
    assert f"recorded {before['events']}" in done.stdout or "MLflow is up to date" in done.stdout
    after = json.loads(runner.invoke(app, ["status", "--json"]).stdout)
    assert (after["events"], after["seconds"]) == (0, 0)
    assert "up to date" in runner.invoke(app, ["status"]).stdout


def test_catch_up_waits_where_the_service_is_at_it(control):
    with only_follower(Settings()):
        done = CliRunner().invoke(app, ["catch-up", "--timeout", "0"])
        assert "the tracker service follows already" in done.stdout
        assert done.exit_code == 1 or "up to date" in done.stdout
