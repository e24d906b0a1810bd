"""The platform's own stack: PostgreSQL; API server, MLflow and tracker; scheduler, DAG processor and triggerer.

What is set to be elsewhere is not started here. The three that start new work stop first; then the training
processes are asked to reach a boundary, while the API server is still there to take their commits.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from elastic_core.errors import UserError
from elastic_core.host import fork_client, mlflow_access
from elastic_core.host.environment import job_environment, job_variables
from elastic_core.host.this_machine import discover, read_cluster, require_networks
from elastic_core.host.worker_user.giving import SNAPSHOTS
from elastic_core.host.worker_user.identity import WorkerUser, require_usable
from elastic_core.launch import launchers
from elastic_core.launch.on_ray.pool.pool_reports import PoolReports
from elastic_core.services import airflow, own_health
from elastic_core.services.groups import stop_groups
from elastic_core.services.postgres import SYSTEM_USER, EmbeddedPostgres, database_urls, needed
from elastic_core.services.ray_pool import cluster_of
from elastic_core.services.secrets import ensure_secrets, read_secret
from elastic_core.services.supervision.program import Port, Program, Stack, Stage
from elastic_core.settings import Settings
from elastic_core.spec import PresentCluster
from elastic_core.state.store_access import access_brokers

# Addresses with passwords reach the services by secret files, never by the environment.
_SECRET_SETTINGS = frozenset({"ledger_url", "airflow_db_url", "mlflow_db_url", "celery_broker_url"})
SHORTEST_LEASE_SECONDS = 90.0
FIRST_POOL_SECONDS = 120.0  # for Ray to say which nodes there are
# folders of a home that workers of another user (ELASTIC_WORKER_USER) pass
GIVEN = ("run", "memory", "store", SNAPSHOTS)
RESTORING = "restoring"  # a file in a home that a back-up is being restored into


def service_settings(settings: Settings) -> Settings:
    """The same settings with absolute paths, so that they mean the same in every process.

    Raises `UserError` for a lease too short to outlive a restart of the API server, and for variables for jobs that
    cannot be read.
    """
    if settings.lease_seconds < SHORTEST_LEASE_SECONDS:
        raise UserError(
            f"ELASTIC_LEASE_SECONDS is {settings.lease_seconds:g}: while the API server restarts (about 30 s) no lease "
            f"can be renewed, and healthy trainers would stop. Set it to {SHORTEST_LEASE_SECONDS:g} or more."
        )
    if settings.job_env:
        job_variables(settings.job_env)
    paths = (
        "home", "project", "cluster", "job_env", "mlflow_certificate", "mlflow_key", "mlflow_ca", "groups",
        "ray_token_file", "ray_ca", "ray_node_home", "postgres_data",
    )  # fmt: skip
    return settings.model_copy(update={name: path.absolute() for name in paths if (path := getattr(settings, name))})


def service_environment(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """What every service is started with: the caller's environment, without another Airflow's settings."""
    inherited = {
        name: value for name, value in environ.items() if not name.startswith(("AIRFLOW", "_AIRFLOW", "ELASTIC_"))
    }
    path = [str(settings.project), *filter(None, [environ.get("PYTHONPATH")])]
    return inherited | settings_environment(settings) | {"PYTHONPATH": os.pathsep.join(path)}


def settings_environment(settings: Settings) -> dict[str, str]:
    changed = settings.model_dump(mode="json", exclude=set(_SECRET_SETTINGS), exclude_none=True)
    return {f"ELASTIC_{name.upper()}": str(value) for name, value in changed.items()}


def platform_stack(settings: Settings, environment: Mapping[str, str]) -> Stack:
    """`settings` as `service_settings` gives them. Nothing is written or started by this call."""
    embedded = EmbeddedPostgres(settings) if needed(settings) else None
    api, workers = airflow.programs(settings)
    database = (Stage(programs=(embedded.program(),), prepare=embedded.initialise, wait=True),) if embedded else ()
    return Stack(
        home=settings.home,
        stages=(
            *database,
            Stage(
                programs=(*api, *_mlflow(settings), *_tracker(settings), *_traces(settings), *_ray_pool(settings)),
                prepare=lambda: prepare_databases(settings, environment, embedded),
            ),
            Stage(
                programs=workers,
                prepare=lambda: preload(settings, environment),
                retire=lambda: retire(settings),
            ),
        ),
    )


def prepare_databases(settings: Settings, environment: Mapping[str, str], embedded: EmbeddedPostgres | None) -> None:
    """Databases, their addresses and Airflow's configuration, brought up to date."""
    if embedded:
        embedded.ensure_databases()
    database_urls(settings, embedded)
    airflow.write_broker(settings)
    airflow.write_configuration(settings)
    with ThreadPoolExecutor(2) as pool:
        for task in (pool.submit(airflow.migrate, settings, environment), pool.submit(migrate_ledger, settings)):
            task.result()


def preload(settings: Settings, environment: Mapping[str, str]) -> None:
    """What is there before tasks start training processes on this host."""
    fork_client.start(settings.home, settings.project, job_environment(environment, settings))
    access_brokers.start(settings, environment)


def retire(settings: Settings) -> None:
    """Have this host's training processes reach a boundary, and end all that they need here."""
    stop_groups(settings)
    fork_client.stop(settings.home)


def prepare_home(settings: Settings, *, restoring: bool = False) -> None:
    """Make folder and secrets. Raises `UserError` for settings under which MLflow would be a way in, and for a home
    that a back-up was not restored into to the end, and for nodes that are not where the cluster file says."""
    if not restoring and (unfinished := settings.home / RESTORING).exists():
        raise UserError(
            f"{unfinished.read_text()} was not restored to the end into {settings.home}: remove this folder and the "
            f"store {settings.store_url()}, if that lies elsewhere in a folder, and run `elastic restore` again"
        )
    user = WorkerUser.of(settings)
    if user is not None:
        if user.name == SYSTEM_USER:
            raise UserError(
                f"ELASTIC_WORKER_USER is {user.name!r}, which PostgreSQL runs as: users' code could read databases. "
                "Name a user made for jobs alone."
            )
        require_usable(user, settings)
    if settings.launcher == "ray":
        launchers.chosen(settings)  # says what is missing
    elif settings.cluster is not None:
        require_networks(read_cluster(settings.cluster))
    if not settings.mlflow_uri:
        mlflow_access.require_safe(settings)
    close_to_others(settings.home, GIVEN if user else ())
    ensure_secrets(settings)


def close_to_others(home: Path, given: Collection[str] = ()) -> None:
    """Let nobody but this user read anything below the installation's folder, what is there already included.

    Folders that others may still pass (not read) stay so: the embedded PostgreSQL of root runs as another user, and
    workers may, who pass those that are `given`. What the folder lies in is not ours, and stays as it is.
    """
    home.mkdir(parents=True, exist_ok=True)
    for path in (home, *home.iterdir()):
        known = path.lstat()
        if not path.is_symlink() and known.st_uid == os.getuid():
            left = 0o711 if path == home else 0o710 if path.name in given else 0o700
            os.chmod(path, stat.S_IMODE(known.st_mode) & left)


def migrate_ledger(settings: Settings) -> None:
    """Bring an older ledger up to date. Raises `UserError` for one of a later release."""
    from elastic_core.control.ledger.migrations import upgrade

    upgrade(read_secret(settings, "ledger_url"))


def _mlflow(settings: Settings) -> tuple[Program, ...]:
    if settings.mlflow_uri:
        return ()
    program = Program(
        name="mlflow",
        command=(sys.executable, "-m", "elastic_core.track.mlflow_server.serve_mlflow"),
        ports=(Port(settings.mlflow_port, "mlflow_port"),),
        health=lambda _: _mlflow_health(settings),
    )
    return (program,)


def _mlflow_health(settings: Settings) -> str | None:
    try:
        own_health.get(
            f"{settings.tracking_uri()}/health", own_health.own_address(settings, settings.mlflow_host),
            headers={"authorization": mlflow_access.authorization(settings)}, trusted=settings.mlflow_ca,
        )  # fmt: skip
    except (OSError, UserError) as error:
        return f"MLflow does not answer: {error}"
    return None


def _tracker(settings: Settings) -> tuple[Program, ...]:
    if settings.mlflow_uri == "none":
        return ()
    environment = {"MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    return (
        Program(
            name="tracker",
            command=(sys.executable, "-m", "elastic_core.track.tracker_service"),
            environment=environment,
        ),
    )


def _traces(settings: Settings) -> tuple[Program, ...]:
    if not settings.otlp_traces:
        return ()
    return (Program(name="traces", command=(sys.executable, "-m", "elastic_core.track.traces.trace_service")),)


def _ray_pool(settings: Settings) -> tuple[Program, ...]:
    if settings.launcher != "ray":
        return ()
    return (Program(name="ray-pool", command=(sys.executable, "-m", "elastic_core.services.ray_pool")),)


def push_cluster(settings: Settings) -> PresentCluster:
    """Tell the control plane which nodes and slots there are. The same cluster again changes nothing.

    Raises `UserError` for a bad cluster file, and for a node whose address is not this machine's.
    """
    from elastic_core.protocol.callers import Way, at_host
    from elastic_core.protocol.http_client import HttpControl

    if settings.launcher == "ray":
        cluster = cluster_of(settings, PoolReports(settings).first(FIRST_POOL_SECONDS))
    else:
        cluster = discover(settings)
        require_networks(cluster)
    control = HttpControl(settings.api_url(), read_secret(settings, "control").encode())
    control.acting(at_host(Way.CLI)).set_cluster(cluster)
    return cluster
