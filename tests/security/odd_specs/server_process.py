"""Airflow's API server with the plugin in it, as a process of a test.

It takes its settings from the environment, serves the listening socket whose descriptor is its argument, and prints a
token of the user `ann` when it is ready.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import uvicorn

ROOT = Path(__file__).parents[3]
TOKEN = "the token of ann is"


def store_dags() -> None:
    """Airflow's tables, with the platform's DAGs in them as a DAG processor stores them."""
    from airflow import settings
    from airflow.dag_processing.collection import update_dag_parsing_results_in_db
    from airflow.dag_processing.dagbag import DagBag
    from airflow.models import import_all_models
    from airflow.models.base import Base
    from airflow.models.dagbundle import DagBundleModel
    from airflow.serialization.serialized_objects import LazyDeserializedDAG
    from airflow.utils.db import synchronize_log_template
    from airflow.utils.session import create_session

    from elastic_airflow.names import JOB_DAG, SEGMENT_DAG

    settings.initialize()
    import_all_models()
    Base.metadata.create_all(settings.engine)
    dags = [
        LazyDeserializedDAG.from_dag(DagBag(str(ROOT / "dags" / f"{name}.py")).dags[name])
        for name in (JOB_DAG, SEGMENT_DAG)
    ]
    with create_session() as session:
        synchronize_log_template(session=session)
        session.add(DagBundleModel(name="dags-folder"))
        session.flush()
        update_dag_parsing_results_in_db("dags-folder", None, dags, {}, None, set(), session)


def token_of(name: str, role: str) -> str:
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    return str(get_auth_manager().generate_jwt(SimpleAuthManagerUser(username=name, role=role)))


class Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        print(TOKEN, token_of("ann", "user"), flush=True)
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nobody reads on: Airflow's log would fill the pipe


def main() -> None:
    from airflow.api_fastapi.app import create_app

    store_dags()
    app = create_app(apps="core")
    listener = socket.socket(fileno=int(sys.argv[1]))
    Server(uvicorn.Config(app, log_level="warning", access_log=False)).run([listener])
    os._exit(0)  # not before threads of the plugin's have ended


if __name__ == "__main__":
    main()
