"""Nobody but its user reads anything of an installation's folder, and nothing outside of it is changed."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_core.errors import UserError
from elastic_core.host.messages import WorkerError
from elastic_core.host.rundir import RunDir
from elastic_core.services import postgres
from elastic_core.services.platform import prepare_home
from elastic_core.services.supervision.supervise import Supervisor
from elastic_core.settings import Settings
from tests.train import forked

NOBODY = 65534


@pytest.fixture(autouse=True)
def generous_umask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def home() -> Iterator[Path]:
    """As a release before this one left it, in a folder that anybody may pass."""
    around = Path(tempfile.mkdtemp(prefix="elastic-modes-"))
    around.chmod(0o755)
    home = around / "project" / ".elastic"
    for name in ("store/job/lineage-0/manifest.json", "logs/api.log", "predictors/forecasts.skops", "cluster.json"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("canary")
    yield home
    shutil.rmtree(around)


def readable(folder: str) -> int:
    """How many files another user can read below the folder, 100 at most."""
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    paths = [Path(at) / name for at, _, names in os.walk(folder) for name in names]
    known = ("store/job/lineage-0/manifest.json", "secrets/control", "run/7/order.json", "cluster.json")
    return min(100, sum(os.access(path, os.R_OK) for path in (*paths, *(Path(folder) / name for name in known))))


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_reads_no_file_of_an_installation(home: Path, tmp_path: Path) -> None:
    assert forked.join([forked.start(readable, str(home), log=tmp_path / "log")]) == [6]
    prepare_home(Settings(home=home, mlflow_uri="none"))
    run_dir = RunDir.of(home, 7)
    run_dir.create()
    run_dir.write_json("order.json", {})
    run_dir.write(WorkerError("ValueError"), 0)
    Supervisor(home).configure({home / "services" / "supervisord.conf": "[supervisord]"})
    assert forked.join([forked.start(readable, str(home), log=tmp_path / "log")]) == [0]


def test_what_the_folder_lies_in_keeps_its_modes(home: Path) -> None:
    around = (home.parent, home.parent.parent)
    before = [path.stat().st_mode for path in around]
    prepare_home(Settings(home=home, mlflow_uri="none"))
    assert [path.stat().st_mode for path in around] == before
    assert stat.S_IMODE(home.stat().st_mode) & 0o066 == 0
    assert {stat.S_IMODE(path.stat().st_mode) & 0o077 for path in home.iterdir()} == {0}


def test_services_make_files_that_are_their_users_alone(tmp_path: Path) -> None:
    (configuration,) = Supervisor(tmp_path).files([]).values()
    assert "umask=077" in configuration.splitlines()


@pytest.mark.skipif(os.getuid() != 0, reason="only for root does PostgreSQL run as another user")
def test_postgres_opens_no_folder_that_is_not_the_installations(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    home = closed / "home"
    home.mkdir(parents=True)
    closed.chmod(0o700)
    with pytest.raises(UserError, match=rf"cannot pass .*{closed}.* on the way to {home}.*chmod o\+x"):
        postgres._let_system_user_in(home)
    assert stat.S_IMODE(closed.stat().st_mode) == 0o700
    assert stat.S_IMODE(home.stat().st_mode) & 0o077 in (0o055, 0o001)
