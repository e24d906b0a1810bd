"""Files frozen before a training: what they held then is what is trained on, whatever happens to them meanwhile.

A snapshot is a folder of copies under the installation's home, named by the SHA-256 of all names and contents: the same
files make the same one. The newest few are kept.
"""

from __future__ import annotations

import glob
import hashlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow.sdk.exceptions import AirflowFailException

from elastic_airflow.operators import ElasticOperator
from elastic_core.settings import Settings

FOLDER = "data_snapshots"
_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """`files`: a pattern of paths, which may hold Airflow's templates. `param`: the parameter of the task that is given
    the folder of the copies. `keep`: so many snapshots of a pipeline stay."""

    files: str
    param: str
    keep: int = 5


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
        home = Settings().home.absolute() / FOLDER / context["ti"].dag_id
        try:
            folder = freeze(paths, home)
        except ValueError as error:  # no retry gives files other names
            raise AirflowFailException(str(error)) from error
        forget(home, self.data.keep, folder)
        self.log.info("%d files of %s are frozen in %s", len(paths), self.files, folder)
        return {"folder": str(folder), "sha256": folder.name, "files": len(paths)}


def freeze(paths: Sequence[Path], home: Path) -> Path:
    """Copies of the files in a folder of `home`, which is there whole or not at all.

    Raises `ValueError` for two files of one name.
    """
    names = [path.name for path in paths]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"a snapshot has one folder, and these names come from several: {', '.join(twice[:5])}")
    home.mkdir(parents=True, exist_ok=True)
    making = home / f".{os.getpid()}.making"
    shutil.rmtree(making, ignore_errors=True)
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
        if folder.exists():
            os.utime(folder)
        else:
            os.replace(making, folder)
        return folder
    finally:
        shutil.rmtree(making, ignore_errors=True)


def forget(home: Path, keep: int, current: Path) -> None:
    """Remove all but the newest `keep`, and what a killed run was making."""
    newest_first = sorted(home.iterdir(), key=lambda folder: folder.stat().st_mtime, reverse=True)
    whole = [folder for folder in newest_first if not folder.name.startswith(".")]
    for folder in {*whole[max(1, keep) :], *newest_first} - set(whole[: max(1, keep)]) - {current}:
        shutil.rmtree(folder, ignore_errors=True)
