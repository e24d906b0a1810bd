"""The real services: what starts, who may see it, and what comes back by itself after a kill."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from elastic_core.host.process import ProcessId
from elastic_core.services.marks import of_program
from tests.e2e.platform import Platform, eventually
from tests.e2e.test_main_line import a_job, assert_read_exactly_once, finished, start, trains

SERVICES = ("postgres", "api-server", "mlflow", "tracker", "scheduler", "dag-processor", "triggerer")


def secrets(platform: Platform) -> list[str]:
    """Every secret of the home; of a database's address its password."""
    texts = [path.read_text().strip() for path in platform.settings.secret_file("").iterdir()]
    return [text for text in texts if "://" not in text and "{" not in text]


def test_everything_is_up_and_the_cluster_is_known(platform: Platform) -> None:
    assert set(platform.status()) == set(SERVICES)
    assert platform.healthy()
    assert [node.num_slots for node in platform.control.snapshot().nodes if node.present] == [2, 2]


def test_dags_plugin_and_connection_are_there_without_complaint(platform: Platform) -> None:
    dags = {dag["dag_id"]: dag for dag in platform.airflow.get("/dags").json()["dags"]}
    assert {"elastic_job", "elastic_segment", "elastic_reconcile"} <= set(dags)
    assert [name for name, dag in dags.items() if dag["is_paused"]] == []
    assert platform.airflow.get("/importErrors").json()["import_errors"] == []
    assert platform.airflow.get("/plugins/importErrors").json()["import_errors"] == []
    plugins = [plugin["name"] for plugin in platform.airflow.get("/plugins").json()["plugins"]]
    assert len([name for name in plugins if "elastic" in name]) == 1
    connection = platform.airflow.get("/connections/elastic_control").json()
    assert connection["host"] == platform.settings.api_url()


def test_a_second_up_changes_nothing(platform: Platform) -> None:
    before = {name: service["pid"] for name, service in platform.status().items()}
    platform.up()
    assert {name: service["pid"] for name, service in platform.status().items()} == before


def test_services_listen_on_loopback_only(platform: Platform) -> None:
    listening = [
        connection.laddr
        for pid in platform.processes()
        for connection in psutil.Process(pid).net_connections(kind="inet")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert {address.ip for address in listening} == {"127.0.0.1"}


def test_no_secret_is_on_a_command_line_or_in_a_log(platform: Platform) -> None:
    hidden = secrets(platform)
    assert len(hidden) >= 8
    lines = [Path(f"/proc/{pid}/cmdline").read_text() for pid in platform.processes()]
    logs = [path for folder in ("logs", "airflow", "services") for path in (platform.home / folder).rglob("*")]
    texts = lines + [path.read_text(errors="replace") for path in logs if path.is_file()]
    assert [text for text in texts if any(secret in text for secret in hidden)] == []


@pytest.mark.parametrize("name", SERVICES)
def test_a_killed_service_comes_back_by_itself(platform: Platform, name: str) -> None:
    killed = platform.kill(name)
    orphans = [process for process in of_program(platform.home, name) if process.pid != killed]
    eventually(lambda: platform.pid(name) not in (0, killed), 60, f"{name} is started again")
    platform.wait_healthy(110, f"after {name} was killed")
    assert [process for process in orphans if process.alive()] == []


def test_work_is_done_after_all_those_kills(platform: Platform) -> None:
    run_id = platform.trigger("elastic_reconcile")
    eventually(lambda: platform.run_state("elastic_reconcile", run_id) == "success", 90, "a run succeeds")


def test_a_killed_supervisor_is_cleared_by_the_next_up(platform: Platform) -> None:
    before = platform.processes()
    os.kill(platform.supervisor.pid(), signal.SIGKILL)
    platform.up()
    assert platform.ailing() == {}
    assert set(before) & set(platform.processes()) == set()


def test_down_leaves_no_process_and_up_finds_everything_again(platform: Platform) -> None:
    """The services come up under another policy, and a job that ran goes on under it. The last test: it stays so."""
    start(platform, a_job("two-policies", samples=9_000, slots=(1, 2), checkpoints={"interval_seconds": 2}))
    eventually(lambda: trains(platform, "two-policies"), 120, "the job trains")
    eventually(lambda: platform.control.checkpoints("two-policies"), 60, "a checkpoint is there")
    assert decided_by(platform) == "horizon"
    runs = platform.airflow.get("/dags/elastic_reconcile/dagRuns").json()["total_entries"]
    supervisor = ProcessId.of(platform.supervisor.pid())
    platform.down()
    assert platform.processes() == []
    assert supervisor
    assert not supervisor.alive()
    postgres = [process for process in psutil.process_iter() if process.name() == "postgres"]
    assert [process for process in postgres if Path(process.cwd()).is_relative_to(platform.home)] == []
    platform.settings = platform.settings.model_copy(update={"policy": "fair_share"})
    platform.up()
    assert platform.airflow.get("/dags/elastic_reconcile/dagRuns").json()["total_entries"] >= runs
    assert finished(platform, "two-policies").done_samples == 9_000
    assert decided_by(platform) == "fair_share"
    assert_read_exactly_once(platform, "two-policies")


def decided_by(platform: Platform) -> str | None:
    plan = platform.control.last_plan()
    return plan.policy if plan is not None else None
