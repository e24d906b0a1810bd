"""What passes from the launcher's environment and settings to agent and workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic_core.errors import UserError
from elastic_core.host.environment import ALLOCATION, allowed, job_environment, worker_settings
from elastic_core.host.messages import SETTINGS, WorkerSettings
from elastic_core.host.rundir import RunDir
from elastic_core.settings import Settings


def test_what_is_not_on_the_list_does_not_pass() -> None:
    environ = {
        "PATH": "/bin", "LC_ALL": "C", "NCCL_DEBUG": "INFO", "ELASTIC_S3_ENDPOINT": "http://s3",
        "ELASTIC_MLFLOW_URI": "http://u:p@m", "ELASTIC_UNKNOWN": "1", "AIRFLOW_HOME": "/a",
        "AWS_SECRET_ACCESS_KEY": "k", "PGPASSWORD": "p",
    }  # fmt: skip
    want = {"PATH", "LC_ALL", "NCCL_DEBUG", "ELASTIC_S3_ENDPOINT"}
    assert set(allowed(environ)) == want  # the store's credentials are the access broker's


def test_jobs_get_the_variables_of_their_own_file(tmp_path: Path) -> None:
    file = tmp_path / "job.env"
    file.write_text("# of the data\nAWS_ACCESS_KEY_ID=mine\n\nAWS_SECRET_ACCESS_KEY=a=b c\n")
    settings = Settings(home=tmp_path, store="s3://b/p", job_env=file)
    found = job_environment({"PATH": "/bin", "AWS_ACCESS_KEY_ID": "the store's", "AWS_SESSION_TOKEN": "t"}, settings)
    assert found == {**ALLOCATION, "PATH": "/bin", "AWS_ACCESS_KEY_ID": "mine", "AWS_SECRET_ACCESS_KEY": "a=b c"}


def test_jobs_allocate_in_huge_pages_unless_somebody_said_otherwise(tmp_path: Path) -> None:
    file = tmp_path / "job.env"
    file.write_text("THP_MEM_ALLOC_ENABLE=0\n")
    assert job_environment({}, Settings(home=tmp_path))["THP_MEM_ALLOC_ENABLE"] == "1"
    assert job_environment({"THP_MEM_ALLOC_ENABLE": "0"}, Settings(home=tmp_path))["THP_MEM_ALLOC_ENABLE"] == "0"
    assert job_environment({}, Settings(home=tmp_path, job_env=file))["THP_MEM_ALLOC_ENABLE"] == "0"


@pytest.mark.parametrize("line", ["export A=canary", "A = canary", "canary", "=canary", "ELASTIC_STORE=canary"])
def test_a_line_that_is_no_variable_is_refused_by_its_number_and_not_shown(tmp_path: Path, line: str) -> None:
    file = tmp_path / "job.env"
    file.write_text(f"A=1\n{line}\n")
    with pytest.raises(UserError, match=r"Line 2 of ELASTIC_JOB_ENV=.*job.env is no variable .*NAME=value") as caught:
        job_environment({}, Settings(home=tmp_path, job_env=file))
    assert "canary" not in str(caught.value)


def test_a_file_of_variables_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"ELASTIC_JOB_ENV=.*absent cannot be read.*Give a file of NAME=value lines"):
        job_environment({}, Settings(home=tmp_path, job_env=tmp_path / "absent"))


def test_settings_for_workers_are_absolute_and_hold_no_password() -> None:
    settings = Settings(home=Path("h"), ledger_url="postgresql://u:secret@h/l", mlflow_uri="http://u:secret@m")
    values = worker_settings(settings)
    assert "secret" not in str(values)
    assert values["home"] == str(Path.cwd() / "h")
    assert values["store"] == str(Path.cwd() / "h" / "store")
    assert values["control_url"] == "http://127.0.0.1:8080/elastic"
    assert Settings(**values).store_url() == values["store"]


def test_what_the_launcher_writes_of_the_settings_has_what_workers_read(tmp_path: Path) -> None:
    settings = Settings(
        home=tmp_path / "h", project=tmp_path, s3_endpoint="http://s3", control_url="http://c", hang_seconds=90
    )
    folder = RunDir(tmp_path)
    folder.write_json(SETTINGS, worker_settings(settings))
    want = WorkerSettings(tmp_path, str(tmp_path / "h" / "store"), settings.tasks, "http://c", "http://s3", 90)
    assert folder.read(WorkerSettings) == want
