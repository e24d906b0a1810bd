"""A folder as checkpoint store, where users' code is another Unix user: folders' owners and modes keep a grant.

Root keeps the store's folder, which the user may pass and not list; a job's own folder in it becomes the user's. All
jobs are this one user, so that between jobs nothing is kept. With an S3 store the access broker does this, and more.
"""

from __future__ import annotations

import re
from pathlib import Path

from elastic_core.errors import UserError
from elastic_core.host.worker_user.giving import give_folder, let_pass
from elastic_core.host.worker_user.identity import WorkerUser
from elastic_core.settings import Settings
from elastic_core.state.store_access.access_brokers import is_needed
from elastic_core.state.store_access.store_grants import StoreGrant

_OF_A_JOB = re.compile(r"lineage-\d+|audit")


def open_folders(settings: Settings, user: WorkerUser, grant: StoreGrant) -> None:
    """Let the user read and write the folders of the jobs that a grant names; those to write are made.

    Raises `UserError` where one to write holds anything but a job's checkpoints, or the way to the store is closed.
    """
    if is_needed(settings):
        return
    store = Path(settings.store_url().removeprefix("file://")).absolute()
    store.mkdir(parents=True, exist_ok=True)
    for folder in (settings.home.absolute(), store):
        let_pass(folder, user)
    for key in grant.write:
        folder = store / key
        if not _is_jobs(folder, user):
            raise UserError(
                f"{folder} holds something else than the checkpoints of a job, and is not given to the user "
                f"{user.name!r} of ELASTIC_WORKER_USER: choose another job id, or move it away"
            )
        give_folder(folder, user)
    for key in grant.read:
        folder = store / key.partition("/")[0]
        if folder.is_dir() and _is_jobs(folder, user):
            give_folder(folder, user)  # else the restore says what is wrong with it


def _is_jobs(folder: Path, user: WorkerUser) -> bool:
    """Whether root may give it: it is the user's already, or there is nothing but checkpoints and audits in it."""
    if folder.is_symlink():
        return False
    known = not folder.exists() or folder.lstat().st_uid == user.uid
    return known or all(_OF_A_JOB.fullmatch(path.name) for path in folder.iterdir())
