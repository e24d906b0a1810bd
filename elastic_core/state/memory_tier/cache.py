"""The cache of one node: files of the jobs' latest checkpoints, whole, within one bound for all of them together.

Every file is a memfd, memory without a name, sealed against change: when this process ends, however it ends, nothing is
left. Room is reserved before a byte is written. What has no room is not cached; a job's older checkpoints make room for
its newer ones. Only bookkeeping: sockets are `cache_server`'s.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from elastic_core.errors import InfrastructureError
from elastic_core.state.memory_tier.cache_client import SEALS
from elastic_core.state.stores.paths import CheckpointPath

MOST_FILES = 1024  # of one job: each is a descriptor, however small, and those are of all jobs


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """One file of a checkpoint. `own`: written by a rank of this node, not a copy of another node's."""

    size: int
    fd: int
    own: bool


class Memory:
    """Files by job and key. Used by many threads. `now` is monotonic seconds; `limit` and all sizes are bytes.

    `spare`: how much the host has left, or the container.
    """

    def __init__(self, limit: int, now: Callable[[], float], spare: Callable[[], int]) -> None:
        self.limit = limit
        self._spare = spare
        self._now = now
        self._lock = threading.Lock()
        self._files: dict[str, dict[str, CacheEntry]] = {}
        self._newest: dict[str, str] = {}  # the checkpoint that each job committed last
        self._heard: dict[str, float] = {}  # when each job was last heard of
        self._used = 0  # cached and reserved

    @property
    def used(self) -> int:
        return self._used

    @property
    def empty(self) -> bool:
        return not self._heard and not self._used

    def reserve(self, job: str, uri: str, size: int, ahead: int = 0) -> int:
        """Room for `size` bytes more of a checkpoint, if there is some or can be made, and up to `ahead` more that are
        free; how many bytes were reserved."""
        with self._lock:
            self._heard[job] = self._now()
            if self._room() < size or len(self._files.get(job, ())) >= MOST_FILES:
                self._drop(job, lambda key: _uri(key) != uri)
            room = self._room()
            if room < size:
                return 0
            granted = min(size + ahead, room)
            self._used += granted
            return granted

    def release(self, size: int) -> None:
        """Reserved room that is not needed."""
        with self._lock:
            self._used -= size

    def keep(self, job: str, key: str, fd: int, own: bool) -> None:
        """Take over a file whose size is reserved. Raises `ValueError` as `sealed_size`, `InfrastructureError` for one
        too many; then it is the caller's."""
        size = sealed_size(fd)
        with self._lock:
            self._heard[job] = self._now()
            files = self._files.setdefault(job, {})
            if key not in files and len(files) >= MOST_FILES:
                raise InfrastructureError(
                    f"job {job} has {len(files)} files of this checkpoint in the memory of the node: no job has more"
                )
            before = files.pop(key, None)
            if before is not None:
                self._close(before)
            files[key] = CacheEntry(size, fd, own)

    def listed(self, job: str, uri: str, own: bool = False) -> dict[str, int]:
        """Sizes of the files of a checkpoint, by key; `own`: only of those that a rank of this node wrote."""
        with self._lock:
            files = self._files.get(job, {})
            return {key: entry.size for key, entry in files.items() if _uri(key) == uri and (entry.own or not own)}

    @contextmanager
    def opened(self, job: str, key: str) -> Iterator[int | None]:
        """A descriptor of the file, which stays good while it is dropped; None for what is not cached."""
        with self._lock:
            entry = self._files.get(job, {}).get(key)
            fd = os.dup(entry.fd) if entry is not None else None
            if fd is not None:
                self._heard[job] = self._now()
        try:
            yield fd
        finally:
            if fd is not None:
                os.close(fd)

    def committed(self, job: str, uri: str) -> None:
        """This checkpoint is the job's latest: older ones are dropped, one that is being written stays."""
        with self._lock:
            self._heard[job] = self._now()
            self._newest[job] = uri
            self._drop(job, lambda key: not _after(key, uri))

    def newest(self, job: str) -> str | None:
        with self._lock:
            return self._newest.get(job)

    def drop(self, job: str) -> None:
        with self._lock:
            self._forget(job)

    def only(self, jobs: Collection[str]) -> None:
        """These jobs are active; files of others are dropped."""
        with self._lock:
            for job in list(self._heard):
                if job in jobs:
                    self._heard[job] = self._now()
                else:
                    self._forget(job)

    def expire(self, seconds: float) -> None:
        """Drop the files of jobs that no request has named for so long."""
        with self._lock:
            for job, heard in list(self._heard.items()):
                if self._now() - heard > seconds:
                    self._forget(job)

    def _room(self) -> int:
        return min(self.limit - self._used, self._spare())

    def _forget(self, job: str) -> None:
        self._drop(job, lambda _: True)
        self._heard.pop(job, None)
        self._newest.pop(job, None)

    def _drop(self, job: str, which: Callable[[str], bool]) -> None:
        files = self._files.get(job, {})
        for key in [key for key in files if which(key)]:
            self._close(files.pop(key))
        if not files:
            self._files.pop(job, None)

    def _close(self, entry: CacheEntry) -> None:
        os.close(entry.fd)
        self._used -= entry.size


def sealed_size(fd: int) -> int:
    """Bytes of a file in memory that nobody can change any more. Raises `ValueError` for every other file."""
    try:
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    except OSError:  # it is no file in memory
        seals = 0
    if seals & SEALS != SEALS:
        raise ValueError("a file that is not sealed: its writer could still change it")
    return os.fstat(fd).st_size


def _uri(key: str) -> str:
    return key.rpartition("/")[0]


def _after(key: str, uri: str) -> bool:
    """Whether a file belongs to this checkpoint, or to a later one of its lineage."""
    path, other = CheckpointPath.parse(_uri(key)), CheckpointPath.parse(uri)
    if path is None or other is None or _uri(key) == uri:
        return _uri(key) == uri
    return path.lineage == other.lineage and path.step > other.step
