"""What `elastic doctor` says of databases: whether each answers, and is at the migration that its code expects."""

from __future__ import annotations

from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from elastic_core.commands.installation import databases
from elastic_core.commands.installation.checks import all_findings
from elastic_core.commands.installation.finding import Verdict
from elastic_core.host.secret_files import write_secret
from elastic_core.services import airflow
from elastic_core.services.platform import prepare_home, service_settings
from elastic_core.settings import Settings
from tests.track.mlflow_server import MlflowServer

AWAY = "postgresql+psycopg2://nobody@127.0.0.1:9/none"
ROOT = Path(__file__).parents[3]


def stamp(url: str, revision: str) -> None:
    """As a database that was migrated so far says of itself."""
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE IF NOT EXISTS alembic_version (version_num VARCHAR(32) NOT NULL)"))
        connection.execute(text("DELETE FROM alembic_version"))
        connection.execute(text("INSERT INTO alembic_version VALUES (:revision)"), {"revision": revision})
    engine.dispose()


def test_airflows_database_is_asked_by_its_own_code(postgres_url: str, tmp_path: Path) -> None:
    settings = service_settings(Settings(home=tmp_path, project=ROOT, airflow_db_url=postgres_url))
    assert databases.airflow(settings, running=False).says == "not made yet (`elastic up` does)"
    prepare_home(settings)
    airflow.write_configuration(settings)
    write_secret(settings.secret_file("airflow_db_url"), postgres_url)
    before = databases.airflow(settings, running=False)
    assert (before.verdict, before.do) == (Verdict.WARN, "elastic up --restart upgrades it"), before
    assert before.says.startswith("at revision None, this release's is ")
    stamp(postgres_url, before.says.rpartition(" ")[2])
    after = databases.airflow(settings, running=True)
    assert (after.verdict, after.says.startswith("answers, at revision ")) == (Verdict.OK, True), after
    write_secret(settings.secret_file("airflow_db_url"), AWAY)
    away = databases.airflow(settings, running=True)
    assert (away.verdict, "Connection refused" in away.says) == (Verdict.FAIL, True), away
    assert away.do.startswith("see that the database of ELASTIC_AIRFLOW_DB_URL answers")


def test_mlflows_database_is_asked_for_its_revision(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/mlflow.db"
    settings = Settings(home=tmp_path, mlflow_db_url=url)
    before = databases.mlflow(settings, running=False)
    assert (before.verdict, before.says.startswith("at revision None")) == (Verdict.WARN, True), before
    stamp(url, before.says.rpartition(" ")[2])
    assert databases.mlflow(settings, running=False).verdict is Verdict.OK
    away = databases.mlflow(settings.model_copy(update={"mlflow_db_url": AWAY}), running=False)
    assert (away.verdict, "ELASTIC_MLFLOW_DB_URL" in away.do) == (Verdict.FAIL, True), away


def test_an_mlflow_server_of_ones_own_is_asked_whether_it_answers(mlflow_server: MlflowServer) -> None:
    assert databases.mlflow(Settings(mlflow_uri=mlflow_server.uri), running=True).verdict is Verdict.OK
    away = databases.mlflow(Settings(mlflow_uri="http://127.0.0.1:9"), running=True)
    assert (away.verdict, "does not answer" in away.says) == (Verdict.FAIL, True)
    assert databases.mlflow(Settings(mlflow_uri="none"), running=True).verdict is Verdict.OK


@pytest.mark.parametrize("check", ["ledger", "airflow's db", "mlflow's db"])
def test_embedded_databases_are_down_with_the_services(tmp_path: Path, check: str) -> None:
    (finding,) = (one for one in all_findings(Settings(home=tmp_path)) if one.check == check)
    assert (finding.verdict, finding.says) == (Verdict.OK, "embedded, and down with the services")
