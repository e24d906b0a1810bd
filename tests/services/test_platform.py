"""What the platform's own stack is made of; nothing is started here (see tests/e2e)."""

from __future__ import annotations

import configparser
from pathlib import Path

import pytest

from elastic_core.errors import UserError
from elastic_core.services.airflow import write_configuration
from elastic_core.services.platform import platform_stack, service_environment, service_settings
from elastic_core.services.postgres import database_urls
from elastic_core.services.secrets import ensure_secrets, read_secret
from elastic_core.settings import Settings

ROOT = Path(__file__).parents[2]


def names(**changes: object) -> list[str]:
    settings = service_settings(Settings(**changes))
    return [program.name for program in platform_stack(settings, {}).programs()]


def test_by_default_everything_is_started_here(tmp_path: Path) -> None:
    assert names(home=tmp_path) == [
        *("postgres", "api-server", "mlflow", "tracker"),
        *("scheduler", "dag-processor", "triggerer"),
    ]


def test_what_is_elsewhere_is_not_started_here(tmp_path: Path) -> None:
    own = "postgresql+psycopg2://u:p@db.example/x"
    assert "mlflow" not in names(home=tmp_path, mlflow_uri="http://mlflow.example")
    assert "tracker" in names(home=tmp_path, mlflow_uri="http://mlflow.example")
    assert "tracker" not in names(home=tmp_path, mlflow_uri="none")
    assert "postgres" in names(home=tmp_path, ledger_url=own)
    assert "postgres" not in names(home=tmp_path, ledger_url=own, airflow_db_url=own, mlflow_db_url=own)


def test_airflow_reads_a_whole_configuration_without_a_secret_in_it(tmp_path: Path) -> None:
    home = tmp_path / "100%"
    settings = service_settings(Settings(home=home, project=ROOT, airflow_port=18080))
    ensure_secrets(settings)
    write_configuration(settings)
    text = (home / "airflow" / "airflow.cfg").read_text()
    assert "{{" not in text
    assert [path for path in (home / "secrets").iterdir() if path.read_text() in text] == []
    parsed = configparser.ConfigParser()
    parsed.read_string(text)
    assert parsed["core"]["dags_folder"] == str(ROOT / "dags")
    assert parsed["logging"]["base_log_folder"] == str(home / "airflow" / "logs")
    assert parsed["api"]["base_url"] == "http://127.0.0.1:18080"


def test_a_folder_that_is_not_the_projects_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"airflow\.cfg\.template does not exist.*ELASTIC_PROJECT"):
        write_configuration(Settings(home=tmp_path / "home", project=tmp_path))


def test_services_do_not_take_over_another_airflows_settings_nor_passwords(tmp_path: Path) -> None:
    url = "postgresql+psycopg2://u:password@db.example/x"
    settings = service_settings(Settings(home=tmp_path, ledger_url=url, airflow_db_url=url, mlflow_db_url=url))
    around = {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": "sqlite://", "ELASTIC_LEDGER_URL": url, "AWS_PROFILE": "mine"}
    environment = service_environment(settings, around)
    assert [name for name in environment if name.startswith("AIRFLOW")] == []
    assert [name for name, value in environment.items() if "password" in value] == []
    assert environment["AWS_PROFILE"] == "mine"
    assert environment["ELASTIC_HOME"] == str(tmp_path)


def test_variables_for_jobs_are_looked_at_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.env").write_text("A=1\n")
    assert service_settings(Settings(home=tmp_path, job_env=Path("job.env"))).job_env == tmp_path / "job.env"
    Path("job.env").write_text("A 1\n")
    with pytest.raises(UserError, match=r"Line 1 of ELASTIC_JOB_ENV=job\.env"):
        service_settings(Settings(home=tmp_path, job_env=Path("job.env")))


def test_a_services_settings_are_the_callers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = service_settings(Settings(home=Path("here"), lease_seconds=99.5, cluster=Path("c.json")))
    for name, value in service_environment(settings, {}).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir("/")
    assert Settings() == settings


def test_a_lease_shorter_than_a_restart_of_the_api_server_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"ELASTIC_LEASE_SECONDS is 30:.* Set it to 90 or more"):
        service_settings(Settings(home=tmp_path, lease_seconds=30))


def test_addresses_of_ones_own_databases_are_kept_as_secrets(tmp_path: Path) -> None:
    url = "postgresql+psycopg2://u:p@db.example/"
    settings = Settings(home=tmp_path, ledger_url=url + "l", airflow_db_url=url + "a", mlflow_db_url=url + "m")
    ensure_secrets(settings)
    database_urls(settings, None)
    found = [read_secret(settings, name) for name in ("ledger_url", "airflow_db_url", "mlflow_db_url")]
    assert found == [url + "l", url + "a", url + "m"]
    assert settings.secret_file("ledger_url").stat().st_mode & 0o777 == 0o600
