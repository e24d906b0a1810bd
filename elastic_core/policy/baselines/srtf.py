"""Shortest remaining time first, preemptive, with the requested counts. Clairvoyant as far as the models are.

The time that a job still needs is its remaining work at the predicted speed of what it asked for, on the fastest type
that the pool has. Where no work is declared, a job is taken to need as much again as it has done. Optimal for one
server and known lengths (Schrage 1968); long jobs may starve.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import ClassVar

import numpy as np

from elastic_core.domain import JobView, Plan, Snapshot
from elastic_core.policy.base.policy import Law
from elastic_core.policy.base.pool import Pool
from elastic_core.policy.base.queue import queue_of, usual_batch
from elastic_core.policy.base.remaining_work import remaining_steps
from elastic_core.policy.baselines.fixed import request_of
from elastic_core.policy.baselines.rigid import serve
from elastic_core.predict.speed.throughput import StepTime

StepSeconds = dict[tuple[int, int, str, int, int], float]


class Srtf:
    name: ClassVar[str] = "srtf"
    laws: ClassVar[frozenset[Law]] = frozenset({Law.BOUNDED_RESIZES})

    def decide(self, snapshot: Snapshot, rng: Random) -> Plan:  # noqa: ARG002 - nothing is drawn
        pool, capacity = Pool.of(snapshot), snapshot.capacity()
        jobs = queue_of(snapshot)
        cache: StepSeconds = {}
        remaining_seconds = {job.job_id: seconds_needed(job, capacity, pool, cache) for job in jobs}
        ordered = sorted(jobs, key=lambda job: remaining_seconds[job.job_id])
        place = {job.job_id: number for number, job in enumerate(ordered, 1)}
        targets = serve(ordered, snapshot, lambda job: f"number {place[job.job_id]} of {len(jobs)} by training left")
        return Plan(policy=self.name, targets=targets)


def seconds_needed(job: JobView, capacity: Mapping[str, int], pool: Pool, cache: StepSeconds | None = None) -> float:
    """At the count it asks for, on its fastest type; infinite where no type of the pool has as many."""
    kinds, count = request_of(job, capacity)
    batch = usual_batch(job, count)
    steps, cache = remaining_steps(job, batch), {} if cache is None else cache
    return min((steps * _step_seconds(job, kind, count, batch, pool, cache) for kind in kinds), default=float("inf"))


def _step_seconds(job: JobView, kind: str, count: int, batch: int, pool: Pool, cache: StepSeconds) -> float:
    """`cache` lives as long as one decision: jobs that share a model and limits are asked for once."""
    key = (id(job.throughput), id(job.limits), kind, count, batch)
    if key not in cache:
        slots, batches = np.asarray([count]), np.asarray([batch])
        model = StepTime.of(job.throughput, job.limits)
        cache[key] = float(model.seconds(slots, pool.nodes_for(kind, slots), kind, batches, job.limits)[0])
    return cache[key]
