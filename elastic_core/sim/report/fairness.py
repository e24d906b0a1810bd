"""Finish-time fairness: rho = completion time / time on a fair share (Themis, Mahajan et al., NSDI 2020, section 3).

The fair share of a job is 1/N of the slots of each type, N being the mean number of jobs in the system (submitted, not
ended) over the job's own life under the policy that is judged. Its time there is that of the best type, count and batch
that its user allows within the share, one start included, by the true physics. A share below the smallest allowed count
is one of time: the job runs on that count for the fraction of the time that the share is of it. rho <= 1: the job was
no worse off than with its own part of the cluster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elastic_core.domain import Node
from elastic_core.errors import UserError
from elastic_core.policy.plans.packing import place
from elastic_core.sim.engine.result import Result
from elastic_core.sim.ground_truth.physics import Nodes, Physics, gain, split
from elastic_core.sim.ground_truth.workload import SimJob, Workload

Floats = NDArray[np.float64]
MAX_JOBS = 6000  # beyond that the figure is left out: it would cost more than the simulation
_BATCHES = 8  # tried between the smallest and the largest


def rhos(result: Result, workload: Workload, nodes: Sequence[Node]) -> dict[str, float]:
    """rho of every job that was completed; empty for workloads of more than `MAX_JOBS` jobs."""
    if len(workload.jobs) > MAX_JOBS:
        return {}
    jobs = {job.job_id: job for job in workload.jobs}
    contenders, alone, rho_of = _contenders(result), Alone(nodes), {}
    for done in result.jobs:
        if done.completion_seconds:
            fair = alone.fair_seconds(jobs[done.job_id], contenders[done.job_id])
            rho_of[done.job_id] = done.completion_seconds / fair
    return rho_of


def _contenders(result: Result) -> dict[str, float]:
    """Mean number of jobs in the system over each completed job's life."""
    spans = [
        (job.submitted_at, result.ended_at if job.finished_at is None else job.finished_at)
        for job in result.jobs
        if not job.turned_away
    ]
    instants = np.unique(np.asarray([instant for span in spans for instant in span]))
    change = np.zeros(len(instants))
    np.add.at(change, np.searchsorted(instants, [start for start, _ in spans]), 1.0)
    np.add.at(change, np.searchsorted(instants, [end for _, end in spans]), -1.0)
    job_seconds = np.concatenate(([0.0], np.cumsum(np.cumsum(change)[:-1] * np.diff(instants))))
    means = {}
    for job in result.jobs:
        if job.finished_at is not None and job.finished_at > job.submitted_at:
            start, end = np.interp([job.submitted_at, job.finished_at], instants, job_seconds)
            means[job.job_id] = max(1.0, float(end - start) / (job.finished_at - job.submitted_at))
    return means


@dataclass
class Alone:
    """How long jobs take with slots of their own on an otherwise empty cluster."""

    nodes: Sequence[Node]
    _gains: dict[Any, tuple[list[int], Floats]] = field(default_factory=dict)
    _seconds: dict[Any, float] = field(default_factory=dict)

    def fair_seconds(self, job: SimJob, contenders: float) -> float:
        """Seconds on 1/`contenders` of the slots, by the rule of the module."""
        best = inf
        for kind, free in self._free().items():
            if job.limits.types and kind not in job.limits.types:
                continue
            share = sum(free.values()) / contenders
            counts = [count for count in job.limits.slot_counts if count <= share]
            for count in _candidates(counts) or [job.limits.min_slots]:
                if count <= sum(free.values()):
                    slowed = max(1.0, count / share)
                    best = min(best, slowed * self.seconds(job, kind, count))
        if best == inf:
            raise UserError(f"{job.job_id}: no type of the cluster holds the {job.limits.min_slots} slots it needs")
        return best

    def seconds(self, job: SimJob, kind: str, count: int) -> float:
        """With the best batch in every epoch, the restart at its start included."""
        placement = tuple(place(self._free()[kind], count).values())
        key = (id(job.physics), kind, placement, job.limits.min_batch, job.limits.max_batch)
        if key not in self._seconds:
            self._seconds[key] = self._work_seconds(job, kind, placement)
        return job.physics.rescale_seconds + self._seconds[key]

    def _work_seconds(self, job: SimJob, kind: str, placement: Nodes) -> float:
        physics, limits = job.physics, job.limits
        own = limits.max_local(kind)
        cap = physics.max_local(kind, placement)
        batches, gains = self._gain(physics, limits.min_batch, limits.max_batch)
        steps = np.full(len(batches), inf)
        for i, batch in enumerate(batches):
            if batch >= sum(placement):
                used = split(batch, sum(placement), cap if own is None else min(cap, own), limits.max_batch)
                steps[i] = physics.seconds(kind, placement, used.local, used.accumulation)[0]
        rates = (physics.base_batch * gains / steps).max(axis=1)
        work = np.diff(np.asarray(physics.epoch_ends, dtype=np.float64), prepend=0.0)
        return float((work / rates).sum()) if (rates > 0).all() else inf

    def _gain(self, physics: Physics, smallest: int, largest: int) -> tuple[list[int], Floats]:
        """Batches worth trying, and the progress of a step at each of them: [epoch, batch]."""
        key = (id(physics), smallest, largest)
        if key not in self._gains:
            batches = sorted({round(float(b)) for b in np.geomspace(smallest, largest, _BATCHES)})
            rows = [[gain(physics, batch, epoch) for batch in batches] for epoch in range(len(physics.epoch_ends))]
            self._gains[key] = batches, np.asarray(rows)
        return self._gains[key]

    def _free(self) -> Mapping[str, dict[str, int]]:
        free: dict[str, dict[str, int]] = {}
        for node in self.nodes:
            free.setdefault(node.type, {})[node.name] = node.num_slots
        return free


def _candidates(counts: Sequence[int]) -> list[int]:
    """The largest count and some smaller ones: more slots are not always faster."""
    halves = list(counts)[::-1]
    return [count for i, count in enumerate(halves) if i == 0 or count & (count - 1) == 0]
