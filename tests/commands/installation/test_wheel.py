"""A wheel, built and installed outside of the checkout, is a whole platform for an Airflow of one's own.

Its dependencies are those of this environment, by links: nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.nightly

ROOT = Path(__file__).parents[3]
UI = ROOT / "plugins" / "elastic_airflow" / "page" / "ui"
PAGE_FILES = {file.relative_to(UI).as_posix(): file.stat().st_size for file in UI.rglob("*") if file.is_file()}
SOURCES = ("elastic_core", "plugins", "dags", "examples", "pyproject.toml", "setup.py", "MANIFEST.in", "README.md",
           "LICENSE", "airflow.cfg.template")  # fmt: skip
# What Airflow makes of the installation, in a process that has never seen the checkout.
ASKED = """
import json, sys
import elastic_airflow, elastic_core
from airflow import plugins_manager
from airflow.dag_processing.dagbag import DagBag
from airflow.serialization.serialized_objects import DagSerialization
from fastapi.testclient import TestClient

bag = DagBag(sys.argv[1])
for dag in bag.dags.values():
    json.dumps(DagSerialization.to_dict(dag))
job = bag.dags["elastic_job"]
plugins, errors = plugins_manager._get_plugins()
mine = [plugin for plugin in plugins if plugin.name == "elastic"]
views = [view["href"] for plugin in mine for view in plugin.external_views]
(app,) = [app for plugin in mine for app in plugin.fastapi_apps]

from elastic_airflow.api_server import mount_app
page = TestClient(mount_app(lambda: None, lambda: None))  # its files, by one who is logged in; no ledger is opened
files = {name: page.get("/page/" + name) for name in json.loads(sys.argv[2])}
print(json.dumps({
    "from": [elastic_core.__file__, elastic_airflow.__file__],
    "errors": {**bag.import_errors, **errors},
    "dags": sorted(bag.dags),
    "presets": {name: spec["entry_point"] for name, spec in job.get_task("submit").presets.items()},
    "offered": job.params.get_param("entry_point").schema["examples"],
    "plugins": [str(plugin.source) for plugin in mine],
    "at": app["url_prefix"],
    "views": {href: page.get(href.removeprefix(app["url_prefix"])).status_code for href in views},
    "files": {name: [answer.status_code, len(answer.content)] for name, answer in files.items()},
}))
"""


class Installed:
    """A virtual environment with the wheel, and a folder that `elastic init` made."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.project = folder, folder / "project"
        self.bin = folder / "venv" / "bin"

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, cwd=self.folder, capture_output=True, text=True, check=False, timeout=280,
            env={"PATH": "/usr/bin:/bin", "HOME": str(self.folder), "AIRFLOW_HOME": str(self.folder / "airflow"),
                 "AIRFLOW__CORE__LOAD_EXAMPLES": "False", "AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT": "200", **environment},
        )  # fmt: skip

    def elastic(self, *arguments: str) -> str:
        done = self.run(str(self.bin / "elastic"), *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    (source / ".ci").mkdir()
    done = subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--disable-pip-version-check", "--no-index", "--no-deps",
         "--no-build-isolation", "--wheel-dir", str(folder), str(source)],
        capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("elsewhere")
    venv.create(folder / "venv", with_pip=False, symlinks=True)
    packages = folder / "venv" / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    # All that is installed here but the platform itself: the checkout must not be found.
    (folder / "dependencies").mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if not path.name.startswith(("elastic_", "__editable__")):
            (folder / "dependencies" / path.name).symlink_to(path)
    (packages / "dependencies.pth").write_text(f"{folder / 'dependencies'}\n")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(folder / "venv/bin/python"),
         "install", "--no-deps", "--no-index", "--ignore-installed", str(wheel)],
        capture_output=True, text=True, check=False, timeout=280, env={**os.environ, "PYTHONPATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    made = Installed(folder)
    made.elastic("init", str(made.project))
    return made


@pytest.fixture(scope="module")
def said(installed: Installed) -> dict[str, Any]:
    done = installed.run(
        str(installed.bin / "python"), "-c", ASKED, str(installed.project / "dags"), json.dumps(sorted(PAGE_FILES)),
        ELASTIC_PROJECT=str(installed.project),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def test_airflow_finds_the_plugin_by_its_entry_point(installed: Installed, said: dict[str, Any]) -> None:
    assert [path for path in said["from"] if not path.startswith(str(installed.folder))] == []
    assert said["errors"] == {}
    (source,) = said["plugins"]
    assert "elastic-airflow==" in source
    assert "elastic_airflow.plugin:ElasticPlugin" in source


def test_every_dag_is_parsed_with_its_presets_and_tasks(said: dict[str, Any]) -> None:
    assert said["dags"] == [
        "elastic_job",
        "elastic_predictors",
        "elastic_reconcile",
        "elastic_retrain",
        "elastic_segment",
    ]
    specs = {file.stem: json.loads(file.read_text()) for file in (ROOT / "examples" / "specs").glob("*.json")}
    assert said["presets"] == {name: spec["entry_point"] for name, spec in specs.items()}
    assert len(said["presets"]) >= 5
    assert set(said["presets"].values()) - set(said["offered"]) == set(), "the tasks of all presets are there, too"


def test_every_file_of_the_page_is_served(said: dict[str, Any]) -> None:
    assert said["files"] == {name: [200, size] for name, size in PAGE_FILES.items()}
    assert len(said["views"]) >= 5
    assert set(said["views"].values()) == {200}


def test_the_command_answers(installed: Installed) -> None:
    assert installed.elastic("--version").startswith("elastic ")
    assert "Look at versions, settings, ports" in " ".join(installed.elastic("doctor", "--help").split())


def test_its_configuration_is_rendered_from_the_project_that_it_wrote(installed: Installed) -> None:
    """What `elastic up` does first there."""
    code = (
        "from elastic_core.services.airflow import write_configuration; from elastic_core.settings import Settings; "
        "write_configuration(Settings())"
    )
    home = installed.folder / "home"
    done = installed.run(
        str(installed.bin / "python"), "-c", code, ELASTIC_PROJECT=str(installed.project), ELASTIC_HOME=str(home)
    )
    assert done.returncode == 0, done.stderr
    assert f"dags_folder = {installed.project / 'dags'}" in (home / "airflow" / "airflow.cfg").read_text()
