"""What processes hold and use together, over time: memory (what is shared counts for each of them that has touched it)
and processor time, which neighbours on the machine disturb least."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

EVERY_SECONDS = 0.02
COUNTED = ("RssAnon:", "RssShmem:")  # without files that are mapped: libraries


class ProcessWatch:
    """`pids` may be replaced while it looks; what a process used until it ended stays counted."""

    def __init__(self) -> None:
        self.pids: tuple[int, ...] = ()
        self._seen: list[tuple[float, int, float]] = []  # instant, bytes, CPU-seconds since the start
        self._used: dict[int, float] = {}
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
        return max((size for at, size, _ in self._seen if since <= at <= until), default=0)

    def cpu_seconds(self, since: float, until: float) -> float:
        """Of all of them, between two instants."""
        used = [cpu for at, _, cpu in self._seen if since <= at <= until]
        return used[-1] - used[0] if used else 0.0

    def _look(self) -> None:
        while not self._over.wait(EVERY_SECONDS):
            held = sum(map(_held, self.pids))
            self._used |= {pid: cpu for pid in self.pids if (cpu := _used(pid)) is not None}
            self._seen.append((time.time(), held, sum(self._used.values())))


def _held(pid: int) -> int:
    with suppress(FileNotFoundError, ProcessLookupError):
        lines = (line.split() for line in Path(f"/proc/{pid}/status").read_text().splitlines())
        return sum(int(line[1]) for line in lines if line and line[0] in COUNTED) << 10
    return 0


def _used(pid: int) -> float | None:
    with suppress(FileNotFoundError, ProcessLookupError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return None
