"""Commands find the installation from any folder, and reach it with the settings that it runs with."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from elastic_core.commands.installation.home import use_home, use_settings_in_force
from elastic_core.errors import UserError
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


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder to another user")
@pytest.mark.parametrize("which", [".elastic", "airflow.cfg.template"])
def test_what_another_user_has_put_above_is_taken_only_where_it_is_named(
    project: Path, tmp_path: Path, which: str
) -> None:
    (project / ".elastic").mkdir()
    os.chown(project / which, 65534, 65534)
    named = {".elastic": ("ELASTIC_HOME", project / ".elastic"), "airflow.cfg.template": ("ELASTIC_PROJECT", project)}
    name, value = named[which]
    with pytest.raises(UserError, match=rf"{project / which} .* belongs to the user 65534: .* with {name}={value};"):
        found(project / "docs" / "deep", tmp_path / "none")
    assert found(project, tmp_path / "none", **{name: str(value)})[name] == str(value)


def test_a_home_that_anybody_may_write_is_nobodys(project: Path, tmp_path: Path) -> None:
    (project / ".elastic").mkdir()
    (project / ".elastic").chmod(0o777)
    with pytest.raises(UserError, match="anybody may write it"):
        found(project, tmp_path / "none")


def test_a_record_sets_settings_of_the_platform_and_nothing_else(tmp_path: Path) -> None:
    settings_in_force.record(tmp_path, {"ELASTIC_POLICY": "fifo"})
    file = tmp_path / "services" / "settings.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "LD_PRELOAD": "/tmp/x.so", "PYTHONPATH": "/tmp"}))
    environ = {"ELASTIC_HOME": str(tmp_path)}
    use_settings_in_force(environ)
    assert environ == {"ELASTIC_HOME": str(tmp_path), "ELASTIC_POLICY": "fifo"}
