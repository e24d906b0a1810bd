"""Folders that root opens to the user of users' code, and to nobody else: by its group, which is its own.

Root keeps them; only a job's folder in the store becomes the user's. A run dir is a mailbox: the user may put files in
it, and neither remove nor replace those of root (mode 1770). Nothing is given that the user could have prepared: a
folder becomes writable after it is filled.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from elastic_core.errors import UserError
from elastic_core.host.worker_user.identity import WorkerUser

SNAPSHOTS = "data_snapshots"  # in the home: copies of data that retraining jobs read


def let_pass(folder: Path, user: WorkerUser) -> None:
    """Let the user go through a folder of root's to what it knows by name, without seeing what else is there."""
    status = folder.stat()
    if _passes(status, user):
        return
    if status.st_uid != os.geteuid():
        raise UserError(
            f"ELASTIC_WORKER_USER is {user.name!r}, which cannot pass {folder} (of uid {status.st_uid}). Let it pass: "
            f"setfacl -m u:{user.name}:x {folder}, or choose another folder."
        )
    os.chown(folder, -1, user.gid)
    os.chmod(folder, stat.S_IMODE(status.st_mode) | 0o010)


def _passes(status: os.stat_result, user: WorkerUser) -> bool:
    bit = 0o100 if status.st_uid == user.uid else 0o010 if status.st_gid == user.gid else 0o001
    return bool(status.st_mode & bit)


def let_read(folder: Path, user: WorkerUser) -> None:
    """Let the user read what lies in a folder of root's."""
    os.chown(folder, -1, user.gid)
    os.chmod(folder, 0o750)
    for path in folder.iterdir():
        os.chown(path, -1, user.gid, follow_symlinks=False)
        os.chmod(path, 0o640)


def give_file(path: Path, user: WorkerUser) -> None:
    """Let the user write one file of a folder in which it can make none."""
    os.chown(path, user.uid, user.gid, follow_symlinks=False)


def give_folder(folder: Path, user: WorkerUser) -> None:
    """Make a folder the user's, with all that is in it, unless it is already: a job's in the store.

    While that lasts nobody else can enter, and a folder is given after what is in it.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    if folder.lstat().st_uid == user.uid:
        return
    os.chmod(folder, 0o700)
    for _, folders, files, fd in os.fwalk(folder, topdown=False):
        for name in (*folders, *files):
            os.chown(name, user.uid, user.gid, dir_fd=fd, follow_symlinks=False)
    os.chown(folder, user.uid, user.gid, follow_symlinks=False)
