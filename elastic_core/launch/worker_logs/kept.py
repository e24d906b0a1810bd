"""The ends of what a group's ranks have printed, in the store: for logs that go with the node on which they lie.

One object a rank, `_logs/<namespace>/<origin epoch>/rank<rank>.log`: a line that says at which position the rest
begins, then that. No job reads or writes there: its id begins with a letter or a digit.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from elastic_core.launch.worker_logs.parts import LogPart, whole_lines
from elastic_core.settings import Settings
from elastic_core.state.stores.store import CheckpointStore
from elastic_core.state.stores.store_urls import open_store

FOLDER = "_logs"
MOST_BYTES = 2**20  # of each rank
_KEY = re.compile(rf"{FOLDER}/.+/[0-9]+/rank([0-9]+)\.log")


@dataclass(frozen=True, slots=True)
class KeptLogs:
    """Of the groups of one installation, by its Ray namespace."""

    store: CheckpointStore
    namespace: str

    @staticmethod
    def of(settings: Settings) -> KeptLogs:
        return KeptLogs(open_store(settings.store_url(), endpoint=settings.s3_endpoint), settings.ray_namespace)

    def keep(self, origin_epoch: int, logs: Mapping[int, Path]) -> None:
        """The end of each rank's log. Raises `InfrastructureError` where the store is away."""
        for rank, path in logs.items():
            if path.exists():
                self.store.put(self._key(origin_epoch, rank), _packed(path))

    def ranks(self, origin_epoch: int) -> int:
        """One more than the last of which something is kept; 0 for none."""
        found = (_KEY.fullmatch(key) for key in self.store.list(self._folder(origin_epoch)))
        return max((int(match[1]) + 1 for match in found if match), default=0)

    def keeps(self, origin_epoch: int, rank: int) -> bool:
        return self.store.size(self._key(origin_epoch, rank)) is not None

    def log_of(self, origin_epoch: int, rank: int) -> KeptLog:
        return KeptLog(self._key(origin_epoch, rank), self.store)

    def remove_old(self, before: float) -> int:
        """What was kept before this instant (Unix seconds, by the store's clock); how many."""
        old = [entry.key for entry in self.store.entries(f"{FOLDER}/{self.namespace}") if entry.modified < before]
        for key in old:
            self.store.delete(key)
        return len(old)

    def _key(self, origin_epoch: int, rank: int) -> str:
        return f"{self._folder(origin_epoch)}/rank{rank}.log"

    def _folder(self, origin_epoch: int) -> str:
        return f"{FOLDER}/{self.namespace}/{origin_epoch}"


@dataclass(frozen=True, slots=True)
class KeptLog:
    """A `WorkerLog`. What was printed before its end is kept no more."""

    name: str
    store: CheckpointStore = field(repr=False)

    def read(self, after: int | None, most: int, most_lines: int | None = None) -> LogPart:
        """As `parts.read_part`. Raises `FileNotFoundError` where nothing is kept."""
        head, _, data = self.store.get(self.name).partition(b"\n")
        first = int(json.loads(head)["from"])
        size = first + len(data)
        wanted = max(0, size - most) if after is None else min(after, size)
        start = max(first, wanted)
        return whole_lines(
            data[start - first :][:most], start, wanted, size, from_end=after is None, most_lines=most_lines
        )


def _packed(path: Path) -> bytes:
    """A hole, where the oldest was given back to the file system, reads as zeros, which are no text."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        data = os.pread(file.fileno(), MOST_BYTES, max(0, size - MOST_BYTES))
    kept = data.lstrip(b"\0")
    return json.dumps({"from": max(0, size - MOST_BYTES) + len(data) - len(kept)}).encode() + b"\n" + kept
