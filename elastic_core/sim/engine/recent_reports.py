"""The latest reports of a simulated job, in runs of equal ones: what thousands of single reports would say, at the cost
of a few. `snapshot.job_reports` defines what they are summed up to."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class RecentReports(Generic[T]):
    """At most `most` reports; the oldest are forgotten."""

    def __init__(self, most: int) -> None:
        self._most, self._total = most, 0
        self._runs: deque[tuple[T, int]] = deque()  # the oldest first
        self.counts: dict[T, int] = {}

    def add(self, value: T, count: int) -> None:
        """`count` reports more that say `value`."""
        if self._runs and self._runs[-1][0] == value:
            self._runs[-1] = (value, self._runs[-1][1] + count)
        else:
            self._runs.append((value, count))
        self.counts[value] = self.counts.get(value, 0) + count
        self._total += count
        while self._total > self._most:
            self._forget(self._total - self._most)

    def _forget(self, count: int) -> None:
        """Up to so many of the oldest."""
        value, reports = self._runs.popleft()
        forgotten = min(reports, count)
        if reports > forgotten:
            self._runs.appendleft((value, reports - forgotten))
        self._total -= forgotten
        self.counts[value] -= forgotten
        if not self.counts[value]:
            del self.counts[value]
