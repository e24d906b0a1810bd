"""The sizes of a job that may have parameter servers on slots of its own: w workers and p servers, a slot each.

Workers are on slots of one type; servers on CPU slots, where the job may use them, else on the workers'. Two units lead
from one size to the next, a worker and a server; with `sync: either` replicas are sizes as well, and a server more
leads from them to workers with a server. Speeds are those of `predict.speed.throughput`, learnt from what the job
measured in either form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np

from elastic_core.domain import CPU, JobView, Layout
from elastic_core.policy.base.pool import Pool
from elastic_core.policy.base.queue import usual_batch
from elastic_core.policy.parameter_servers.sizes import Room, Size, service_rate
from elastic_core.predict.speed.efficiency import work_per_sample
from elastic_core.predict.speed.throughput import Ints, StepTime


def may_have_servers(job: JobView) -> bool:
    """Of a job that the runtime runs; those with `Limits.servers` are the simulator's."""
    return any(cut.servers for cut in job.limits.cuts)


class ServedSizes:
    """A job's `Sizes` over workers and servers, in the simplest layout of each number of servers."""

    def __init__(self, job: JobView, capacity: Mapping[str, int], pool: Pool) -> None:
        self.job = job
        self._capacity, self._pool = capacity, pool
        self._servers = tuple(sorted({cut.servers for cut in job.limits.cuts}))  # 0: replicas
        self._speeds: dict[Size, float] = {}

    def starts(self, room: Room) -> Iterator[Size]:
        own = self.held()
        kinds = self._kinds
        if own is not None:
            kinds.sort(key=lambda kind: kind != _worker_type(own))  # stable: the user's order
        limits = self.job.limits
        requested = [n for n in limits.slot_counts if n <= limits.requested_slots] or [limits.min_slots]
        for kind in kinds:
            by_count = (
                [size for size in (self._size(kind, layout) for layout in limits.layouts(count)) if size is not None]
                for count in reversed(requested)
            )
            if possible := next((sizes for sizes in by_count if sizes), None):
                yield max(possible, key=lambda size: (size.fits(room), self.speed(size)))

    def larger(self, size: Size) -> Sequence[tuple[str, Size]]:
        return self._beside(size, 1)

    def smaller(self, size: Size) -> Sequence[tuple[str, Size]]:
        return self._beside(size, -1)

    def elsewhere(self, size: Size) -> Sequence[Size]:
        """On workers of other types, and the other layouts of as many slots."""
        layout, kind = layout_of(size), _worker_type(size)
        moved = [self._size(other, layout) for other in self._kinds if other != kind]
        recut = [self._size(kind, other) for other in self.job.limits.layouts(layout.world_size) if other != layout]
        return [other for other in (*moved, *recut) if other is not None]

    def speed(self, size: Size) -> float:
        if size not in self._speeds:
            layout, limits = layout_of(size), self.job.limits
            batch, kind = usual_batch(self.job, layout.world_size), _worker_type(size)
            slots: Ints = np.asarray([layout.world_size])
            nodes = int(self._pool.nodes_for(kind, slots)[0])
            worth = work_per_sample(
                batch, limits.reference_batch, self.job.noise_scale, scale_invariant=self.job.scale_invariant
            )
            self._speeds[size] = batch / self._model.seconds_in(layout, nodes, kind, batch, limits) * worth
        return self._speeds[size]

    def held(self) -> Size | None:
        allocation = self.job.allocation
        if allocation is None:
            return None
        return self._size(allocation.slots[0].type, allocation.layout)

    @property
    def _kinds(self) -> list[str]:
        """Types that workers may be on, the user's order: the whole pool has room for the servers beside them."""
        allowed = self.job.limits.types or tuple(sorted(self._capacity))
        return [kind for kind in allowed if self._capacity.get(kind, 0)]

    @cached_property
    def _model(self) -> StepTime:
        return StepTime.of(self.job.throughput, self.job.limits)

    def _beside(self, size: Size, one: int) -> list[tuple[str, Size]]:
        layout, kind = layout_of(size), _worker_type(size)
        found = [("worker", self._size(kind, layout.over(layout.data + one)))]
        servers = next((n for n in self._servers[::one] if (n - layout.servers) * one > 0), None)
        if servers is not None:
            found.append(("server", self._size(kind, Layout(data=layout.data, servers=servers))))
        return [(unit, other) for unit, other in found if other is not None]

    def _size(self, kind: str, layout: Layout) -> Size | None:
        """None for what the job may not have, or the pool cannot hold."""
        limits = self.job.limits
        known = layout.world_size in limits.slot_counts and layout in limits.layouts(layout.world_size)
        if layout.data < 1 or not known or layout.world_size > limits.max_batch:
            return None
        beside = kind if limits.types and CPU not in limits.types else CPU
        counts = {kind: layout.data}
        if layout.servers:
            counts[beside] = counts.get(beside, 0) + layout.servers
        if any(count > self._capacity.get(of, 0) for of, count in counts.items()):
            return None
        roles = (("server", layout.servers), ("worker", layout.data)) if layout.servers else ()
        return Size(tuple(sorted(counts.items())), service_rate(counts), roles)


def layout_of(size: Size) -> Layout:
    processes = dict(size.roles)
    return Layout(data=size.ranks, servers=processes.get("server", 0))


def _worker_type(size: Size) -> str:
    """The type that is not the servers' where there are two."""
    kinds = [kind for kind, _ in size.counts]
    return next((kind for kind in kinds if kind != CPU), CPU)
