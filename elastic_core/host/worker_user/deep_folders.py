"""Folders in which a job's code may have made others: deeper than Python recurses, of paths longer than calls take.

`shutil.rmtree` and `os.walk` call themselves for each level, and end whoever called them with a `RecursionError`.
Standard library only: agents import this.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path

LONGEST_NAME = 1024  # bytes, below the folder that is looked through: S3 takes no longer key
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_GONE_OR_REPLACED = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)  # since it was listed
_Identity = tuple[int, int]


def remove_tree(folder: Path) -> None:
    """Remove a folder with all that is in it. Links are removed, not followed.

    What others remove meanwhile is no fault. Raises `OSError` for what cannot be removed, `FileNotFoundError` where
    there is no such folder.
    """
    around = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fd = os.open(folder.name, _FOLDER, dir_fd=around)
        with suppress(FileNotFoundError):
            while not _emptied(fd):
                fd = os.open(folder.name, _FOLDER, dir_fd=around)
            os.rmdir(folder.name, dir_fd=around)
    finally:
        os.close(around)


def _emptied(fd: int) -> bool:
    """Remove what is in an open folder, and close it. One folder at a time is open, however deep it lies. False: others
    have removed the one that was open."""
    above: list[tuple[_Identity, str, list[str]]] = []  # of each folder above: which, name of the next, others to enter
    try:
        left = _remove_files(fd)
        while left or above:
            if left:
                name = left.pop()
                below = _opened(name, fd)
                if below is not None:
                    above.append((_identity(fd), name, left))
                    os.close(fd)
                    fd = below
                    left = _remove_files(fd)
                continue
            wanted, name, left = above.pop()
            try:
                back = os.open("..", _FOLDER, dir_fd=fd)
            except FileNotFoundError:
                return False
            os.close(fd)
            fd = back
            if _identity(fd) != wanted:
                raise OSError(errno.ESTALE, "it was moved while it was being removed", name)
            with suppress(FileNotFoundError):
                os.rmdir(name, dir_fd=fd)
        return True
    finally:
        os.close(fd)


def _opened(name: str, around: int) -> int | None:
    """None for what is no folder any more; that is removed."""
    try:
        return os.open(name, _FOLDER, dir_fd=around)
    except OSError as error:
        if error.errno not in _GONE_OR_REPLACED:
            raise
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=around)
    return None


def _remove_files(fd: int) -> list[str]:
    """What is no folder; the names of the folders."""
    with os.scandir(fd) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        if not is_folder:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=fd)
    return [name for name, is_folder in found if is_folder]


def _identity(fd: int) -> _Identity:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


class TooMany(Exception):
    """There is more below a folder than is looked at."""


def files_below(folder: Path, levels: int | None = None, most: int | None = None) -> Iterator[Path]:
    """All that is no folder, at any depth, or so many levels down: links too, which are not followed.

    What has a longer name than `LONGEST_NAME` is passed over, and so is a folder that cannot be listed. Raises
    `TooMany` behind `most` files and folders, where there are more.
    """
    waiting = [(folder, 1)]
    longest = LONGEST_NAME + len(os.fsencode(folder))
    seen = 0
    while waiting:
        around, level = waiting.pop()
        try:
            with os.scandir(around) as entries:
                listed = islice(entries, None if most is None else most - seen + 1)
                found = [(Path(entry.path), entry.is_dir(follow_symlinks=False)) for entry in listed]
        except OSError:
            continue
        seen += len(found)
        too_many = most is not None and seen > most
        for path, is_folder in found[:-1] if too_many else found:
            if len(os.fsencode(path)) > longest:
                continue
            if not is_folder:
                yield path
            elif levels is None or level < levels:
                waiting.append((path, level + 1))
        if too_many:
            raise TooMany(f"{folder} holds more than {most} files and folders")
