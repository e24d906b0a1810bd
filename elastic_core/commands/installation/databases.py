"""The databases as `elastic doctor` asks them: whether each answers, and is at the revision that this release expects.

The ledger's is the platform's own. Airflow says what it expects of its database in a process of its own, since it takes
its configuration from its environment. Embedded ones are down with the services.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any
from urllib.error import HTTPError
from urllib.request import urlopen

from elastic_core.commands.installation.finding import Finding, Verdict
from elastic_core.errors import ElasticError
from elastic_core.services.airflow import airflow_environment, airflow_home
from elastic_core.services.platform import service_environment
from elastic_core.services.secrets import read_secret
from elastic_core.settings import Settings

AIRFLOWS, MLFLOWS = "airflow's db", "mlflow's db"  # the names of the findings
LOAD_SECONDS = 120.0  # that loading Airflow may take
ANSWER_SECONDS = 10.0
PROGRAM = "elastic_airflow.bootstrap"  # run as a program: it says which revisions are there and expected
DOWN = "embedded, and down with the services"
UPGRADES = "elastic up --restart upgrades it"


def ledger(settings: Settings, running: bool) -> Finding:
    from sqlalchemy.exc import SQLAlchemyError

    from elastic_core.control.ledger import migrations
    from elastic_core.control.plane import ledger_url

    if not settings.ledger_url and not running:
        return Finding(check="ledger", verdict=Verdict.OK, says=DOWN)
    try:
        revision = _revision(ledger_url(settings), migrations.current)
        migrations.require_known(revision)
    except (ElasticError, SQLAlchemyError, ValueError) as error:
        return _no_answer("ledger", error, "ELASTIC_LEDGER_URL")
    return _judged("ledger", revision, migrations.newest())


def airflow(settings: Settings, running: bool) -> Finding:
    if not settings.airflow_db_url and not running:
        return Finding(check=AIRFLOWS, verdict=Verdict.OK, says=DOWN)
    if not (airflow_home(settings) / "airflow.cfg").exists():
        return Finding(check=AIRFLOWS, verdict=Verdict.OK, says="not made yet (`elastic up` does)")
    environment = {**service_environment(settings, os.environ), **airflow_environment(settings)}
    command = [sys.executable, "-m", PROGRAM, "revisions"]
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LOAD_SECONDS)
        told = json.loads(done.stdout.strip().splitlines()[-1])
    except subprocess.TimeoutExpired:
        return _no_answer(AIRFLOWS, f"nothing was heard of it for {LOAD_SECONDS:g} s", "ELASTIC_AIRFLOW_DB_URL")
    except (ValueError, IndexError):
        said = (done.stderr.strip().splitlines() or ["no output"])[-1]
        return _no_answer(AIRFLOWS, f"Airflow does not load: {said}", "ELASTIC_AIRFLOW_DB_URL")
    if "problem" in told:
        return _no_answer(AIRFLOWS, told["problem"], "ELASTIC_AIRFLOW_DB_URL")
    return _judged(AIRFLOWS, told["at"], told["expected"])


def mlflow(settings: Settings, running: bool) -> Finding:
    """Of the embedded server; one of the user's own is asked by HTTP, and keeps its database to itself."""
    if settings.mlflow_uri == "none":
        return Finding(check=MLFLOWS, verdict=Verdict.OK, says="there is no MLflow (ELASTIC_MLFLOW_URI=none)")
    if settings.mlflow_uri:
        return _server_of_ones_own(settings.mlflow_uri)
    if not settings.mlflow_db_url and not running:
        return Finding(check=MLFLOWS, verdict=Verdict.OK, says=DOWN)
    from mlflow.store.db import utils
    from sqlalchemy.exc import SQLAlchemyError

    schema: Any = utils  # its functions have no types
    try:
        url = settings.mlflow_db_url or read_secret(settings, "mlflow_db_url")
        revision = _revision(url, schema._get_schema_version)
    except (OSError, SQLAlchemyError, ValueError) as error:
        return _no_answer(MLFLOWS, error, "ELASTIC_MLFLOW_DB_URL")
    return _judged(MLFLOWS, revision, schema._get_latest_schema_revision())


def _server_of_ones_own(uri: str) -> Finding:
    try:
        with urlopen(f"{uri.rstrip('/')}/health", timeout=ANSWER_SECONDS) as answer:
            status = answer.status
    except HTTPError as error:  # it asks for a login, for one: it is there
        status = error.code
    except (OSError, ValueError) as error:
        return Finding(
            check=MLFLOWS, verdict=Verdict.FAIL, says=f"MLflow at {uri} does not answer: {error}",
            do="see ELASTIC_MLFLOW_URI and that server; jobs go on, and MLflow shows them once it is back",
        )  # fmt: skip
    return Finding(check=MLFLOWS, verdict=Verdict.OK, says=f"of the server at {uri}, which answers {status}")


def _revision(url: str, current: Callable[..., str | None]) -> str | None:
    from sqlalchemy import create_engine

    engine = create_engine(url)
    try:
        return current(engine)
    finally:
        engine.dispose()


def _no_answer(check: str, error: object, setting: str) -> Finding:
    return Finding(
        check=check, verdict=Verdict.FAIL, says=(str(error).splitlines() or [repr(error)])[0],
        do=f"see that the database of {setting} answers; embedded: elastic logs postgres",
    )  # fmt: skip


def _judged(check: str, revision: str | None, newest: str) -> Finding:
    if revision != newest:
        return Finding(
            check=check, verdict=Verdict.WARN, says=f"at revision {revision}, this release's is {newest}", do=UPGRADES
        )
    return Finding(check=check, verdict=Verdict.OK, says=f"answers, at revision {revision}")
