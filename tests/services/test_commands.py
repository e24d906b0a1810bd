"""The command line of the services, where nothing runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from elastic_core.services.secrets import admin_password, ensure_secrets
from elastic_core.settings import Settings

ROOT = Path(__file__).parents[2]


def elastic(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = "from elastic_core.cli import app; app()"
    return subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={"ELASTIC_HOME": str(home), "PATH": "/usr/bin:/bin"}, cwd=ROOT, capture_output=True, text=True,
    )  # fmt: skip


def test_status_of_a_home_that_never_was_is_empty_and_not_a_success(tmp_path: Path) -> None:
    done = elastic(tmp_path / "none", "status", "--json")
    assert (done.returncode, json.loads(done.stdout)) == (1, [])
    assert not (tmp_path / "none").exists()


def test_down_of_a_home_that_never_was_is_a_success(tmp_path: Path) -> None:
    done = elastic(tmp_path / "none", "down")
    assert (done.returncode, done.stdout) == (0, f"nothing to stop: {tmp_path / 'none'} does not exist\n")


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        (("password",), "there is no password yet"),
        (
            ("logs", "schedular"),
            "no service is called 'schedular'; there are airflow-migrate, api-server, dag-processor",
        ),
        (("logs", "scheduler"), "scheduler has not been started yet"),
    ],
)
def test_an_error_is_one_message_and_no_traceback(tmp_path: Path, arguments: tuple[str, ...], want: str) -> None:
    done = elastic(tmp_path, *arguments)
    assert done.returncode == 2
    assert want in done.stderr
    assert "Traceback" not in done.stderr


def test_the_password_and_the_end_of_a_log_are_shown_on_request(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    ensure_secrets(settings)
    assert elastic(tmp_path, "password").stdout.strip() == admin_password(settings)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "mlflow.log").write_text("one\ntwo\nthree\n")
    assert elastic(tmp_path, "logs", "mlflow", "-n", "2").stdout == "two\nthree\n"
