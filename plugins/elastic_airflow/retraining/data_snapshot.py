"""Files frozen before a training: what they held then is what is trained on, whatever happens to them meanwhile.

A snapshot is a folder of copies, under the installation's home or where the pipeline says (`snapshot_places`), named
by the SHA-256 of all names and contents: the same files make the same one. The newest few are kept, and all that
somebody still reads: each notes the runs that froze it.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from airflow.sdk.exceptions import AirflowFailException

from elastic_airflow.access import dag_runs
from elastic_airflow.operators import ElasticOperator
from elastic_airflow.retraining.snapshot_places import let_jobs_read, place_of
from elastic_core.settings import Settings

READERS = ".runs"  # a folder for each snapshot, with a file for each run that froze it
MAKING_SECONDS = 7 * 86400.0  # no copy takes that long: who was making it is dead
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """`files`: a pattern of paths, which may hold Airflow's templates. `param`: the parameter of the task that is given
    the folder of the copies. `keep`: so many snapshots of a pipeline stay that nobody reads any more. `into`:
    the folder, of this installation alone, in which they are made; with jobs on other machines one that these have at
    this path."""

    files: str
    param: str
    keep: int = 5
    into: str | None = None

    def __post_init__(self) -> None:
        if self.into is not None and not os.path.isabs(self.into):
            raise ValueError(f"into is {self.into!r}; it must be an absolute path, the same for services and jobs")


class SnapshotOperator(ElasticOperator):
    """Returns {"folder", "sha256", "files"}. Fails where no file matches."""

    template_fields: Sequence[str] = ("files",)

    def __init__(self, *, data: Snapshot, files: str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.data, self.files = data, files

    def execute(self, context: Any) -> dict[str, Any]:
        paths = [Path(path) for path in sorted(glob.glob(self.files, recursive=True)) if os.path.isfile(path)]
        if not paths:
            raise AirflowFailException(f"no file matches {self.files!r}: there is nothing to train on")
        settings = Settings()
        home = place_of(settings, self.data.into, context["ti"].dag_id)
        try:
            folder = freeze(paths, home, context["ti"].run_id)
        except ValueError as error:  # no retry gives files other names
            raise AirflowFailException(str(error)) from error
        let_jobs_read(folder, settings, self.data.into)
        forget(home, self.data.keep, folder, self._read)
        self.log.info("%d files of %s are frozen in %s", len(paths), self.files, folder)
        frozen: dict[str, Any] = {"folder": str(folder), "sha256": folder.name, "files": len(paths)}
        return dict(self.hand_over(context, frozen))

    def _read(self, folders: Sequence[Path]) -> list[Path]:
        """Those that a run which is not over has frozen (it trains on its copy, and evaluates on it), or whose name an
        active job was given, whoever submitted it."""
        given = json.dumps([job.spec.params for job in self.control().jobs(active_only=True)])
        return [
            folder
            for folder in folders
            if folder.name in given
            or any(dag_runs.presence(folder.parent.name, run) is dag_runs.Presence.OPEN for run in readers(folder))
        ]


def freeze(paths: Sequence[Path], home: Path, run_id: str | None = None) -> Path:
    """Copies of the files in a folder of `home`, which is there whole or not at all. `run_id`: who reads them.

    Raises `ValueError` for two files of one name.
    """
    names = [path.name for path in paths]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"a snapshot has one folder, and these names come from several: {', '.join(twice[:5])}")
    home.mkdir(parents=True, exist_ok=True)
    making = home / f".{uuid4().hex}.making"
    making.mkdir()
    try:
        digest = hashlib.sha256()
        for path in paths:
            digest.update(f"{path.name}\0".encode())
            with path.open("rb") as source, (making / path.name).open("xb") as copy:
                while chunk := source.read(_CHUNK):
                    digest.update(chunk)
                    copy.write(chunk)
        folder = home / digest.hexdigest()
        if run_id is not None:
            _note_reader(folder, run_id)  # first: what has no reader may go at any moment
        if folder.exists():
            os.utime(folder)
        else:
            os.replace(making, folder)
        return folder
    finally:
        shutil.rmtree(making, ignore_errors=True)


def readers(folder: Path) -> list[str]:
    """Ids of the runs that have frozen this snapshot."""
    return [note.read_text() for note in _notes(folder).glob("*")]


def forget(
    home: Path, keep: int, current: Path, read: Callable[[Sequence[Path]], Collection[Path]] = lambda _: ()
) -> None:
    """Remove all but the newest `keep`, and of those that `read` is asked about what it names; and what a killed run
    was making."""
    whole = [folder for folder in home.iterdir() if not folder.name.startswith(".")]
    newest_first = sorted(whole, key=_made_at, reverse=True)
    surplus = [folder for folder in newest_first[max(1, keep) :] if folder != current]
    still_read = set(read(surplus)) if surplus else set()
    for folder in surplus:
        if folder not in still_read:
            shutil.rmtree(folder, ignore_errors=True)
            shutil.rmtree(_notes(folder), ignore_errors=True)
    for making in home.glob(".*.making"):
        if 0 < _made_at(making) < time.time() - MAKING_SECONDS:
            shutil.rmtree(making, ignore_errors=True)


def _made_at(folder: Path) -> float:
    """0 for one that another run has just removed."""
    try:
        return folder.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _notes(folder: Path) -> Path:
    return folder.parent / READERS / folder.name


def _note_reader(folder: Path, run_id: str) -> None:
    notes = _notes(folder)
    notes.mkdir(parents=True, exist_ok=True)
    (notes / hashlib.sha256(run_id.encode()).hexdigest()[:32]).write_text(run_id)
