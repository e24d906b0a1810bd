"""Airflow's files of logs, of which Airflow itself removes none."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from elastic_core.host.worker_user.deep_folders import files_below
from elastic_core.services.airflow import log_folder
from elastic_core.settings import Settings
from elastic_core.waiting import claim_turn

EVERY_SECONDS = 3600.0  # every file is looked at: a second for a month's runs
DAY = 86_400.0


def remove_old_logs(settings: Settings, now: float) -> int:
    """Remove what was written last before `ELASTIC_KEEP_DAYS`, and the folders that this empties; how many files. Once
    an hour: in between nothing.

    What cannot be removed stays, and keeps no other.
    """
    folder = log_folder(settings)
    if not due(folder.with_name("logs-looked-through"), now):
        return 0
    removed = 0
    for path in files_below(folder):
        with suppress(OSError):
            if path.lstat().st_mtime < now - settings.keep_days * DAY:
                path.unlink()
                removed += 1
                _remove_empty(path.parent, folder)
    return removed


def due(stamp: Path, now: float) -> bool:
    """Whether the last time is so long ago; from now on it is not."""
    with suppress(OSError):  # without a place to note it, e.g. on a full disk, it is done each time
        return claim_turn(stamp, now, EVERY_SECONDS)
    return True


def _remove_empty(folder: Path, top: Path) -> None:
    """The folder and those around it, up to the first that holds something. Raises `OSError` at that one."""
    while folder != top:
        folder.rmdir()
        folder = folder.parent
