"""A workload as its users' would be: jobs that are no copies of each other, or that nothing is known of by others.

Published traces draw their jobs from a handful of models, so that all jobs of a model are clones: what one of them
measured, or needed, is exactly true of the next. Each function takes one such advantage away from whoever uses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from random import Random

from elastic_core.domain import Node, ProfilePoint
from elastic_core.sim.ground_truth.physics import Nodes, Physics, split
from elastic_core.sim.ground_truth.workload import SimJob, Workload


@dataclass(frozen=True)
class VariedPhysics:
    """A model of which steps, gradient noise and the work to its end are so many times as large."""

    model: Physics
    times: float
    noise: float
    work: float

    @property
    def base_batch(self) -> int:
        return self.model.base_batch

    @property
    def rescale_seconds(self) -> float:
        return self.model.rescale_seconds

    @cached_property
    def epoch_ends(self) -> Sequence[float]:
        return tuple(end * self.work for end in self.model.epoch_ends)

    def max_local(self, kind: str, nodes: Nodes) -> int:
        return self.model.max_local(kind, nodes)

    def seconds(self, kind: str, nodes: Nodes, local: int, accumulation: int) -> tuple[float, float]:
        step, sync = self.model.seconds(kind, nodes, local, accumulation)
        return step * self.times, sync * self.times

    def gradient(self, batch: int, epoch: int) -> tuple[float, float] | None:
        statistics = self.model.gradient(batch, epoch)
        return None if statistics is None else (statistics[0], statistics[1] * self.noise)


def no_clones(workload: Workload, sigma: float, seed: int) -> Workload:
    """Each job's step times, gradient noise and work drawn around its model's, log-normal, `sigma` of the logarithm."""
    note = f"step times, gradient noise and work of each job drawn around its model's: log-normal, sigma {sigma:g}"
    jobs = tuple(_varied(job, sigma, Random(f"no clones/{seed}/{job.job_id}")) for job in workload.jobs)
    return replace(workload, name=f"{workload.name}, no clones", jobs=jobs, notes=(*workload.notes, note))


def _varied(job: SimJob, sigma: float, rng: Random) -> SimJob:
    times, noise, work = (rng.lognormvariate(0.0, sigma) for _ in range(3))
    return replace(job, physics=VariedPhysics(job.physics, times, noise, work))


def own_tasks(workload: Workload) -> Workload:
    """Each job a task of its own: nothing that another one measured is known to be true of it."""
    jobs = tuple(replace(job, task=f"{job.task}/{job.job_id}") for job in workload.jobs)
    return replace(workload, name=f"{workload.name}, own tasks", jobs=jobs)


def with_one_slot_speeds(workload: Workload, pool: Sequence[Node]) -> Workload:
    """Each job measured on one slot of every type before it runs, at its largest local batch: what Sia's simulator
    gives its policy to compare types by (SOSP 2023)."""
    known: dict[tuple[Physics, tuple[str, ...]], tuple[ProfilePoint, ...]] = {}
    kinds = sorted({node.type for node in pool})
    jobs = []
    for job in workload.jobs:
        allowed = tuple(kind for kind in kinds if not job.limits.types or kind in job.limits.types)
        key = job.physics, allowed
        if key not in known:
            known[key] = tuple(_one_slot(job, kind) for kind in allowed)
        jobs.append(replace(job, measured_before=known[key]))
    return replace(workload, name=f"{workload.name}, one-slot speeds", jobs=tuple(jobs))


def _one_slot(job: SimJob, kind: str) -> ProfilePoint:
    cap, own = job.physics.max_local(kind, (1,)), job.limits.max_local(kind)
    local = min(cap, cap if own is None else own, job.limits.max_batch)
    share = split(local, 1, local, job.limits.max_batch)
    step, sync = job.physics.seconds(kind, (1,), share.local, share.accumulation)
    return ProfilePoint(
        num_slots=1, num_nodes=1, type=kind, global_batch=share.batch, local_batch=share.local,
        accumulation=share.accumulation, step_seconds=step, sync_seconds=sync, count=1,
    )  # fmt: skip
