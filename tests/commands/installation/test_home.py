"""Commands find the installation from any folder, and reach it with the settings that it runs with."""

from __future__ import annotations

from pathlib import Path

import pytest

from elastic_core.commands.installation.home import use_home, use_settings_in_force
from elastic_core.services import settings_in_force


@pytest.fixture
def project(tmp_path: Path) -> Path:
    made = tmp_path / "project"
    (made / "docs" / "deep").mkdir(parents=True)
    (made / "airflow.cfg.template").touch()
    return made


def found(here: Path, checkout: Path, **environ: str) -> dict[str, str]:
    use_home(environ, here, checkout)
    return environ


def test_the_nearest_home_at_or_above_the_folder_is_meant(project: Path, tmp_path: Path) -> None:
    (project / ".elastic").mkdir()
    want = {"ELASTIC_HOME": str(project / ".elastic"), "ELASTIC_PROJECT": str(project)}
    assert found(project / "docs" / "deep", tmp_path / "none") == want
    assert found(project, tmp_path / "none") == want


def test_elsewhere_the_checkouts_own_is_meant_also_before_it_was_made(project: Path, tmp_path: Path) -> None:
    want = {"ELASTIC_HOME": str(project / ".elastic"), "ELASTIC_PROJECT": str(project)}
    assert found(tmp_path, project) == want


def test_what_the_environment_says_stands(project: Path, tmp_path: Path) -> None:
    (project / ".elastic").mkdir()
    assert found(project, project, ELASTIC_HOME="/else")["ELASTIC_HOME"] == "/else"
    other = found(tmp_path, project, ELASTIC_PROJECT=str(tmp_path / "mine"))
    assert other["ELASTIC_HOME"] == str(tmp_path / "mine" / ".elastic")


def test_without_any_home_or_project_nothing_is_said(tmp_path: Path) -> None:
    assert found(tmp_path, tmp_path / "none") == {}


def test_a_platform_is_reached_with_the_settings_that_it_was_started_with(tmp_path: Path) -> None:
    started = {"ELASTIC_HOME": str(tmp_path), "ELASTIC_AIRFLOW_PORT": "9090", "ELASTIC_POLICY": "fifo", "PATH": "/bin"}
    settings_in_force.record(tmp_path, started)
    environ = {"ELASTIC_HOME": str(tmp_path), "ELASTIC_POLICY": "sia"}
    use_settings_in_force(environ)
    assert environ == {"ELASTIC_HOME": str(tmp_path), "ELASTIC_POLICY": "sia", "ELASTIC_AIRFLOW_PORT": "9090"}
