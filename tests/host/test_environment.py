"""What passes from the launcher's environment and settings to agent and workers."""

from __future__ import annotations

from pathlib import Path

from elastic_core.host.environment import allowed, worker_settings
from elastic_core.host.messages import SETTINGS, WorkerSettings
from elastic_core.host.rundir import RunDir
from elastic_core.settings import Settings


def test_what_is_not_on_the_list_does_not_pass(tmp_path: Path) -> None:
    environ = {
        "PATH": "/bin", "LC_ALL": "C", "NCCL_DEBUG": "INFO", "ELASTIC_S3_ENDPOINT": "http://s3",
        "ELASTIC_MLFLOW_URI": "http://u:p@m", "ELASTIC_UNKNOWN": "1", "AIRFLOW_HOME": "/a",
        "AWS_SECRET_ACCESS_KEY": "k", "PGPASSWORD": "p",
    }  # fmt: skip
    want = {"PATH", "LC_ALL", "NCCL_DEBUG", "ELASTIC_S3_ENDPOINT"}
    assert set(allowed(environ, Settings(home=tmp_path))) == want
    assert set(allowed(environ, Settings(home=tmp_path, store="s3://b/p"))) == want | {"AWS_SECRET_ACCESS_KEY"}


def test_settings_for_workers_are_absolute_and_hold_no_password() -> None:
    settings = Settings(home=Path("h"), ledger_url="postgresql://u:secret@h/l", mlflow_uri="http://u:secret@m")
    values = worker_settings(settings)
    assert "secret" not in str(values)
    assert values["home"] == str(Path.cwd() / "h")
    assert values["store"] == str(Path.cwd() / "h" / "store")
    assert values["control_url"] == "http://127.0.0.1:8080/elastic"
    assert Settings(**values).store_url() == values["store"]


def test_what_the_launcher_writes_of_the_settings_has_what_workers_read(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "h", project=tmp_path, s3_endpoint="http://s3", control_url="http://c")
    folder = RunDir(tmp_path)
    folder.write_json(SETTINGS, worker_settings(settings))
    want = WorkerSettings(tmp_path, str(tmp_path / "h" / "store"), settings.tasks, "http://c", "http://s3")
    assert folder.read(WorkerSettings) == want
