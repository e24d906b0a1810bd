"""How much memory processes hold together, over time. Shared memory counts for each of them that has touched it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

EVERY_SECONDS = 0.02
COUNTED = ("RssAnon:", "RssShmem:")  # without files that are mapped: libraries


class MemoryWatch:
    """`pids` may be replaced while it looks."""

    def __init__(self) -> None:
        self.pids: tuple[int, ...] = ()
        self._seen: list[tuple[float, int]] = []
        self._over = threading.Event()

    @contextmanager
    def looking(self) -> Iterator[None]:
        thread = threading.Thread(target=self._look, daemon=True)
        thread.start()
        yield
        self._over.set()
        thread.join()

    def most_bytes(self, since: float, until: float) -> int:
        """At once, over all of them, between two instants (Unix seconds); 0 where nothing was seen."""
        return max((size for at, size in self._seen if since <= at <= until), default=0)

    def _look(self) -> None:
        while not self._over.wait(EVERY_SECONDS):
            self._seen.append((time.time(), sum(map(_held, self.pids))))


def _held(pid: int) -> int:
    with suppress(FileNotFoundError, ProcessLookupError):
        lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return sum(int(line[1]) for line in lines if line and line[0] in COUNTED) << 10
    return 0
