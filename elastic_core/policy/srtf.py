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
from elastic_core.policy.contract import Law
from elastic_core.policy.fixed import what_it_asks
from elastic_core.policy.queue import queue_of, usual_batch
from elastic_core.policy.remaining import remaining_steps
from elastic_core.policy.rigid import serve
from elastic_core.policy.scalability import Pool
from elastic_core.predict.throughput import StepTime

StepSeconds = dict[tuple[int, int, str, int, int], float]


class Srtf:
    name: ClassVar[str] = "srtf"
    laws: ClassVar[frozenset[Law]] = frozenset({Law.BOUNDED_RESIZES})

    def decide(self, snapshot: Snapshot, rng: Random) -> Plan:  # noqa: ARG002 - nothing is drawn
        pool, capacity = Pool.of(snapshot), snapshot.capacity()
        jobs = queue_of(snapshot)
        known: StepSeconds = {}
        needs = {job.job_id: seconds_needed(job, capacity, pool, known) for job in jobs}
        ordered = sorted(jobs, key=lambda job: needs[job.job_id])
        targets = serve(ordered, snapshot, lambda job: f"about {needs[job.job_id]:.0f} s of training left")
        return Plan(policy=self.name, targets=targets)


def seconds_needed(job: JobView, capacity: Mapping[str, int], pool: Pool, known: StepSeconds | None = None) -> float:
    """At the count it asks for, on its fastest type; infinite where no type of the pool has as many."""
    kinds, count = what_it_asks(job, capacity)
    batch = usual_batch(job, count)
    steps, known = remaining_steps(job, batch), {} if known is None else known
    return min((steps * _step_seconds(job, kind, count, batch, pool, known) for kind in kinds), default=float("inf"))


def _step_seconds(job: JobView, kind: str, count: int, batch: int, pool: Pool, known: StepSeconds) -> float:
    """`known` lives as long as one decision: jobs that share a model and limits are asked for once."""
    key = (id(job.throughput), id(job.limits), kind, count, batch)
    if key not in known:
        slots, batches = np.asarray([count]), np.asarray([batch])
        model = StepTime.of(job.throughput, job.limits)
        known[key] = float(model.seconds(slots, pool.nodes_for(kind, slots), kind, batches, job.limits)[0])
    return known[key]
