"""The command's exit codes by kind of error, its version, and what it says of wrong settings."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from elastic_core import cli, errors
from elastic_core.errors import ElasticError
from tests.builders import CONTROL_SECRET

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "guide" / "operate.md").read_text()


def elastic(home: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", "from elastic_core.cli import app; app()", *arguments],
        env={"ELASTIC_HOME": str(home), "PATH": "/usr/bin:/bin", **environment},
        cwd=home, capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.parametrize("kind", errors.BY_CODE.values(), ids=lambda kind: kind.__name__)
def test_each_kind_of_error_ends_the_command_with_its_own_documented_code(
    kind: type[ElasticError], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise kind("what happened")

    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(cli, "build_for", lambda arguments: fails)
    with pytest.raises(SystemExit) as ended:
        cli.app()
    assert ended.value.code == kind.exit_code
    assert "elastic: what happened" in capsys.readouterr().err
    assert f"\n| {kind.exit_code} |" in PAGE


def test_a_fault_of_the_platforms_own_is_shown_whole(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.setattr(cli, "build_for", lambda arguments: lambda: 1 // 0)
    with pytest.raises(SystemExit) as ended:
        cli.app()
    assert ended.value.code == 70
    assert "ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.nightly
def test_an_api_that_does_not_answer_and_an_option_that_is_none_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "control").write_bytes(CONTROL_SECRET)
    away = elastic(tmp_path, "jobs", "list", ELASTIC_CONTROL_URL="http://127.0.0.1:9")
    assert (away.returncode, "gave no answer" in away.stderr) == (6, True)
    assert elastic(tmp_path, "jobs", "list", "--nonsense").returncode == 2


def test_a_setting_that_cannot_be_one_is_named_with_its_value(tmp_path: Path) -> None:
    done = elastic(tmp_path, "jobs", "list", ELASTIC_AIRFLOW_PORT="eighty")
    assert done.returncode == 2
    assert "the setting ELASTIC_AIRFLOW_PORT is 'eighty': Input should be a valid integer" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_version_is_that_of_the_package(tmp_path: Path) -> None:
    assert elastic(tmp_path, "--version").stdout == f"elastic {version('elastic-airflow')}\n"
