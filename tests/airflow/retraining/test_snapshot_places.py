"""A snapshot lies where jobs find it, and is open to them: as another Unix user, and on other machines."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_airflow.retraining.data_snapshot import Snapshot, SnapshotOperator, freeze
from elastic_airflow.retraining.snapshot_places import let_jobs_read, place_of
from elastic_core.errors import UserError
from elastic_core.host.worker_user.giving import SNAPSHOTS
from elastic_core.host.worker_user.identity import WorkerUser
from elastic_core.services.platform import GIVEN, close_to_others
from elastic_core.settings import Settings
from tests.airflow.doubles import FakeTask, a_context
from tests.security.worker_namespace import namespace, open_home


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "a.csv"
    path.write_text("a,1\n")
    return path


@pytest.fixture(scope="module")
def user() -> Iterator[WorkerUser]:
    with namespace() as found:
        yield found


@pytest.fixture
def closed_by_itself() -> Iterator[None]:
    """What is made is its maker's alone, as the services have it."""
    before = os.umask(0o077)
    yield
    os.umask(before)


def test_on_other_machines_the_pipeline_says_where(source: Path, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home", launcher="ray")
    with pytest.raises(UserError, match=r"'ray', and nodes do not have .*Snapshot\(\.\.\., into='/shared/snapshots'\)"):
        place_of(settings, None, "again")
    shared = tmp_path / "shared"
    with pytest.raises(UserError, match="is no folder of this machine: mount it here"):
        place_of(settings, str(shared), "again")
    shared.mkdir()
    assert place_of(settings, str(shared), "again") == shared / "again"
    assert not settings.home.exists()


@pytest.mark.usefixtures("api", "airflow")
def test_a_run_is_given_the_folder_that_the_pipeline_named(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELASTIC_HOME", str(tmp_path / "home"))
    data = Snapshot(files="", param="folder", into=str(source.parent))
    snapshot = SnapshotOperator(task_id="snapshot", data=data, files=str(source))
    frozen = snapshot.execute(a_context(FakeTask("again", "run-1", "snapshot")))
    assert Path(frozen["folder"]).parent == tmp_path / "again"
    assert (Path(frozen["folder"]) / "a.csv").read_text() == "a,1\n"


def test_a_place_that_depends_on_where_one_is_is_refused_where_the_file_is_read() -> None:
    with pytest.raises(ValueError, match="into is 'snapshots'; it must be an absolute path"):
        Snapshot(files="/data/*.csv", param="folder", into="snapshots")


@pytest.mark.usefixtures("closed_by_itself")
@pytest.mark.parametrize(("mode", "of_folders", "of_files"), [(0o750, 0o750, 0o640), (0o777, 0o755, 0o644)])
def test_a_named_folders_readers_can_read_what_is_put_into_it(
    source: Path, tmp_path: Path, mode: int, of_folders: int, of_files: int
) -> None:
    shared, settings = tmp_path / "shared", Settings(home=tmp_path / "home", launcher="ray")
    shared.mkdir()
    shared.chmod(mode)
    folder = freeze([source], place_of(settings, str(shared), "again"), "run-1")
    let_jobs_read(folder, settings, str(shared))
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder.parent, folder, folder / "a.csv")] == [
        of_folders, of_folders, of_files,
    ]  # fmt: skip


def as_user(user: WorkerUser, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, user=user.uid, group=user.gid, extra_groups=[], capture_output=True, text=True, check=False
    )


@pytest.mark.usefixtures("closed_by_itself")
def test_the_workers_user_reads_its_snapshot_also_after_the_services_began_anew(user: WorkerUser, source: Path) -> None:
    with open_home() as home:
        settings = Settings(home=home, worker_user=user.name)
        folder = freeze([source], place_of(settings, None, "again"), "run-1")
        assert as_user(user, "cat", f"{folder}/a.csv").returncode != 0
        let_jobs_read(folder, settings, None)
        close_to_others(home, GIVEN)
        assert as_user(user, "cat", f"{folder}/a.csv").stdout == "a,1\n"
        for above in (home, home / SNAPSHOTS, folder.parent):
            assert as_user(user, "ls", str(above)).returncode != 0
        assert as_user(user, "touch", f"{folder}/b.csv", f"{folder}/a.csv").returncode != 0


def test_a_place_that_users_code_can_change_is_refused(user: WorkerUser) -> None:
    with open_home() as home:
        settings, shared = Settings(home=home, worker_user=user.name), home.parent / "shared"
        shared.mkdir()
        shared.chmod(0o777)
        with pytest.raises(UserError, match=f"which can write in {shared} .*could change what root keeps in"):
            place_of(settings, str(shared), "again")
        shared.chmod(0o1777)
        os.symlink(home, shared / "led")
        with pytest.raises(UserError, match=f"{shared}/led is a link"):
            place_of(settings, str(shared), "led")
