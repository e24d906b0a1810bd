"""All the forms that a job over parameter servers can have and that pay: w workers on g GPUs, p servers of s cores.

Of a number of GPUs only those forms are kept that no form with as few cores is as fast as (and the one that the job
holds, so that it can stay what it is): a few dozen instead of many hundreds. Speeds are
`sim.testbed.server_sizes`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from elastic_core.domain import JobView, ProfilePoint, ServerLimits
from elastic_core.policy.base.queue import usual_batch
from elastic_core.predict.speed.throughput import Floats, Ints
from elastic_core.sim.testbed.server_sizes import (
    Shape,
    server_speed,
    shape_of,
    shared_step_time,
    worker_speed,
)

LEAST_FASTER = 1.01  # what more cores have to bring to be a form of their own


@dataclass(frozen=True)
class Forms:
    """Parallel arrays; empty where the pool cannot hold a worker and a server."""

    shapes: tuple[Shape, ...]
    gpus: Ints
    cores: Ints
    speed: Floats  # samples a second


def forms_of(job: JobView, gpus: int, cores: int) -> Forms:
    """Of a job with servers, on a pool of so many GPUs and CPU cores."""
    limits = job.limits.servers
    assert limits is not None
    return _forms(job.profile, limits, usual_batch(job, 1), held_shape(job), gpus, cores)


def held_shape(job: JobView) -> Shape | None:
    allocation, limits = job.allocation, job.limits.servers
    if allocation is None or not allocation.roles or limits is None:
        return None
    return shape_of(tuple(allocation.counts().items()), allocation.roles, limits)


@lru_cache(maxsize=4096)
def _forms(
    profile: tuple[ProfilePoint, ...], limits: ServerLimits, batch: int, held: Shape | None, gpus: int, cores: int
) -> Forms:
    shapes = _all_shapes(limits, gpus, cores)
    workers, servers, num_gpus, server_cores = (
        np.asarray([getattr(shape, name) for shape in shapes], dtype=np.int64)
        for name in ("workers", "servers", "gpus", "server_cores")
    )
    num_cores = workers * limits.worker_cores + servers * server_cores
    model, sharing = shared_step_time(profile)
    of_server = np.asarray([server_speed(n) for n in range(limits.max_server_cores + 1)])
    of_worker = np.asarray([worker_speed(g / w, sharing) for g, w in zip(num_gpus, workers, strict=True)])
    speed = np.asarray(
        [
            model.samples_per_second(w, p * server_speedup, batch, speed_of_worker)
            for w, p, server_speedup, speed_of_worker in zip(
                workers, servers, of_server[server_cores], of_worker, strict=True
            )
        ]
    )
    rows = [
        row for number in range(1, gpus + 1) for row in _front(np.flatnonzero(num_gpus == number), num_cores, speed)
    ]
    rows += [row for row, shape in enumerate(shapes) if shape == held and row not in rows]
    return Forms(tuple(shapes[row] for row in rows), num_gpus[rows], num_cores[rows], speed[rows])


def _front(rows: Ints, num_cores: Ints, speed: Floats) -> list[int]:
    """Of these rows, by cores, those that are faster than everything with fewer cores."""
    front: list[int] = []
    best = 0.0
    for row in rows[np.lexsort((-speed[rows], num_cores[rows]))]:
        if speed[row] > LEAST_FASTER * best:
            best = float(speed[row])
            front.append(int(row))
    return front


@lru_cache(maxsize=64)
def _all_shapes(limits: ServerLimits, gpus: int, cores: int) -> tuple[Shape, ...]:
    return tuple(
        Shape(workers, servers, on_gpus, server_cores)
        for workers in range(1, limits.max_workers + 1)
        for on_gpus in range(1, min(workers, gpus) + 1)
        for servers in range(1, limits.max_servers + 1)
        for server_cores in range(1, limits.max_server_cores + 1)
        if workers * limits.worker_cores + servers * server_cores <= cores
    )
