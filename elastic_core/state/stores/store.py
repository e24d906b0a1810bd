"""The contract of a checkpoint store: objects by key under one prefix, each visible whole or not at all.

`local_store` and `s3_store` keep it, and pass one contract suite (`tests/state/stores/test_stores.py`);
`memory_tier.cached_store` puts caches in front of either. No locks, no conditional writes: who may write is the
ledger's to say.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

# What `put` takes: bytes, a file to copy, or buffers that follow each other. Each is done with when the next is
# taken, so that an object larger than memory can be written, from one buffer that is filled again and again.
Source = bytes | Path | Iterable[memoryview]


@dataclass(frozen=True, slots=True)
class Entry:
    """An object, or an upload that was begun and never completed. `modified` is Unix time by the store's clock."""

    key: str
    size: int
    modified: float


@runtime_checkable
class Layered(Protocol):
    """A store that gives some objects from elsewhere, e.g. from memory."""

    def distrust(self, key: str, why: str) -> bool:
        """The object was found damaged: it is given from the store itself from now on. Whether it had not been before,
        so that reading it again may help."""


def distrusted(store: CheckpointStore, key: str, why: str) -> bool:
    """As `Layered.distrust`; False for a store that is no more than that."""
    return isinstance(store, Layered) and store.distrust(key, why)


def _uncounted(_num_bytes: int) -> None: ...


@dataclass(frozen=True, slots=True)
class HostFile:
    """An object as a file of this host that is open. `taken` is to be told how many of its bytes were used."""

    fd: int
    size: int
    taken: Callable[[int], None] = _uncounted

    def close(self) -> None:
        os.close(self.fd)


@runtime_checkable
class OnHost(Protocol):
    """A store whose objects, or some of them, are files of this host."""

    def host_file(self, key: str) -> HostFile | None:
        """The object, open, for the caller to close; None where it is no file here, or is not there at all. The file
        never changes: an object that is replaced is another file."""


def host_file(store: CheckpointStore, key: str) -> HostFile | None:
    """As `OnHost.host_file`; None for a store that is none."""
    return store.host_file(key) if isinstance(store, OnHost) else None


@runtime_checkable
class ListsLevels(Protocol):
    """A store that lists the first levels below a prefix without looking at what is below them."""

    def first_levels(self, prefix: str, levels: int, most: int | None) -> Iterable[Entry]:
        """Objects and unfinished uploads at most so many levels down, one folder after the other in no order. Of more
        than `most` files and folders only the first, with a warning."""


class CheckpointStore(Protocol):
    """Keys are relative, '/'-separated, without '..' (`UserError` otherwise). Raises `InfrastructureError` on faults.

    No part of a key is empty or starts with '.'. A prefix names the object of that key and all below it as a
    folder: "a" holds "a" and "a/b", not "ab"; "" holds everything. No key is a folder of another.
    """

    url: str

    def put(self, key: str, source: Source) -> None:
        """Once this returns, the object is durable and whole; before, it is not visible."""

    def get(self, key: str, offset: int = 0, length: int | None = None) -> bytes:
        """Fewer bytes than asked for at the object's end. Raises `FileNotFoundError` for a missing object."""

    def read_into(self, key: str, offset: int, buffers: Sequence[memoryview]) -> int:
        """Fill writable buffers one after another, from `offset` of the object on; the number of bytes filled.

        Fewer than the buffers hold at the object's end. Raises `FileNotFoundError` for a missing object.
        """

    def size(self, key: str) -> int | None: ...
    def list(self, prefix: str) -> Iterable[str]: ...
    def entries(self, prefix: str) -> Iterable[Entry]:
        """The objects under the prefix, sorted by key."""

    def unfinished(self, prefix: str) -> Iterable[Entry]:
        """Uploads under the prefix that never completed: what a killed writer leaves. `key` is what it was writing."""

    def delete(self, prefix: str) -> None:
        """Delete every object and unfinished upload under the prefix; nothing there is no error. Refuses ""."""
