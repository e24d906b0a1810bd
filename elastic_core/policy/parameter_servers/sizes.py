"""What a job can hold, and which single units lead from there to more or to less.

A policy that moves unit by unit (AITurbo, HPDC 2021, section 4) needs no more of a job than this: a `Size`, its speed,
and its neighbours. `SlotSizes` is the ordinary job, data-parallel on slots of one type, whose unit is one slot: the
next allowed count. Speeds come from the fitted models (`predict.speed.throughput`) at the batch that the user asked
for.

The service of a size is AITurbo's common currency for GPUs and CPUs: `GPU_SERVICE` a second for a GPU, and
`PROCESS_SERVICE` for each worker or parameter server that runs on CPUs beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from elastic_core.domain import CPU, JobView
from elastic_core.policy.base.pool import Pool
from elastic_core.policy.base.queue import fitting_counts, held_type, usable_types, usual_batch
from elastic_core.predict.speed.efficiency import works_per_sample
from elastic_core.predict.speed.throughput import StepTime

GPU_SERVICE = 10.0
PROCESS_SERVICE = 5.0

Counts = tuple[tuple[str, int], ...]  # sorted by name
Room = Mapping[str, int]  # slots left by type


@dataclass(frozen=True, slots=True)
class Size:
    counts: Counts  # slots by type
    service_rate: float  # units of service a second
    roles: Counts = ()  # processes by role, of a job that has roles

    def fits(self, room: Room) -> bool:
        return all(count <= room.get(kind, 0) for kind, count in self.counts)

    def overfull(self, room: Room) -> frozenset[str]:
        """Types of which it needs more than there is room for."""
        return frozenset(kind for kind, count in self.counts if count > room.get(kind, 0))

    def count(self, kind: str) -> int:
        return dict(self.counts).get(kind, 0)

    @property
    def ranks(self) -> int:
        """Processes that share the batch: the workers where there are roles, else one a slot."""
        return dict(self.roles)["worker"] if self.roles else sum(count for _, count in self.counts)


def service_rate(counts: Mapping[str, int]) -> float:
    """Units of service a second of an ordinary job's slots: a worker each, and a GPU but on CPU slots."""
    return sum(n * (PROCESS_SERVICE if kind == CPU else GPU_SERVICE + PROCESS_SERVICE) for kind, n in counts.items())


class Sizes(Protocol):
    """The sizes of one job, as a graph: every edge is one unit."""

    job: JobView

    def starts(self, room: Room) -> Iterator[Size]:
        """The size that its user asked for, once for every type that it could run on, the preferred one first."""

    def larger(self, size: Size) -> Sequence[tuple[str, Size]]:
        """(unit, size with it) for every unit that can be added."""

    def smaller(self, size: Size) -> Sequence[tuple[str, Size]]:
        """(unit, size without it) for every unit that can be taken."""

    def elsewhere(self, size: Size) -> Sequence[Size]:
        """As much of the other types that it may use."""

    def speed(self, size: Size) -> float:
        """Work a second, in the unit of the job's remaining samples."""

    def held(self) -> Size | None:
        """What it holds, where that is one of its sizes."""


class SlotSizes:
    """Slots of one type; the unit is the step to the next allowed count."""

    def __init__(self, job: JobView, capacity: Mapping[str, int], pool: Pool) -> None:
        self.job = job
        self._kinds = usable_types(job, capacity)
        self._counts = fitting_counts(job)
        self._pool = pool
        self._speeds: dict[str, dict[int, float]] = {}

    def starts(self, room: Room) -> Iterator[Size]:
        own = held_type(self.job)
        requested = max((n for n in self._counts if n <= self.job.limits.requested_slots), default=self._counts[0])
        for kind in sorted(self._kinds, key=lambda kind: (kind != own, -room.get(kind, 0))):  # stable: the user's order
            most = max((n for n in self._counts if n <= min(requested, self._pool.capacity(kind))), default=None)
            if most is not None:
                yield _of_slots(kind, most)

    def larger(self, size: Size) -> Sequence[tuple[str, Size]]:
        ((kind, count),) = size.counts
        more = next((n for n in self._counts if n > count), None)
        fits = more is not None and more <= self._pool.capacity(kind)
        return [("slot", _of_slots(kind, more))] if more is not None and fits else []

    def smaller(self, size: Size) -> Sequence[tuple[str, Size]]:
        ((kind, count),) = size.counts
        less = max((n for n in self._counts if n < count), default=None)
        return [] if less is None else [("slot", _of_slots(kind, less))]

    def elsewhere(self, size: Size) -> Sequence[Size]:
        ((here, count),) = size.counts
        return [_of_slots(kind, count) for kind in self._kinds if kind != here and count <= self._pool.capacity(kind)]

    def speed(self, size: Size) -> float:
        ((kind, count),) = size.counts
        if kind not in self._speeds:
            self._speeds[kind] = self._all_speeds(kind)
        return self._speeds[kind][count]

    def held(self) -> Size | None:
        kind = held_type(self.job)
        count = self.job.allocation.num_slots if self.job.allocation is not None else 0
        is_a_size = kind in self._kinds and count in self._counts
        return _of_slots(kind, count) if kind is not None and is_a_size else None

    def _all_speeds(self, kind: str) -> dict[int, float]:
        job, limits = self.job, self.job.limits
        counts = [n for n in self._counts if n <= self._pool.capacity(kind)]
        slots = np.asarray(counts)
        batches = np.asarray([usual_batch(job, n) for n in counts])
        seconds = self._model.seconds(slots, self._pool.nodes_for(kind, slots), kind, batches, limits)
        works = works_per_sample(batches, limits.reference_batch, job.noise_scale, scale_invariant=job.scale_invariant)
        return dict(zip(counts, (batches / seconds * works).tolist(), strict=True))

    @cached_property
    def _model(self) -> StepTime:
        return StepTime.of(self.job.throughput, self.job.limits)


def _of_slots(kind: str, count: int) -> Size:
    return Size(counts=((kind, count),), service_rate=service_rate({kind: count}))
