"""One service in the foreground; the whole stack of containers is started in tests/e2e."""

from __future__ import annotations

import configparser
import datetime
import json
import os
import signal
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from sqlalchemy import create_engine, text

from elastic_core.errors import UserError
from elastic_core.host.mlflow_access import require_safe
from elastic_core.services import airflow
from elastic_core.services.certificates import ensure_certificate
from elastic_core.services.containers import prepare_files, problem, program_of, trains
from elastic_core.services.platform import platform_stack, service_environment, service_settings
from elastic_core.services.postgres import EmbeddedPostgres
from elastic_core.services.secrets import ensure_secrets, read_secret
from elastic_core.settings import Settings
from tests.services.test_stack import eventually

ROOT = Path(__file__).parents[2]


def served(settings: Settings, name: str) -> subprocess.Popen[bytes]:
    """`elastic container serve NAME` with these settings."""
    program = "from elastic_core.cli import app; app()"
    return subprocess.Popen(
        [sys.executable, "-c", program, "container", "serve", name],
        env=service_environment(service_settings(settings), {"PATH": os.environ["PATH"]}), cwd=ROOT,
    )  # fmt: skip


@pytest.mark.nightly
def test_postgres_in_the_foreground_is_reached_over_the_network_and_ends_when_it_is_asked_to(home: Path) -> None:
    settings = Settings(home=home, project=ROOT, postgres_host="127.0.0.7")
    process = served(settings, "postgres")
    try:
        eventually(lambda: (home / "secrets" / "postgres").exists() and not problem(settings, {}, "postgres"), 120)
        server = EmbeddedPostgres(settings)
        server.ensure_databases()
        assert "@127.0.0.7:5432/ledger" in server.url("ledger")
        with create_engine(server.url("ledger")).connect() as connection:
            assert connection.execute(text("SELECT current_user")).scalar() == "ledger"
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
        assert problem(settings, {}, "postgres")
    finally:
        process.kill()
        process.wait()


@contextmanager
def answering(body: bytes, tls: Settings | None = None) -> Iterator[tuple[int, list[str]]]:
    """A server on 127.0.0.1 alone: its port, and the host that each request named."""
    named: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            named.append(self.headers["host"])
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        if tls:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(str(tls.mlflow_certificate), tls.mlflow_key)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1], named
        server.shutdown()


def test_the_api_server_is_asked_in_its_own_container_whether_it_works(tmp_path: Path) -> None:
    healthy = json.dumps({"metadatabase": {"status": "healthy"}}).encode()
    with answering(healthy) as (port, named):
        apart = Settings(home=tmp_path, airflow_host="api-server.invalid", airflow_port=port, listen_host="0.0.0.0")
        assert problem(service_settings(apart), {}, "api-server") is None
        assert named == [f"api-server.invalid:{port}"]
        assert "does not answer" in str(problem(service_settings(apart), {}, "scheduler"))  # it is elsewhere for that


def test_mlflow_is_asked_in_its_own_container_under_the_name_of_its_certificate(tmp_path: Path) -> None:
    secrets = tmp_path / "secrets"
    settings = Settings(
        home=tmp_path, mlflow_host="mlflow.invalid", listen_host="0.0.0.0", mlflow_certificate=secrets / "c.pem",
        mlflow_key=secrets / "k.pem", mlflow_ca=secrets / "c.pem",
    )  # fmt: skip
    ensure_certificate(settings, datetime.datetime.now(datetime.UTC))
    ensure_secrets(settings)
    with answering(b"OK", settings) as (port, named):
        apart = settings.model_copy(update={"mlflow_port": port})
        assert problem(apart, {}, "mlflow") is None
        assert named == [f"mlflow.invalid:{port}"]
        other = apart.model_copy(update={"mlflow_host": "another.invalid"})
        assert "not valid for 'another.invalid'" in str(problem(other, {}, "mlflow"))


def test_mlflow_listens_beyond_loopback_with_a_certificate_only(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"ELASTIC_LISTEN_HOST is '0\.0\.0\.0'.*ELASTIC_MLFLOW_CERTIFICATE"):
        require_safe(Settings(home=tmp_path, listen_host="0.0.0.0"))
    require_safe(Settings(home=tmp_path, listen_host="127.0.0.1"))


def test_a_name_that_no_service_has_is_refused_with_those_there_are(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no service is called 'worker'.*there are api-server, .*tracker, triggerer"):
        program_of(service_settings(Settings(home=tmp_path)), {}, "worker")


def test_the_s3_server_gets_its_key_by_a_file(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, store="s3://elastic/x", s3_endpoint="http://s3:9000")
    program = program_of(settings, {}, "s3")
    assert "s3:9000" in program.command
    assert program.secrets == {"RCLONE_AUTH_KEY": tmp_path / "secrets" / "s3_auth_key"}


def test_tasks_run_in_a_celery_worker_where_that_is_asked_for(tmp_path: Path) -> None:
    def services(executor: str) -> list[str]:
        settings = service_settings(Settings(home=tmp_path, executor=executor))
        return [program.name for program in platform_stack(settings, {}).programs()]

    assert [name for name in services("celery") if name not in services("local")] == ["celery-worker"]


@pytest.mark.parametrize(("executor", "service"), [("local", "scheduler"), ("celery", "celery-worker")])
def test_the_end_of_a_container_is_that_of_training_only_where_it_runs_in_it(executor: str, service: str) -> None:
    def training(launcher: str) -> list[str]:
        settings = Settings(executor=executor, launcher=launcher)
        return [name for name in ("scheduler", "celery-worker", "api-server") if trains(settings, name)]

    assert training("local") == [service]
    assert training("ray") == []


def given_to_others(settings: Settings) -> dict[str, str]:
    prepare_files(service_settings(settings))
    return {path.name: path.read_text() for path in (settings.home / "ray").glob("*")}


def test_nodes_of_the_installations_own_ray_get_its_token_and_the_stores_key_and_no_other_secret(
    tmp_path: Path,
) -> None:
    settings = Settings(
        home=tmp_path, project=ROOT, launcher="ray", ray_address="http://ray-head:8265",
        ray_token_file=tmp_path / "ray" / "token", store="s3://elastic/checkpoints",
    )  # fmt: skip
    first = given_to_others(settings)
    assert first.keys() == {"token", "s3_credentials"}
    assert len(first["token"]) >= 32
    assert read_secret(settings, "s3") in first["s3_credentials"]
    assert given_to_others(settings) == first
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "ray").glob("*")} == {0o600}


def test_the_token_of_somebody_elses_ray_is_left_where_it_is(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("theirs")
    home = tmp_path / "home"
    settings = Settings(home=home, project=ROOT, launcher="ray", ray_address="http://r:8265", ray_token_file=token)
    assert given_to_others(settings) == {}
    assert token.read_text() == "theirs"


def test_a_prometheus_gets_the_token_of_the_metrics_alone(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, project=ROOT)
    assert given_to_others(settings) == {}
    given = {path.name: path.read_text() for path in (tmp_path / "prometheus").glob("*")}
    assert given == {"token": read_secret(settings, "metrics")}


def executor_in(home: Path, **changes: object) -> str:
    settings = service_settings(Settings(home=home, project=ROOT, **changes))
    ensure_secrets(settings)
    airflow.write_broker(settings)
    airflow.write_configuration(settings)
    parsed = configparser.ConfigParser(interpolation=None)
    parsed.read(home / "airflow" / "airflow.cfg")
    return parsed["core"]["executor"]


def test_the_executor_is_the_killable_one_unless_another_is_asked_for(tmp_path: Path) -> None:
    assert executor_in(tmp_path) == "elastic_airflow.local_executor.KillableLocalExecutor"
    assert executor_in(tmp_path, executor="celery", celery_broker_url="redis://r") == "CeleryExecutor"


def test_the_brokers_password_is_in_a_secret_file_alone(tmp_path: Path) -> None:
    executor_in(tmp_path, executor="celery", redis_host="redis")
    settings = Settings(home=tmp_path)
    assert read_secret(settings, "celery_broker_url") == f"redis://:{read_secret(settings, 'redis')}@redis:6379/0"
    assert read_secret(settings, "redis") not in (tmp_path / "airflow" / "airflow.cfg").read_text()


def test_celery_without_a_broker_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no broker\. Set ELASTIC_CELERY_BROKER_URL"):
        executor_in(tmp_path, executor="celery")
