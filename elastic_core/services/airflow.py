"""Airflow's four components as programs, and its configuration from `airflow.cfg.template`.

Airflow itself is not imported here: `elastic_airflow.bootstrap` (in the plugin) migrates its database.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path
from urllib.parse import quote

from elastic_core.errors import InfrastructureError, UserError
from elastic_core.host.secret_files import write_secret
from elastic_core.services import own_health
from elastic_core.services.secrets import airflow_users, read_secret
from elastic_core.services.supervision.program import Port, Program
from elastic_core.settings import Settings

TEMPLATE = "airflow.cfg.template"
EXECUTORS = {"local": "elastic_airflow.local_executor.KillableLocalExecutor", "celery": "CeleryExecutor"}
API_SERVER = "api-server"
CELERY_WORKER = "celery-worker"
BROKER = "celery_broker_url"  # below <home>/secrets


def airflow_home(settings: Settings) -> Path:
    return settings.home.absolute() / "airflow"


def log_folder(settings: Settings) -> Path:
    """Of the logs of tasks, triggers and DAG files."""
    return airflow_home(settings) / "logs"


def airflow_environment(settings: Settings) -> dict[str, str]:
    home = airflow_home(settings)
    return {"AIRFLOW_HOME": str(home), "AIRFLOW_CONFIG": str(home / "airflow.cfg"), "PYTHONUNBUFFERED": "1"}


def write_configuration(settings: Settings) -> None:
    """Render airflow.cfg. Raises `UserError` when the project folder holds no template."""
    project, home = settings.project.absolute(), airflow_home(settings)
    template = project / TEMPLATE
    if not template.exists():
        raise UserError(
            f"{template} does not exist: {project} is not the project's folder. Run from there, or set ELASTIC_PROJECT."
        )
    secrets = settings.secret_file("").absolute()
    plugins = home / "plugins"
    plugins.mkdir(parents=True, exist_ok=True)
    values = {
        "dags": project / "dags",
        # empty on purpose: the plugin comes by its entry point, and Airflow warns about one that it finds twice
        "plugins": plugins,
        "logs": log_folder(settings),
        "secrets": shlex.quote(str(secrets)),
        "secrets_path": secrets,
        "host": settings.listens_on(settings.airflow_host),
        "port": settings.airflow_port,
        "url": settings.airflow_url(),
        "page": settings.airflow_page(),
        "executor": EXECUTORS[settings.executor],
        "log_port": settings.airflow_log_port,
        "triggerer_log_port": settings.triggerer_log_port,
        "parallelism": settings.airflow_parallelism,
        "idle_sleep": settings.scheduler_idle_seconds,
        "users": ",".join(f"{name}:{role}" for name, role in airflow_users(settings).items()),
    }
    (home / "airflow.cfg").write_text(_fill(template.read_text(), values))


def _fill(text: str, values: Mapping[str, object]) -> str:
    """`{{name}}` by its value; a percent sign is doubled, since airflow.cfg interpolates."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: str(values[match[1]]).replace("%", "%%"), text)


def write_broker(settings: Settings) -> None:
    """The broker's address, for Celery. Raises `UserError` where tasks need one and there is none."""
    if settings.executor != "celery":
        return
    url = settings.celery_broker_url
    if not url and settings.redis_host:
        url = f"redis://:{quote(read_secret(settings, 'redis'), safe='')}@{settings.redis_host}:6379/0"
    if not url:
        raise UserError(
            "ELASTIC_EXECUTOR is 'celery', and there is no broker. Set ELASTIC_CELERY_BROKER_URL=redis://..., or "
            "ELASTIC_EXECUTOR=local"
        )
    write_secret(settings.secret_file(BROKER), url)


def migrate(settings: Settings, environment: Mapping[str, str]) -> None:
    """Bring Airflow's database up to date and store the connection to the control API in it.

    Starting Airflow's code takes seconds, so what was done is remembered, unless the database is not below the home.
    """
    stamp, state = airflow_home(settings) / "migrated", _migrated_state(settings)
    elsewhere = settings.airflow_db_url or settings.postgres_host
    if not elsewhere and stamp.exists() and stamp.read_text() == state:
        return
    done = subprocess.run(
        [sys.executable, "-m", "elastic_airflow.bootstrap"],
        env={**environment, **airflow_environment(settings)},
        capture_output=True,
        text=True,
    )
    log = settings.home.absolute() / "logs" / "airflow-migrate.log"
    log.parent.mkdir(mode=0o700, exist_ok=True)
    log.write_text(done.stdout + done.stderr)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no output"])[-1]
        raise InfrastructureError(f"Airflow's database could not be migrated: {last}; see {log}")
    stamp.write_text(state)


def _migrated_state(settings: Settings) -> str:
    """A hash of all that a migration depends on, the database itself included: a new one has another birth."""
    birth = settings.postgres_folder() / "PG_VERSION"
    facts = (
        version("apache-airflow"),
        settings.api_url(),
        read_secret(settings, "control"),
        read_secret(settings, "fernet"),
        str(birth.stat().st_mtime_ns if birth.exists() else 0),
    )
    return sha256("\n".join(facts).encode()).hexdigest()


def programs(settings: Settings) -> tuple[tuple[Program, ...], tuple[Program, ...]]:
    """The API server, and apart from it the components that start work (they stop first)."""
    environment = airflow_environment(settings)

    command_line = (str(Path(sys.executable).parent / "airflow"),)
    preloaded = (sys.executable, "-m", "elastic_airflow.preloaded")

    def component(
        name: str, *options: str, program: tuple[str, ...] = command_line, ports: tuple[Port, ...] = ()
    ) -> Program:
        return Program(
            name=name,
            command=(*program, name, *options),
            environment=environment,
            ports=ports,
            stop_seconds=15,
            health=lambda started: health(settings, name, started),
        )

    # Told here, since airflow.cfg may have been written by another container, which has another address.
    listen = ("--host", settings.listens_on(settings.airflow_host))
    api = component(API_SERVER, *listen, ports=(Port(settings.airflow_port, "airflow_port"),))
    # The log servers would listen on all interfaces; the API server reads the same files from disk.
    workers: tuple[Program, ...] = (
        component("scheduler", "--skip-serve-logs", program=preloaded),
        component("dag-processor", program=preloaded),
        component("triggerer", "--skip-serve-logs"),
    )
    if settings.executor == "celery":
        pid_file = airflow_home(settings) / "celery-worker.pid"
        command = (*preloaded, "celery", "worker", "--skip-serve-logs", "--pid", str(pid_file))
        tasks = Program(
            name=CELERY_WORKER, command=command, environment=environment, stop_seconds=30,
            health=lambda _: celery_health(settings),
        )  # fmt: skip
        workers = (*workers, tasks)
    return (api,), workers


def celery_health(settings: Settings) -> str | None:
    """None when a Celery worker answers through the broker."""
    from celery import Celery

    with Celery(broker=read_secret(settings, BROKER)) as app:
        try:
            answers = app.control.ping(timeout=5.0, limit=1)
        except OSError as error:  # kombu's OperationalError is one
            return f"the broker does not answer: {error}"
    return None if answers else "no Celery worker answers"


def health(settings: Settings, name: str, started: float) -> str | None:
    """None when the component is healthy by Airflow's own word, and has sent a heartbeat since it was started.

    The API server asks itself, the others ask it by the name that it is reached by.
    """
    at = own_health.own_address(settings, settings.airflow_host) if name == API_SERVER else ""
    try:
        report = json.loads(own_health.get(f"{settings.airflow_url()}/api/v2/monitor/health", at))
    except (OSError, ValueError) as error:
        return f"Airflow's API server does not answer: {error}"
    if name == API_SERVER:
        return None if report["metadatabase"]["status"] == "healthy" else "Airflow's database does not answer"
    key = name.replace("-", "_")
    facts = report[key] or {}
    beat = facts.get(f"latest_{key}_heartbeat")
    if facts.get("status") != "healthy" or not beat:
        return f"{name} is {facts.get('status') or 'not known'}, last heartbeat {beat or 'never'}"
    if datetime.fromisoformat(beat).timestamp() < started:
        return f"{name} has sent no heartbeat since it was started"
    return None
