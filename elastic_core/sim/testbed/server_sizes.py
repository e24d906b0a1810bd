"""The sizes of a job over parameter servers: w workers on g GPUs, p servers of s cores each.

Four units lead from one to the next, as in AITurbo (HPDC 2021, section 4): a worker with its GPU, a server, a CPU
share (one core for every server), and a GPU for workers that share one. Their worth comes from the step time that is
fitted to the job's own measurements (`predict.speed.parameter_server`). Such jobs exist in the simulator only; those
that the runtime runs have a slot for each process (`policy.parameter_servers.served_sizes`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import exp

from elastic_core.domain import CPU, JobView, ProfilePoint, Roles, ServerLimits
from elastic_core.policy.base.queue import usual_batch
from elastic_core.policy.parameter_servers.sizes import GPU_SERVICE, PROCESS_SERVICE, Room, Size
from elastic_core.predict.speed.parameter_server import ParameterServerTime, PsPoint, fit

CORE_SERVICE = PROCESS_SERVICE / 5.0  # a process has five cores, unless its share is changed
# AITurbo measured a server's speed on x cores as a exp(-b x) + d, with b between 1.4 and 4.3 and a near -d.
_CURVE = 2.0
# A worker on the share u of a GPU runs at u^x. AITurbo measured passes that hardly suffer (x = 0.25: a step waits for
# other things than the GPU) and passes that suffer more than their share (1.8); in the middle two workers do more.
SHARING = 0.75
_SHARINGS = (0.25, 0.5, 0.75, 1.0, 1.4, 1.8)


@dataclass(frozen=True, slots=True)
class Shape:
    workers: int
    servers: int
    gpus: int
    server_cores: int

    def size(self, limits: ServerLimits) -> Size:
        cores = self.workers * limits.worker_cores + self.servers * self.server_cores
        counts = {CPU: cores, "gpu": self.gpus}
        return Size(
            counts=tuple(sorted(counts.items())),
            service_rate=service_rate_of_cores(counts),
            roles=(("server", self.servers), ("worker", self.workers)),
        )


def service_rate_of_cores(counts: Mapping[str, int]) -> float:
    """Units of service a second: ten a GPU, five for each process with its usual five cores."""
    return GPU_SERVICE * counts.get("gpu", 0) + CORE_SERVICE * counts.get(CPU, 0)


class ServerSizes:
    """A job's `Sizes` over parameter servers."""

    def __init__(self, job: JobView) -> None:
        assert job.limits.servers is not None
        self.job = job
        self.limits = job.limits.servers
        self.model, self._sharing = shared_step_time(job.profile)

    def starts(self, room: Room) -> Iterator[Size]:
        if room.get("gpu", 0) and room.get(CPU, 0):
            yield self.requested.size(self.limits)

    @property
    def requested(self) -> Shape:
        limits = self.limits
        return Shape(
            limits.requested_workers, limits.requested_servers, limits.requested_workers, limits.requested_server_cores
        )

    def larger(self, size: Size) -> Sequence[tuple[str, Size]]:
        current, limits = self.shape(size), self.limits
        larger_shapes = []
        if current.workers < limits.max_workers:
            larger_shapes.append(("worker", replace(current, workers=current.workers + 1, gpus=current.gpus + 1)))
            larger_shapes.append(("worker on the same GPUs", replace(current, workers=current.workers + 1)))
        if current.servers < limits.max_servers:
            larger_shapes.append(("server", replace(current, servers=current.servers + 1)))
        if current.server_cores < limits.max_server_cores:
            larger_shapes.append(("CPU share", replace(current, server_cores=current.server_cores + 1)))
        if current.gpus < current.workers:
            larger_shapes.append(("GPU", replace(current, gpus=current.gpus + 1)))
        return [(unit, shape.size(limits)) for unit, shape in larger_shapes]

    def smaller(self, size: Size) -> Sequence[tuple[str, Size]]:
        current, limits = self.shape(size), self.limits
        smaller_shapes = []
        if current.workers > 1:
            smaller_shapes.append(
                ("worker", replace(current, workers=current.workers - 1, gpus=max(1, current.gpus - 1)))
            )
        if current.workers > current.gpus:
            smaller_shapes.append(("worker on the same GPUs", replace(current, workers=current.workers - 1)))
        if current.servers > 1:
            smaller_shapes.append(("server", replace(current, servers=current.servers - 1)))
        if current.server_cores > 1:
            smaller_shapes.append(("CPU share", replace(current, server_cores=current.server_cores - 1)))
        if current.gpus > 1:
            smaller_shapes.append(("GPU", replace(current, gpus=current.gpus - 1)))
        return [(unit, shape.size(limits)) for unit, shape in smaller_shapes]

    def elsewhere(self, size: Size) -> Sequence[Size]:  # noqa: ARG002 - there is one type of GPU
        return []

    def speed(self, size: Size) -> float:
        shape = self.shape(size)
        batch = usual_batch(self.job, shape.workers)
        servers = shape.servers * server_speed(shape.server_cores)
        speed = worker_speed(shape.gpus / shape.workers, self._sharing)
        return self.model.samples_per_second(shape.workers, servers, batch, speed)

    def held(self) -> Size | None:
        allocation = self.job.allocation
        if allocation is None or not allocation.roles:
            return None
        counts = allocation.counts()
        shape = shape_of(tuple(counts.items()), allocation.roles, self.limits)
        return shape.size(self.limits)

    def shape(self, size: Size) -> Shape:
        return shape_of(size.counts, size.roles, self.limits)


def shape_of(counts: Sequence[tuple[str, int]], roles: Roles, limits: ServerLimits) -> Shape:
    slots, processes = dict(counts), dict(roles)
    workers, servers = processes["worker"], processes["server"]
    cores = (slots[CPU] - workers * limits.worker_cores) // servers
    return Shape(workers, servers, slots["gpu"], max(1, cores))


def server_speed(cores: float) -> float:
    """Of a server, relative to one on a single core: push, pull and update all go through its CPUs."""
    return (1.0 - exp(-_CURVE * cores)) / (1.0 - exp(-_CURVE))


def worker_speed(share: float, sharing: float) -> float:
    """Of a worker on this share of a GPU, relative to one that has it for itself."""
    return float(share**sharing)


def step_time(profile: tuple[ProfilePoint, ...]) -> ParameterServerTime:
    """Fitted to those of the points that were measured over parameter servers; the prior where there are none."""
    return shared_step_time(profile)[0]


@lru_cache(maxsize=4096)
def shared_step_time(profile: tuple[ProfilePoint, ...]) -> tuple[ParameterServerTime, float]:
    """(step time, how its workers share a GPU): the exponent that explains the points best, the usual one where
    nobody shared."""
    points = [point for point in profile if point.roles]
    if all(point.num_slots >= dict(point.roles)["worker"] for point in points):
        return fit([_ps_point(point, SHARING) for point in points]), SHARING
    candidates = [(fit([_ps_point(point, sharing) for point in points]), sharing) for sharing in _SHARINGS]
    return min(candidates, key=lambda candidate: (candidate[0].relative_error, abs(candidate[1] - SHARING)))


def _ps_point(point: ProfilePoint, sharing: float) -> PsPoint:
    processes = dict(point.roles)
    return PsPoint(
        workers=processes["worker"],
        servers=processes["server"] * server_speed(point.server_cores),
        global_batch=point.global_batch,
        step_seconds=point.step_seconds,
        worker_speed=worker_speed(point.num_slots / processes["worker"], sharing),
        compute_seconds=point.step_seconds - point.sync_seconds,
        count=point.count,
    )
