"""The truth for policies that may be told it: what published simulators gave to `optimus` (Pollux, OSDI 2021 artefact).

Never used by a policy of the product: it reads the physics that only the simulator has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np

from elastic_core.domain import JobView, Limits
from elastic_core.policy.base.pool import Pool
from elastic_core.policy.plans.packing import place
from elastic_core.policy.task_memory.type_speeds import Ratios
from elastic_core.predict.speed.throughput import Floats, Ints
from elastic_core.sim.ground_truth.physics import Physics, gain, split
from elastic_core.sim.ground_truth.workload import SimJob, Workload


class TrueOptimus:
    """`baselines.optimus.Knowledge`: true step times, and true steps, counted from the end of the current epoch."""

    def __init__(self, workload: Workload) -> None:
        self._jobs = {job.job_id: job for job in workload.jobs}
        self._seconds: dict[tuple[int, str, int, int], float] = {}

    def steps(self, job: JobView, batch: int) -> float:
        physics = self._jobs[job.job_id].physics
        starts = [0.0, *physics.epoch_ends]
        steps_left = [
            (end - start) / (physics.base_batch * gain(physics, batch, epoch))
            for epoch, (start, end) in enumerate(pairwise(starts))
            if end > job.done_samples
        ]
        return sum(steps_left[1:]) or 1.0

    def seconds(self, job: JobView, kind: str, counts: Sequence[int], pool: Pool, batch: int) -> Sequence[float]:
        sim_job = self._jobs[job.job_id]
        return [self._at(sim_job, kind, count, pool, batch) for count in counts]

    def _at(self, job: SimJob, kind: str, count: int, pool: Pool, batch: int) -> float:
        key = (id(job.physics), kind, count, batch)
        if key not in self._seconds:
            free = {str(rank): size for rank, size in enumerate(pool.sizes[kind])}
            nodes = tuple(place(free, count).values())
            self._seconds[key] = _true_seconds(job.physics, kind, nodes, batch, job.limits.max_batch)
        return self._seconds[key]


def _true_seconds(physics: Physics, kind: str, nodes: tuple[int, ...], batch: int, max_batch: int) -> float:
    share = split(batch, sum(nodes), physics.max_local(kind, nodes), max_batch)
    return physics.seconds(kind, nodes, share.local, share.accumulation)[0]


class TrueSpeeds:
    """`base.speeds.Speeds`: one slot at its largest micro-batch, as Sia's artefact compares types (SOSP 2023)."""

    def __init__(self, workload: Workload) -> None:
        self._jobs = {job.job_id: job for job in workload.jobs}

    def ratio(self, job: JobView, of: str, to: str, learnt: Ratios) -> float:  # noqa: ARG002 - nothing to learn
        physics = self._jobs[job.job_id].physics
        return _one_slot(physics, of) / _one_slot(physics, to)


def _one_slot(physics: Physics, kind: str) -> float:
    local = physics.max_local(kind, (1,))
    return local / physics.seconds(kind, (1,), local, 1)[0]


@dataclass(frozen=True, slots=True)
class TrueTimes:
    """`saxena.scalability.StepSeconds`: what a perfect profile of the job would hold, on nodes that are empty."""

    physics: Physics
    max_batch: int

    def seconds(self, num_slots: Ints, kind: str, batches: Ints, pool: Pool, limits: Limits) -> Floats:  # noqa: ARG002
        return np.asarray(
            [
                self._seconds(kind, _on_empty_nodes(pool.sizes[kind], count), batch)
                for count, batch in zip(num_slots.tolist(), batches.tolist(), strict=True)
            ]
        )

    def _seconds(self, kind: str, nodes: tuple[int, ...], batch: int) -> float:
        """Of as many samples as were asked for: what really runs may be a few more or less."""
        share = split(batch, sum(nodes), _max_local(self.physics, kind, nodes), self.max_batch)
        return self.physics.seconds(kind, nodes, share.local, share.accumulation)[0] * batch / share.batch


class TrueProfiles:
    """`policy.saxena.scalability.Profiler`: every job as if it had been profiled completely before it came."""

    def __init__(self, workload: Workload) -> None:
        self._times = {job.job_id: TrueTimes(job.physics, job.limits.max_batch) for job in workload.jobs}

    def __call__(self, job: JobView) -> TrueTimes:
        return self._times[job.job_id]


@lru_cache(maxsize=4096)
def _on_empty_nodes(sizes: tuple[int, ...], count: int) -> tuple[int, ...]:
    return tuple(place({str(rank): size for rank, size in enumerate(sizes)}, count).values())


@lru_cache(maxsize=4096)
def _max_local(physics: Physics, kind: str, nodes: tuple[int, ...]) -> int:
    return physics.max_local(kind, nodes)
