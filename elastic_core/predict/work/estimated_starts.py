"""When jobs that wait may start, if who has slots keeps them until its forecast end and nobody else arrives.

Waiting jobs are gone through in their order. Each starts on its fewest slots, of the type where these are free first,
no earlier than those before it of that type, and is done after its own expected time. One for which not enough slots
are ever known to be free has no estimate, and is passed over. An elastic policy shrinks jobs to start others, so that a
job may well start earlier.

Each release of slots is looked at as often as a job needs slots at most, never once for each job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush


@dataclass(frozen=True, slots=True)
class SlotsFreed:
    at: float  # Unix seconds
    type: str
    count: int


@dataclass(frozen=True, slots=True)
class WaitingJob:
    job_id: str
    needs: int  # slots of one type
    types: tuple[str, ...]
    seconds: float | None  # that it trains once it has them; None: not known


@dataclass(slots=True)
class _TypePool:
    """Slots of one type; `free` are at `clock`."""

    clock: float
    free: int
    to_come: list[tuple[float, int]] = field(default_factory=list)  # a heap: when, and how many slots
    known: int = 0  # free and to come

    def release(self, at: float, count: int) -> None:
        heappush(self.to_come, (at, count))
        self.known += count

    def start(self, needs: int) -> float | None:
        """When so many are free; what has come until then is free at that clock."""
        if self.known < needs:
            return None
        at, free, seen = self.clock, self.free, list[tuple[float, int]]()
        while free < needs:
            seen.append(heappop(self.to_come))
            at, free = max(at, seen[-1][0]), free + seen[-1][1]
        for release in seen:
            heappush(self.to_come, release)
        return at

    def take(self, at: float, needs: int) -> None:
        while self.free < needs:
            self.free += heappop(self.to_come)[1]
        self.clock, self.free, self.known = at, self.free - needs, self.known - needs


def estimated_starts(
    now: float, free: Mapping[str, int], releases: Iterable[SlotsFreed], queue: Sequence[WaitingJob]
) -> dict[str, float]:
    """Unix seconds by job; absent where no estimate can be made. `free`: slots that nobody is to have, by type."""
    pools = {kind: _TypePool(now, count, known=count) for kind, count in free.items()}
    for release in releases:
        if release.type in pools:
            pools[release.type].release(max(release.at, now), release.count)
    starts = {}
    for job in queue:
        times = {kind: at for kind in job.types if kind in pools and (at := pools[kind].start(job.needs)) is not None}
        if not times:
            continue
        kind = min(times, key=lambda kind: times[kind])  # the first of equals
        starts[job.job_id] = times[kind]
        pools[kind].take(times[kind], job.needs)
        if job.seconds is not None:
            pools[kind].release(times[kind] + job.seconds, job.needs)
    return starts
