"""The largest batch that a job may be scheduled with: what ONES orchestrates (Bian et al., SC 2021, section 3.3).

A batch limit decides how many slots a job may fill, each with its local batch. Four rules:
- start: a new job has the batch of its smallest count.
- scale up: a running job's limit doubles with every pass (`beta_progress.work_of_pass`) made since the last time.
- resume: the limit of a job that ran and waits again halves every `ROUND`, so that it finds its way back on few slots.
- penalty: while others wait, a job that had more than its part of the pool, by the rate at which jobs come, is held to
  its limit divided by how much more it had.
No limit is below the start. Where measured noise does not admit the batch, the trainer's stays below it
(`policy.base.batch_bound`); the learning rate follows the batch there as with any policy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import floor
from typing import Any

from elastic_core.domain import JobView
from elastic_core.policy.base.queue import held_count
from elastic_core.policy.base.weak_scaling import WeakScaling
from elastic_core.policy.ones.beta_progress import work_of_pass

ROUND = 300.0  # seconds


@dataclass(frozen=True, slots=True)
class BatchLimit:
    """`samples`: global batch. `done`: the job's work at the last doubling. `waits_since`: of the last halving or of
    the wait, None while it runs."""

    samples: float
    done: float
    waits_since: float | None = None


Limits = Mapping[str, BatchLimit]


def recall(state: Mapping[str, Any]) -> dict[str, BatchLimit]:
    """What another version of the platform, or another policy, wrote in another form is forgotten."""
    try:
        return {
            str(job_id): BatchLimit(float(samples), float(done), None if since is None else float(since))
            for job_id, (samples, done, since) in state.get("batch_limits", {}).items()
        }
    except (AttributeError, TypeError, ValueError):
        return {}


def to_state(limits: Limits) -> dict[str, Any]:
    return {job_id: [limit.samples, limit.done, limit.waits_since] for job_id, limit in limits.items()}


def update(before: Limits, scalings: Sequence[WeakScaling], now: float) -> dict[str, BatchLimit]:
    """By job: start, scale up and resume."""
    return {scaling.job.job_id: _next(before.get(scaling.job.job_id), scaling, now) for scaling in scalings}


def _next(limit: BatchLimit | None, scaling: WeakScaling, now: float) -> BatchLimit:
    job, start = scaling.job, float(scaling.local_batch * scaling.job.limits.min_slots)
    if limit is None:
        running_on = float(scaling.local_batch * held_count(job))
        return BatchLimit(max(start, running_on), job.done_samples, None if job.allocation else now)
    if job.allocation is None:
        return _resumed(limit, start, now)
    if job.done_samples - limit.done >= work_of_pass(job):
        most = float(max(scaling.local_batch * job.limits.max_slots, job.limits.max_batch))
        return BatchLimit(max(min(2.0 * limit.samples, most), start), job.done_samples)
    return BatchLimit(max(limit.samples, start), limit.done)


def _resumed(limit: BatchLimit, start: float, now: float) -> BatchLimit:
    since = now if limit.waits_since is None else limit.waits_since
    rounds = floor(max(now - since, 0.0) / ROUND)
    return BatchLimit(max(limit.samples / 2.0 ** min(rounds, 64), start), limit.done, since + rounds * ROUND)


def penalised(limit: BatchLimit, scaling: WeakScaling, jobs: Sequence[JobView], capacity: int) -> float:
    """The limit in force, in samples: less for who had more than its part while others wait."""
    start = float(scaling.local_batch * scaling.job.limits.min_slots)
    if all(job.allocation is not None for job in jobs):
        return max(limit.samples, start)
    overtime = scaling.job.attained_slot_seconds * arrivals_a_second(jobs) / max(capacity, 1)
    return max(limit.samples / max(overtime, 1.0), start)


def arrivals_a_second(jobs: Sequence[JobView]) -> float:
    """Of the jobs that are there; 0 where they tell nothing about it."""
    instants = [job.submitted_at for job in jobs]
    span = max(instants, default=0.0) - min(instants, default=0.0)
    return (len(instants) - 1) / span if span > 0 else 0.0
