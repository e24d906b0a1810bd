"""What the workers of a group print: a file each in the run dir, read in parts and held to a size.

Positions are bytes from the beginning of all that a worker has printed, and stay true for its life: a file that grows
over its size gives its oldest blocks back to the file system (a hole), so that nothing is renamed or written again
under a worker's feet, and no line between two looks is lost. Standard library only: see `launch.agent`.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

BLOCK = 4096  # holes begin and end at whole blocks
_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02  # linux/falloc.h


@dataclass(frozen=True, slots=True)
class LogPart:
    """A stretch of what one worker has printed, in whole lines where it has ended any."""

    text: str
    start: int  # position of its first byte
    end: int  # where to read on
    size: int  # bytes that were printed so far
    left_out: int = 0  # bytes before `start` that were asked for, and are kept no more


NOTHING = LogPart("", 0, 0, 0)


class WorkerLog(Protocol):
    """What one worker prints, wherever that lies."""

    @property
    def name(self) -> str:
        """That of no other worker of its group."""

    def read(self, after: int | None, most: int, most_lines: int | None = None) -> LogPart:
        """As `read_part`. Raises `InfrastructureError` where it cannot be read now."""


@dataclass(frozen=True, slots=True)
class FileLog:
    """In a file of this host."""

    name: str
    path: Path

    def read(self, after: int | None, most: int, most_lines: int | None = None) -> LogPart:
        return read_part(self.path, after, most, most_lines)


def read_part(path: Path, after: int | None, most: int, most_lines: int | None = None) -> LogPart:
    """At most `most` bytes, and so many lines, from position `after`; None: the last ones. A file that is not there has
    nothing in it.

    A last line that is not ended is left for later, unless nothing else is there to give.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            first = _first_kept(file.fileno(), size)
            wanted = max(0, size - most) if after is None else min(after, size)
            start = max(first, wanted)
            data = os.pread(file.fileno(), most, start)
    except FileNotFoundError:
        return NOTHING
    return whole_lines(data, start, wanted, size, from_end=after is None, most_lines=most_lines)


def whole_lines(
    data: bytes, start: int, wanted: int, size: int, *, from_end: bool, most_lines: int | None = None
) -> LogPart:
    """What was read from position `start` on, where it was asked for from `wanted` on, or for the end."""
    if start > 0 and (from_end or start > wanted):  # somewhere in a line
        cut = data.find(b"\n") + 1
        start, data = start + cut, data[cut:]
    left_out = 0 if from_end else start - wanted
    ended = data.rfind(b"\n") + 1
    data = data[: ended or len(data)]
    if most_lines is not None:
        kept = _cut(data, most_lines, from_end)
        start, data = start + (len(data) - len(kept) if from_end else 0), kept
    return LogPart(data.decode(errors="replace"), start, start + len(data), size, left_out)


def _cut(data: bytes, most_lines: int, from_end: bool) -> bytes:
    """The first or the last lines, of those that are ended."""
    if from_end:
        head, *lines = data.rsplit(b"\n", most_lines + 1)
        return data[len(head) + 1 :] if len(lines) > most_lines else data
    return data[: len(data) - len(b"".join(data.split(b"\n", most_lines)[most_lines:]))]


def hold_to(path: Path, most: int) -> bool:
    """Give the oldest half of what a file takes on disk back once that is over `most` bytes. True: some was given.

    Raises `OSError` (`EOPNOTSUPP`) where the file system knows no holes.
    """
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if status.st_blocks * 512 <= most:
            return False
        end = max(0, status.st_size - most // 2) // BLOCK * BLOCK
        if end == 0:
            return False
        if _libc().fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(end)) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), str(path))
        return True
    finally:
        os.close(fd)


def _first_kept(fd: int, size: int) -> int:
    """Position of the first byte that is no hole."""
    if size == 0:
        return 0
    try:
        return os.lseek(fd, 0, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:  # nothing but a hole
            return size
        raise


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(ctypes.util.find_library("c") or "libc.so.6", use_errno=True)
