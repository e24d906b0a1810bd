"""Reading files where another user may write: what is opened is judged, not its name, which may mean something else
by then.

A link, a pipe, a device, a file that has another name elsewhere: none of them is opened for reading. Standard library
only: agents import this.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MAX_MESSAGE = 16 << 20  # bytes; an order with all of a job's candidates to restore takes thousands


class ForeignFile(OSError):
    """A file that may not be what its reader takes it for; the text says why."""


def read_message(folder: Path, name: str, *, owners_only: bool) -> bytes | None:
    """A file of a folder that its owner may share with one other user; None where there is none.

    `owners_only`: of a shared folder, what anybody else has put in the place of its owner's is none. Raises
    `ForeignFile`, with words, for a file that is neither its owner's nor that user's, or is no file of its own.
    """
    path = folder / name
    try:
        fd = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        status, around = os.fstat(fd), folder.stat()
        if is_given(around) and status.st_uid != around.st_uid:
            if owners_only:
                return None
            if status.st_gid != around.st_gid:
                raise ForeignFile(f"{path} cannot be used: it is of uid {status.st_uid}")
        if problem := _problem(status):
            raise ForeignFile(f"{path} cannot be used: {problem}")
        with open(by_descriptor(fd), "rb") as file:
            return file.read(MAX_MESSAGE)
    finally:
        os.close(fd)


def is_given(folder: os.stat_result) -> bool:
    """Whether a folder is open to its group and to nobody else, as those are that root opens to the workers' user."""
    return folder.st_mode & 0o017 == 0o010


def _problem(status: os.stat_result) -> str:
    if not stat.S_ISREG(status.st_mode):
        return "it is a link" if stat.S_ISLNK(status.st_mode) else "it is no regular file"
    if status.st_nlink > 1:
        return "it has another name elsewhere"
    if status.st_size > MAX_MESSAGE:
        return f"it has {status.st_size} bytes; at most {MAX_MESSAGE} are read"
    return ""


@contextmanager
def opened_below(root: str, path: Path) -> Iterator[int]:
    """A descriptor by which the file or folder at `path` can be opened (O_PATH), whatever its name means meanwhile.

    `root`: a real path. Raises `ForeignFile` where links lead to something that is not below it; nothing of that has
    been touched. Raises `FileNotFoundError`.
    """
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        real = os.readlink(by_descriptor(fd))
        if real != root and not real.startswith(f"{root}/"):
            raise ForeignFile(f"{path} leads out of {root} by a link, to {real}")
        yield fd
    finally:
        os.close(fd)


def by_descriptor(fd: int) -> str:
    """A path that means what is open here."""
    return f"/proc/self/fd/{fd}"


def is_regular(fd: int) -> bool:
    return stat.S_ISREG(os.fstat(fd).st_mode)
