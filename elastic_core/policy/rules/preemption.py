"""Who preempted whom: of each job that held slots and is to have none, the jobs that get slots of its types before it.

Promises of everyone named that it has more slots of a type that the stopped job held than it holds itself, and that a
rule put it first: it claimed slots from that job, or its priority, by which the objective weighs its work too, is
higher. It decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from elastic_core.domain import JobView, Preemptor, PutFirst
from elastic_core.policy.base.knapsack import NOTHING
from elastic_core.policy.base.options import Options
from elastic_core.policy.rules.claims import Resolution
from elastic_core.predict.speed.throughput import Ints


def preemptors(jobs: Sequence[JobView], options: Options, resolution: Resolution) -> dict[int, tuple[Preemptor, ...]]:
    """By row of the stopped job: those that claimed from it, then the highest priorities."""
    stopped = [row for row, job in enumerate(jobs) if job.allocation and resolution.chosen[row] == NOTHING]
    if not stopped:
        return {}
    held = np.asarray([_held(job, options) for job in jobs])
    has = np.where((resolution.chosen != NOTHING)[:, None], options.use[resolution.chosen], 0)
    found = {}
    for row in stopped:
        gain = np.flatnonzero(((has > held) & (held[row] > 0)).any(axis=1)).tolist()
        rules = _rules(jobs, row, gain, resolution.preempted.get(row, {}))
        order = sorted(rules, key=lambda other: (other not in resolution.preempted.get(row, {}), -jobs[other].priority))
        found[row] = tuple(_preemptor(jobs[other], rules[other]) for other in order)
    return {row: others for row, others in found.items() if others}


def _rules(
    jobs: Sequence[JobView], row: int, gain: Sequence[int], claimed: Mapping[int, PutFirst]
) -> dict[int, PutFirst]:
    rules = {}
    for other in gain:
        if other in claimed:
            rules[other] = claimed[other]
        elif jobs[other].priority > jobs[row].priority:
            rules[other] = PutFirst.PRIORITY
    return rules


def _held(job: JobView, options: Options) -> Ints:
    counts = job.allocation.counts() if job.allocation is not None else {}
    return np.asarray([counts.get(kind, 0) for kind in options.kinds], dtype=np.int64)


def _preemptor(job: JobView, rule: PutFirst) -> Preemptor:
    return Preemptor(job_id=job.job_id, rule=rule, priority=job.priority, queue=job.queue)
