"""Folders that are opened to one more user, and to nobody else."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from elastic_core.errors import UserError
from elastic_core.host.worker_user.giving import give_file, give_folder, let_pass, let_read
from elastic_core.host.worker_user.identity import WorkerUser
from tests.security.worker_namespace import open_home


@pytest.fixture
def home(user: WorkerUser) -> Iterator[Path]:
    with open_home() as found:
        yield found


def seen(path: Path) -> tuple[int, int, int]:
    status = path.lstat()
    return status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)


def test_a_folder_is_passed_by_the_users_group_and_stays_roots(user: WorkerUser, home: Path) -> None:
    for _ in range(2):
        let_pass(home, user)
        assert seen(home) == (0, user.gid, 0o710)


def test_what_everybody_may_pass_stays_as_it_is(user: WorkerUser, home: Path) -> None:
    home.chmod(0o711)
    let_pass(home, user)
    assert seen(home) == (0, 0, 0o711)


def test_a_closed_folder_of_somebody_else_is_refused(user: WorkerUser, home: Path) -> None:
    os.chown(home, 4711, 4711)
    with pytest.raises(UserError, match=rf"cannot pass {home} \(of uid 4711\). Let it pass: setfacl"):
        let_pass(home, user)
    assert seen(home) == (4711, 4711, 0o700)


def test_what_is_to_be_read_cannot_be_written_but_for_the_file_that_is_given(user: WorkerUser, home: Path) -> None:
    for name in ("spec", "answer"):
        (home / name).write_text(name)
    let_read(home, user)
    give_file(home / "answer", user)
    assert seen(home) == (0, user.gid, 0o750)
    assert seen(home / "spec") == (0, user.gid, 0o640)
    assert seen(home / "answer")[0] == user.uid


def test_a_jobs_folder_is_given_with_all_that_is_in_it_and_no_link_is_followed(user: WorkerUser, home: Path) -> None:
    outside = home / "outside"
    outside.mkdir()
    (outside / "file").touch(0o600)
    job = home / "job"
    (job / "lineage-0" / "step").mkdir(parents=True)
    (job / "lineage-0" / "step" / "shard").touch()
    (job / "lineage-0" / "to-outside").symlink_to(outside)
    (job / "lineage-0" / "to-file").symlink_to(outside / "file")
    give_folder(job, user)
    assert {path.lstat().st_uid for path in (job, *job.rglob("*"))} == {user.uid}
    assert seen(job)[2] == 0o700
    assert {path.stat().st_uid for path in (outside, outside / "file")} == {0}


def test_a_folder_that_is_the_users_is_not_looked_through_again(user: WorkerUser, home: Path) -> None:
    give_folder(home / "job", user)
    (home / "job" / "of-root").touch()  # as if the user had led root to another's file
    give_folder(home / "job", user)
    assert seen(home / "job" / "of-root")[0] == 0
