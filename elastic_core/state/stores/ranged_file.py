"""A file object over something that is read by ranges: an object of a store, a file of the virtual file system.

For libraries that want a file (pyarrow, tarfile). No buffering, no read-ahead: each read is one ranged request.
"""

from __future__ import annotations

import errno
import io
from collections.abc import Callable
from typing import Any

from elastic_core.state.stores.store import CheckpointStore


class RangedFile(io.RawIOBase):
    """`read(start, end)` gives the bytes [start, end), which lie within the file. Each read is one call of it."""

    def __init__(self, size: int, read: Callable[[int, int], bytes]) -> None:
        self.size, self._read, self._at = size, read, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.size}[whence]
        if start + offset < 0:
            raise OSError(errno.EINVAL, f"Byte {start + offset} is before the file's first.")
        self._at = start + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = self._take(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        return self._take(self.size)

    def _take(self, length: int) -> bytes:
        start = min(self._at, self.size)
        data = self._read(start, min(start + length, self.size))
        self._at = start + len(data)
        return data


def open_ranged(store: CheckpointStore, key: str, size: int) -> RangedFile:
    """An object as a file. The store's reads are tried again as the store does."""
    return RangedFile(size, lambda start, end: store.get(key, start, end - start) if end > start else b"")
