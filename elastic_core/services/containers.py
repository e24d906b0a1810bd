"""One service in the foreground, as a container runs it: the same programs that `elastic up` has under a supervisor.

All containers of an installation share its home, a volume. One of them `prepare`s it and ends; each of the others runs
one program, ends with it, and is started anew by its engine. The exception is the container whose tasks start training
processes, which live in it: it starts its program again by itself, so that the end of a scheduler is not theirs; asked
to end, it has them reach a boundary first; and it tells the control plane which slots it has. Where training runs on
the nodes of a Ray cluster it lives in no container, and outlives them all.
"""

from __future__ import annotations

import datetime
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread
from urllib.parse import urlsplit

from elastic_core.errors import InfrastructureError, UserError
from elastic_core.host.secret_files import ensure_secret, write_secret
from elastic_core.host.this_machine import discover, require_networks
from elastic_core.logs import get_logger
from elastic_core.services import platform
from elastic_core.services.airflow import CELERY_WORKER
from elastic_core.services.certificates import ensure_certificate
from elastic_core.services.postgres import EmbeddedPostgres, needed
from elastic_core.services.secrets import ensure_secrets, read_secret
from elastic_core.services.supervision.program import Program
from elastic_core.services.supervision.supervise import launch_of
from elastic_core.settings import Settings

log = get_logger(__name__)

POSTGRES, REDIS, S3 = "postgres", "redis", "s3"
RAY, PROMETHEUS = "ray", "prometheus"  # folders of the home, volumes of their own, for who has no other part of it
DATABASE_SECONDS = 180.0  # for PostgreSQL to come up in its own container
PAUSE_SECONDS = 2.0  # between two starts of a program, and two tries to reach the control plane
S3_USER = "elastic"


def prepare(settings: Settings, environment: Mapping[str, str]) -> None:
    """Secrets, certificate, databases and configuration, made or brought up to date; harmless to repeat.

    `settings` as `service_settings` gives them. Raises `InfrastructureError` where PostgreSQL does not come up.
    """
    prepare_files(settings)
    embedded = EmbeddedPostgres(settings) if needed(settings) else None
    deadline = time.monotonic() + DATABASE_SECONDS
    while embedded is not None and (why := embedded.problem()):
        if time.monotonic() > deadline:
            raise InfrastructureError(f"PostgreSQL at {settings.postgres_host} did not come up: {why}")
        time.sleep(1.0)
    platform.prepare_databases(settings, environment, embedded)


def prepare_files(settings: Settings) -> None:
    """What of it stands in files: secrets, and the part of them that each container without the home gets."""
    ensure_certificate(settings, datetime.datetime.now(datetime.UTC))
    _prepare_ray(settings)
    platform.prepare_home(settings)
    _prepare_redis(settings)
    _prepare_s3(settings)
    _prepare_prometheus(settings)


def _prepare_redis(settings: Settings) -> None:
    """The configuration that the Redis container is started with: its password is in it, and no command line."""
    if settings.redis_host:
        folder = settings.home.absolute() / REDIS
        (folder / "data").mkdir(parents=True, mode=0o700, exist_ok=True)
        password = read_secret(settings, "redis")
        lines = (f"requirepass {password}", "appendonly yes", "dir /redis/data", "")
        write_secret(folder / "redis.conf", "\n".join(lines))


def _own_ray(settings: Settings) -> Path | None:
    """The folder with all that the nodes of the installation's own Ray cluster have of its secrets.

    None where the cluster's token is elsewhere: it is whose the cluster is.
    """
    folder = settings.home.absolute() / RAY
    return folder if settings.launcher == "ray" and settings.ray_token_file == folder / "token" else None


def _prepare_ray(settings: Settings) -> None:
    if folder := _own_ray(settings):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        ensure_secret(folder / "token")


def _prepare_s3(settings: Settings) -> None:
    """Files with the key of the platform's own S3 server: for its clients as boto3 reads it, and for itself."""
    if settings.store_url().startswith("s3://"):
        secret = read_secret(settings, "s3")
        lines = ("[default]", f"aws_access_key_id = {S3_USER}", f"aws_secret_access_key = {secret}", "")
        write_secret(settings.secret_file("s3_credentials"), "\n".join(lines))
        write_secret(settings.secret_file("s3_auth_key"), f'"{S3_USER},{secret}"')
        if folder := _own_ray(settings):
            write_secret(folder / "s3_credentials", "\n".join(lines))


def _prepare_prometheus(settings: Settings) -> None:
    """The token of the metrics, in a folder that a Prometheus gets, and no other secret."""
    folder = settings.home.absolute() / PROMETHEUS
    folder.mkdir(mode=0o700, exist_ok=True)
    write_secret(folder / "token", read_secret(settings, "metrics"))


def program_of(settings: Settings, environment: Mapping[str, str], name: str) -> Program:
    """Raises `UserError` for a name that no service has under these settings."""
    programs = {program.name: program for program in platform.platform_stack(settings, environment).programs()}
    if settings.s3_endpoint:
        programs[S3] = _s3_program(settings)
    if name not in programs:
        raise UserError(f"no service is called {name!r} under these settings; there are {', '.join(sorted(programs))}")
    return programs[name]


def _s3_program(settings: Settings) -> Program:
    """`rclone serve s3` over <home>/s3, at the address of `ELASTIC_S3_ENDPOINT`."""
    address = urlsplit(settings.s3_endpoint).netloc
    rclone = str(Path(sys.executable).with_name("rclone"))
    folder = settings.home.absolute() / S3
    return Program(
        name=S3,
        command=(
            *(rclone, "serve", "s3", str(folder), "--config", os.devnull, "--cache-dir", "/tmp/rclone"),
            *("--addr", address, "--vfs-cache-mode", "off"),
        ),
        secrets={"RCLONE_AUTH_KEY": settings.secret_file("s3_auth_key")},
        health=lambda _: _s3_health(settings.s3_endpoint),
    )


def _s3_health(endpoint: str) -> str | None:
    """It answers, be it that a request without a signature is refused."""
    import urllib.error
    import urllib.request

    try:
        with urllib.request.urlopen(endpoint, timeout=5):
            return None
    except urllib.error.HTTPError:
        return None
    except OSError as error:
        return f"the S3 server does not answer: {error}"


def problem(settings: Settings, environment: Mapping[str, str], name: str) -> str | None:
    """None when the service does its work, else why not; None for one that has no health but to be alive."""
    health = program_of(settings, environment, name).health
    return health(0.0) if health else None


def serve(settings: Settings, environment: Mapping[str, str], name: str) -> int:
    """Run one service until it ends or this process is asked to (SIGTERM, SIGINT); the exit code of its program."""
    program = program_of(settings, environment, name)
    training = trains(settings, name)
    stop = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    _before(settings, environment, name)
    if training:
        Thread(target=_announce, args=(settings, stop), daemon=True).start()
    code = _run(settings, environment, program, stop)
    while training and not stop.wait(PAUSE_SECONDS):
        log.warning(f"{name} ended with {code}: training goes on, and {name} is started again")
        code = _run(settings, environment, program, stop)
    if training:
        log.info("training processes are asked to reach a boundary")
        platform.retire(settings)
    return 0 if stop.is_set() else code


def trains(settings: Settings, name: str) -> bool:
    """Whether training processes live in the container of this service."""
    return settings.launcher == "local" and _runs_tasks(settings, name)


def _runs_tasks(settings: Settings, name: str) -> bool:
    return name == (CELERY_WORKER if settings.executor == "celery" else "scheduler")


def _before(settings: Settings, environment: Mapping[str, str], name: str) -> None:
    if name == POSTGRES:
        ensure_secrets(settings)
        EmbeddedPostgres(settings).initialise()
    elif name == S3:
        bucket = urlsplit(settings.store_url()).netloc
        (settings.home.absolute() / S3 / bucket).mkdir(parents=True, exist_ok=True, mode=0o700)
    elif name == CELERY_WORKER:  # of a container that was killed: its number may be another process's by now
        (settings.home.absolute() / "airflow" / "celery-worker.pid").unlink(missing_ok=True)
    if trains(settings, name):
        require_networks(discover(settings))
    if _runs_tasks(settings, name):
        platform.preload(settings, environment)


def _run(settings: Settings, environment: Mapping[str, str], program: Program, stop: Event) -> int:
    """The exit code of one run of the program, which is ended when `stop` is set."""
    folder = settings.home.absolute() / "services"
    folder.mkdir(mode=0o700, exist_ok=True)
    launch = folder / f"{program.name}.json"
    write_secret(launch, launch_of(settings.home, program).json())
    command = (sys.executable, "-m", "elastic_core.services.supervision.run", str(launch))
    child = subprocess.Popen(command, env=dict(environment), start_new_session=True)
    while child.poll() is None and not stop.wait(0.2):
        pass
    if child.poll() is None:
        _signal_group(child.pid, signal.Signals[f"SIG{program.stop_signal}"])
        with suppress(subprocess.TimeoutExpired):
            child.wait(program.stop_seconds)
    _signal_group(child.pid, signal.SIGKILL)  # what is left of it
    return child.wait()


def _signal_group(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(pid, number)


def _announce(settings: Settings, stop: Event) -> None:
    """Tell the control plane which nodes this container has, once it can be told."""
    while not stop.is_set():
        try:
            cluster = platform.push_cluster(settings)
        except (InfrastructureError, OSError) as error:
            log.info(f"the control plane is not there yet: {error}")
            stop.wait(PAUSE_SECONDS)
        except UserError as error:
            log.error(f"the control plane does not take this cluster: {error}")
            return
        else:
            log.info(f"the pool: {', '.join(f'{node.name} with {node.slots}' for node in cluster.nodes)}")
            return
