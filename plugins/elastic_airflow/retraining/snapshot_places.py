"""Where snapshots of data lie, and who can read them: whoever trains on one may be another Unix user, or on another
machine, and the services' own folder is closed to both."""

from __future__ import annotations

from pathlib import Path

from elastic_core.errors import UserError
from elastic_core.host.worker_user.giving import SNAPSHOTS, let_pass, let_read
from elastic_core.host.worker_user.identity import WorkerUser, require_kept
from elastic_core.settings import Settings


def place_of(settings: Settings, into: str | None, dag_id: str) -> Path:
    """The folder of a pipeline's snapshots. Raises `UserError` where nodes would not find it, or users' code could
    change what lies there."""
    around = _around(settings, into)
    if into is not None and not around.is_dir():
        raise UserError(f"Snapshot(into={into!r}) is no folder of this machine: mount it here, as on every node")
    place = around / dag_id
    place.mkdir(parents=True, exist_ok=True)
    user = WorkerUser.of(settings)
    if user is not None:
        require_kept(user, place)
        if place.is_symlink():  # somebody else's, where everybody may write
            raise UserError(f"{place} is a link, and snapshots would lie where it leads: remove it")
    return place


def let_jobs_read(folder: Path, settings: Settings, into: str | None) -> None:
    """Open a snapshot to the workers' user; without one, in a folder that was named, to whom that folder is open."""
    around, place, user = _around(settings, into), folder.parent, WorkerUser.of(settings)
    if user is not None:
        for above in (*([settings.home.absolute()] if into is None else []), around, place):
            let_pass(above, user)
        let_read(folder, user)
    elif into is not None:
        open_to = around.stat().st_mode
        for path in (*folder.iterdir(), folder, place):
            path.chmod(0o700 | open_to & 0o055 if path.is_dir() else 0o600 | open_to & 0o044)


def _around(settings: Settings, into: str | None) -> Path:
    if into is not None:
        return Path(into)
    if settings.launcher != "local":
        raise UserError(
            f"ELASTIC_LAUNCHER is {settings.launcher!r}, and nodes do not have the services' folder {settings.home}, "
            "in which a snapshot lies by itself. Name one that this machine and every node have at the same path: "
            "Snapshot(..., into='/shared/snapshots')"
        )
    return settings.home.absolute() / SNAPSHOTS
