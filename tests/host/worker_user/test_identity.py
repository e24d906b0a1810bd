"""Who can be the user of users' code, and with what words others are refused."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_core.errors import UserError
from elastic_core.host.worker_user.identity import WorkerUser, require_usable
from elastic_core.services import platform
from elastic_core.settings import Settings
from tests.security.worker_namespace import NAME, PROJECT, namespace, open_home


@pytest.fixture
def home(user: WorkerUser) -> Iterator[Path]:
    with open_home() as found:
        yield found


def settings(home: Path, name: str = NAME, project: Path = PROJECT) -> Settings:
    return Settings(home=home, project=project, worker_user=name, mlflow_uri="none")


def test_without_the_setting_there_is_none(tmp_path: Path) -> None:
    assert WorkerUser.of(Settings(home=tmp_path)) is None


def test_a_dedicated_user_is_found_with_what_names_it(user: WorkerUser, home: Path) -> None:
    found = WorkerUser.of(settings(home))
    assert found == user
    assert found.environment() == {"HOME": user.home, "USER": NAME, "LOGNAME": NAME}
    require_usable(found, settings(home))


def test_only_root_can_run_code_as_another(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UserError, match=rf"'{NAME}', and the services' user has uid 1000: only root can .* or unset"):
        WorkerUser.of(settings(home))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nobody-of-this-name", "and this host has no such user. Make one for jobs alone: useradd --system"),
        ("root", r"which is root \(uid 0, gid 0\): name an unprivileged user"),
        ("nobody", r"whose group \d+ it shares with .*: what jobs are given would be theirs"),
    ],
)
def test_a_user_that_cannot_be_it_is_refused_with_the_reason(home: Path, name: str, words: str) -> None:
    with pytest.raises(UserError, match=f"ELASTIC_WORKER_USER is '{name}', {words}"):
        WorkerUser.of(settings(home, name))


def test_who_owns_the_home_is_refused(user: WorkerUser, home: Path) -> None:
    os.chown(home, user.uid, user.gid)
    with pytest.raises(UserError, match=f"which owns {home}: who owns what the services keep can change it"):
        WorkerUser.of(settings(home))


def test_an_interpreter_below_a_closed_folder_is_refused_and_the_folder_named(tmp_path: Path) -> None:
    with namespace(readable=False) as user, open_home() as home:
        closed = Path(tmp_path / "closed")
        closed.mkdir(mode=0o700)
        given = settings(home, project=closed)
        with pytest.raises(
            UserError, match=r"which cannot pass or read \S+ \(mode 0700, of uid 0\) on the way to "
        ) as e:
            require_usable(user, given)
        named = Path(str(e.value).split("cannot pass or read ")[1].split(" (mode")[0])
        assert named in {*Path(os.path.realpath("/proc/self/exe")).parents, *closed.parents, closed}
        assert closed_to(named)
        assert not any(closed_to(above) for above in named.parents)
        with pytest.raises(UserError, match="cannot pass or read"):
            platform.prepare_home(given)
        assert list(home.iterdir()) == []


def closed_to(path: Path) -> bool:
    return not path.stat().st_mode & 0o001


@pytest.mark.parametrize("at", ["", "dags"])
def test_a_project_that_the_user_can_change_is_refused(user: WorkerUser, home: Path, at: str) -> None:
    project = home.parent / "project"
    (project / "dags").mkdir(parents=True)
    project.chmod(0o755)
    (project / "dags").chmod(0o755)
    require_usable(user, settings(home, project=project))
    (project / at).chmod(0o777)
    with pytest.raises(UserError, match=f"which can write in {project / at} .*could change what the services run"):
        require_usable(user, settings(home, project=project))


def test_the_databases_user_is_refused(user: WorkerUser, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "SYSTEM_USER", NAME)
    assert pwd.getpwnam(NAME).pw_uid == user.uid
    with pytest.raises(UserError, match=f"'{NAME}', which PostgreSQL runs as"):
        platform.prepare_home(settings(home))


def test_starting_the_services_again_keeps_given_folders_open_and_all_others_closed(
    user: WorkerUser, home: Path
) -> None:
    for name in ("run", "store", "logs"):
        (home / name).mkdir()
        os.chown(home / name, -1, user.gid)
        (home / name).chmod(0o750)
    platform.prepare_home(settings(home))
    modes = {path.name: path.stat().st_mode & 0o777 for path in home.iterdir()}
    assert modes == {"run": 0o710, "store": 0o710, "logs": 0o700, "secrets": 0o700}
    platform.prepare_home(settings(home, ""))
    assert {path.stat().st_mode & 0o077 for path in home.iterdir()} == {0}
