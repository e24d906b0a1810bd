"""How much work each job still has, in samples, and how far that may be off.

Declared where the user says so; else expected from what the jobs of its task, and all others, turned out to be
(`predict.work`). A job of the unpredictable class (AITurbo, HPDC 2021: its progress follows no curve) is taken by its
attained service: whatever it declares is an upper bound, and what it has done tells through the hazard of job sizes how
much is left.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from elastic_core.domain import JobView
from elastic_core.policy.memory import TaskMemory
from elastic_core.policy.told_work import is_sure
from elastic_core.predict import work
from elastic_core.predict.throughput import Floats
from elastic_core.predict.work import WorkEstimate


def remaining(jobs: Sequence[JobView], tasks: Mapping[str, TaskMemory]) -> Floats:
    """Samples, one at least."""
    every = finished(tasks)
    left = []
    for job in jobs:
        if job.total_samples is not None and is_sure(job):
            left.append(max(float(job.remaining_samples), 1.0))
        else:
            expected = _expected(job, tasks, every).mean_remaining
            left.append(max(min(expected, float(job.remaining_samples)), 1.0))
    return np.asarray(left)


def finished(tasks: Mapping[str, TaskMemory]) -> list[float]:
    return [done for memory in tasks.values() for done in memory.works]


def most_relative(job: JobView, tasks: Mapping[str, TaskMemory]) -> float:
    """How many times what `remaining` says may be left: the high end of an 80 % interval; 1 where work is declared."""
    if job.total_samples is not None and is_sure(job):
        return 1.0
    expected = _expected(job, tasks, finished(tasks))
    likely = max(min(expected.mean_remaining, float(job.remaining_samples)), 1.0)
    most = max(min(expected.high - job.done_samples, float(job.remaining_samples)), likely)
    return most / likely


def _expected(job: JobView, tasks: Mapping[str, TaskMemory], every: Sequence[float]) -> WorkEstimate:
    return work.estimate(tasks[job.task].works, every, job.done_samples, scale=1000.0 * job.limits.min_batch)
