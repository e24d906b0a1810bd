"""`elastic init`: what it writes is what the checkout has, and nobody's file is lost."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
import setuptools
from typer.testing import CliRunner

from elastic_core.cli import build
from elastic_core.commands.installation import project_files
from elastic_core.commands.installation.project_files import write_project
from elastic_core.errors import Conflict, InfrastructureError

ROOT = Path(__file__).parents[3]


def test_a_project_has_configuration_dags_examples_and_presets(tmp_path: Path) -> None:
    done = CliRunner().invoke(build(["installation.init_command", "audit_commands"]), ["init", str(tmp_path / "mine")])
    assert done.exit_code == 0, done.output
    for name in ("airflow.cfg.template", "dags/elastic_job.py", "examples/digits.py", "examples/specs/digits.json"):
        assert (tmp_path / "mine" / name).read_bytes() == (ROOT / name).read_bytes()
    assert f"ELASTIC_PROJECT={tmp_path / 'mine'}" in done.output
    written = {path.name for path in (tmp_path / "mine" / "dags").iterdir()}
    assert written == {path.name for path in (ROOT / "dags").glob("*.py")}


def test_twice_is_once_and_a_file_that_somebody_changed_is_replaced_only_when_asked(tmp_path: Path) -> None:
    first = write_project(tmp_path)
    assert (first.same, write_project(tmp_path).new) == ((), ())
    mine, gone = tmp_path / "dags" / "elastic_job.py", tmp_path / "dags" / "elastic_retrain.py"
    mine.write_text("# mine\n")
    gone.unlink()
    with pytest.raises(Conflict, match=r"dags/elastic_job\.py\. Nothing was written"):
        write_project(tmp_path)
    assert mine.read_text() == "# mine\n"
    assert not gone.exists()
    assert write_project(tmp_path, replace=True).new == (Path("dags/elastic_job.py"), Path("dags/elastic_retrain.py"))
    assert mine.read_bytes() == (ROOT / "dags" / "elastic_job.py").read_bytes()


def test_an_installation_without_the_files_says_so(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match=r"airflow\.cfg\.template"):
        write_project(tmp_path / "mine", source=tmp_path / "nothing")
    assert not (tmp_path / "mine").exists()


def test_what_a_wheel_carries_is_what_the_command_looks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Building one takes longer: test_wheel.py."""
    given: dict[str, Any] = {}
    monkeypatch.setattr(setuptools, "setup", given.update)
    build_file = runpy.run_path(str(ROOT / "setup.py"))
    assert build_file["PATTERNS"] == project_files.PATTERNS
    assert ROOT / build_file["SHIPPED"] == project_files.SHIPPED
    assert given["cmdclass"]["build_py"].__name__ == "BuildWithProject"
