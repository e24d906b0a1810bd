"""The real services: what starts, who may see it, and what comes back by itself after a kill."""

from __future__ import annotations

import json
import os
import signal
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest
from sqlalchemy import create_engine, text

from elastic_core.host.process import ProcessId
from elastic_core.services.secrets import admin_password, read_secret
from elastic_core.services.supervision.marks import of_program
from tests.e2e.platform import Platform, eventually
from tests.e2e.test_main_line import a_job, assert_read_exactly_once, finished, start, trains
from tests.effort import sample
from tests.track.traces.collector import Collector, attributes, collecting
from tests.train import forked

NOBODY = 65534
TABLES = text(
    "SELECT schemaname, tablename FROM pg_tables WHERE schemaname NOT IN ('pg_catalog', 'information_schema')"
)
DATABASES = ("airflow_db_url", "ledger_url", "mlflow_db_url")
SERVICES = ("postgres", "api-server", "mlflow", "tracker", "scheduler", "dag-processor", "triggerer")


def secrets(platform: Platform) -> list[str]:
    """Every secret of the home; of a database's address its password, of a file of passwords each."""
    texts = [path.read_text().strip() for path in platform.settings.secret_file("").iterdir()]
    return sorted({secret for text in texts for secret in secrets_in(text)})


def secrets_in(text: str) -> list[str]:
    """Those of a file's content."""
    if text.startswith("{"):
        return [str(password) for password in json.loads(text).values()]
    if "://" in text:
        return [password] if (password := urlsplit(text).password) else []
    until, _, before = text.partition("\n")
    return [before if until.isdigit() else text]


def files_below(folder: Path) -> list[Path]:
    paths = (Path(at) / name for at, _, names in os.walk(folder) for name in names)
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def content(path: Path) -> bytes:
    """Of a file that was there a moment ago: old checkpoints, logs and run folders go while they are looked through."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def read_by_nobody(paths: list[str]) -> int:
    """How many another user of the machine can read; in a process of its own, which that user becomes."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    can = [path for path in paths if os.access(path, os.R_OK)]
    print("\n".join(can))
    return min(100, len(can))


def test_everything_is_up_and_the_cluster_is_known(platform: Platform) -> None:
    assert set(platform.status()) == set(SERVICES)
    assert platform.healthy()
    assert [node.num_slots for node in platform.control.snapshot().nodes if node.present] == [2, 2]


def test_dags_plugin_and_connection_are_there_without_complaint(platform: Platform) -> None:
    dags = {dag["dag_id"]: dag for dag in platform.airflow.get("/dags").json()["dags"]}
    ours = {"elastic_job", "elastic_segment", "elastic_reconcile", "elastic_predictors"}
    assert ours <= set(dags)
    assert [name for name in ours if dags[name]["is_paused"]] == []
    assert platform.airflow.get("/importErrors").json()["import_errors"] == []
    assert platform.airflow.get("/plugins/importErrors").json()["import_errors"] == []
    plugins = [plugin["name"] for plugin in platform.airflow.get("/plugins").json()["plugins"]]
    assert len([name for name in plugins if "elastic" in name]) == 1
    connection = platform.airflow.get("/connections/elastic_control").json()
    assert connection["host"] == platform.settings.api_url()


def test_reconciliation_has_the_predictors_fitted_by_a_run_of_their_own(platform: Platform) -> None:
    def fitted() -> bool:
        runs = platform.airflow.get("/dags/elastic_predictors/dagRuns").raise_for_status().json()["dag_runs"]
        return [run["state"] for run in runs if run["dag_run_id"].startswith("fit-")] == ["success"]

    eventually(fitted, 150, "the first reconciliation starts a fit, once")


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
    assert admin_password(platform.settings) in hidden
    lines = [Path(f"/proc/{pid}/cmdline").read_text() for pid in platform.processes()]
    logs = [path for folder in ("logs", "airflow", "services") for path in (platform.home / folder).rglob("*")]
    texts = lines + [content(path).decode(errors="replace") for path in logs if path.is_file()]
    assert [text for text in texts if any(secret in text for secret in hidden)] == []


def test_no_secret_is_in_a_table_of_any_database(platform: Platform) -> None:
    """What Airflow keeps of connections is encrypted."""
    hidden, rows = secrets(platform), 0
    for name in DATABASES:
        engine = create_engine(read_secret(platform.settings, name))
        with engine.connect() as sql:
            for schema, table in sql.execute(TABLES).all():
                for (row,) in sql.execute(text(f'SELECT t::text FROM "{schema}"."{table}" t')):
                    rows += 1
                    assert not any(secret in row for secret in hidden), f"{name}: {schema}.{table}"
        engine.dispose()
    assert rows > 100, "hardly anything was looked at"


def test_no_secret_is_in_a_checkpoint_an_artifact_or_what_else_lies_in_the_home(platform: Platform) -> None:
    hidden = [secret.encode() for secret in secrets(platform)]
    apart = (platform.settings.secret_file("").absolute(), platform.home / "postgres")  # that: by its tables, above
    looked = [path for path in files_below(platform.home) if not any(map(path.is_relative_to, apart))]
    read, telling = 0, []
    for path in looked:
        found = content(path)
        read += bool(found)
        if any(secret in found for secret in hidden):
            telling.append(path)
    assert read > 100
    assert telling == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_of_the_machine_reads_no_file_of_a_running_installation(
    platform: Platform, tmp_path: Path
) -> None:
    project = platform.home / "project"  # the tests' own, which is in the home of this platform alone
    paths = [str(path) for path in files_below(platform.home) if not path.is_relative_to(project)]
    assert len(paths) > 100
    assert forked.join([forked.start(read_by_nobody, paths, log=tmp_path / "log")]) == [0]


@pytest.mark.parametrize("name", sample(SERVICES, "postgres", "api-server", "scheduler"))
def test_a_killed_service_comes_back_by_itself(platform: Platform, name: str) -> None:
    killed = platform.kill(name)
    orphans = [process for process in of_program(platform.home, name) if process.pid != killed]
    eventually(lambda: platform.pid(name) not in (0, killed), 60, f"{name} is started again")
    platform.wait_healthy(110, f"after {name} was killed")
    assert [process for process in orphans if process.alive()] == []


def test_work_is_done_after_all_those_kills(platform: Platform) -> None:
    """Nobody starts a run of reconciliation: the next minute's is waited for."""
    since = {"start_date_gte": datetime.now(UTC).isoformat(), "state": "success"}

    def reconciled() -> bool:
        runs = platform.airflow.get("/dags/elastic_reconcile/dagRuns", params=since).raise_for_status().json()
        return bool(runs["total_entries"])

    eventually(reconciled, 150, "a run succeeds")


@pytest.mark.nightly
def test_a_killed_supervisor_is_cleared_by_the_next_up(platform: Platform) -> None:
    before = platform.processes()
    os.kill(platform.supervisor.pid(), signal.SIGKILL)
    platform.up()
    platform.wait_healthy(60, "after the supervisor was killed")
    assert set(before) & set(platform.processes()) == set()


def test_down_leaves_no_process_and_up_finds_everything_again(platform: Platform) -> None:
    """The services come up under another policy and with a collector of traces, and a job that ran goes on under them.
    The last test: it stays so."""
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
    with collecting() as collector:
        changed = {"policy": "fair_share", "otlp_traces": collector.url}
        platform.settings = platform.settings.model_copy(update=changed)
        platform.up()
        assert platform.airflow.get("/dags/elastic_reconcile/dagRuns").json()["total_entries"] >= runs
        eventually(lambda: decided_by(platform) == "fair_share", 60, "the configured policy decides")
        assert finished(platform, "two-policies").done_samples == 9_000
        assert_read_exactly_once(platform, "two-policies")
        eventually(lambda: life_of(collector, "two-policies"), 60, "the collector is told of the job's whole life")
        names = {span.name for span in life_of(collector, "two-policies")}
        assert names == {"job", "wait", "attempt", "start", "checkpoint"}


def life_of(collector: Collector, job_id: str) -> list[Any]:
    """The spans of its trace, once it is over."""
    over = [span for span in collector.named("job") if attributes(span)["elastic.job.id"] == job_id]
    return [span for span in collector.spans if over and span.trace_id == over[0].trace_id]


def decided_by(platform: Platform) -> str | None:
    plan = platform.control.last_plan()
    return plan.policy if plan is not None else None
