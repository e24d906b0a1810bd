"""What the tree is made of: folders that know their children, files that are read by ranges. Nothing is read early."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from elastic_core.state.stores.store import CheckpointStore


class File(ABC):
    """`size` costs no reading where it can be known without."""

    @property
    @abstractmethod
    def size(self) -> int: ...

    @abstractmethod
    def read(self, start: int, end: int) -> bytes:
        """Bytes [start, end), which lie within the file."""


@dataclass(frozen=True)
class Folder:
    """`names` is what a listing shows. `child` finds more than that: what is named, and not listed for its number.

    `child` gives None for what is not there. `modified` is Unix time, 0.0 where nobody knows. A folder that is not
    `sure` is there only if it holds something: its parent gave it without looking.
    """

    names: Callable[[], Iterable[str]]
    child: Callable[[str], Node | None]
    modified: float = 0.0
    sure: bool = True


Node = File | Folder


class Made(File):
    """Content that is small and made when it is asked for, once."""

    def __init__(self, make: Callable[[], bytes]) -> None:
        self._make = make

    @cached_property
    def _content(self) -> bytes:
        return self._make()

    @property
    def size(self) -> int:
        return len(self._content)

    def read(self, start: int, end: int) -> bytes:
        return self._content[start:end]


class Stored(File):
    """An object of the store, byte for byte."""

    def __init__(self, store: CheckpointStore, key: str, size: int) -> None:
        self._store, self._key, self._size = store, key, size

    @property
    def size(self) -> int:
        return self._size

    def read(self, start: int, end: int) -> bytes:
        return self._store.get(self._key, start, end - start) if end > start else b""


def folder(entries: Mapping[str, Callable[[], Node]], modified: float = 0.0) -> Folder:
    """A folder of known children, each made when it is asked for."""

    def child(name: str) -> Node | None:
        make = entries.get(name)
        return None if make is None else make()

    return Folder(lambda: entries, child, modified)


def json_file(make: Callable[[], Any]) -> Made:
    return Made(lambda: json.dumps(make(), indent=1).encode() + b"\n")
