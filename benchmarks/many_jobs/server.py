"""The process under measurement: the control plane's app with the page's routes, over PostgreSQL, under uvicorn."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

from elastic_core.protocol.callers import Caller, Way

SECRET = b"control-secret-of-the-benchmark-0123456789"
USER = "ann"


def serve(url: str, home: str, listener: socket.socket) -> None:
    """Until it is ended. Airflow's own tables, which the page asks for paused DAGs, are in a SQLite file."""
    os.environ["AIRFLOW_HOME"] = tempfile.mkdtemp(prefix="elastic-airflow-", dir=home)
    import uvicorn
    from airflow import settings as airflow_settings
    from airflow.models import import_all_models
    from airflow.models.base import Base

    from elastic_airflow.page.page_api import ui_router
    from elastic_core import logs
    from elastic_core.control.ledger.database import Ledger
    from elastic_core.control.plane import LedgerControl
    from elastic_core.control.rpc.http_api import create_app
    from elastic_core.control.scheduling.deciders import InAThread
    from elastic_core.control.scheduling.policy_process import PolicyProcess
    from elastic_core.host.steady_clock import SteadyClock
    from elastic_core.settings import Settings

    logs.configure("many_jobs")
    airflow_settings.initialize()
    import_all_models()
    Base.metadata.create_all(airflow_settings.engine)
    settings = Settings(home=Path(home), mlflow_uri="none")
    ledger = Ledger(url, settings, SteadyClock(Path(home)))
    decider = PolicyProcess(settings.decide_seconds, settings.decide_memory_mb)
    control = LedgerControl(ledger, settings, SECRET, decider=decider, aside=InAThread())  # as `open_control` has it
    app = create_app(control, service_secret=SECRET, user_reads=_reader, user_writes=_user)
    app.include_router(ui_router(control, settings), prefix="/ui")
    uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off")).run(sockets=[listener])


def _reader() -> None:
    """Airflow's login is not measured here."""


def _user() -> Caller:
    return Caller(name=USER, way=Way.PAGE)
