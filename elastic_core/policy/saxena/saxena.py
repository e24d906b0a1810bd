"""The program of Saxena et al. 2020 (arXiv 2006.13878) as it stands, for comparison: section 4.

The analyser gives s_j(k), the best throughput over the user's batches on k slots relative to that on one slot; the
optimiser gives P(j, k) = max over 1 <= g <= k_max of P(j - 1, k - g) + s_j(g). Nothing else is weighed: no cost of a
resize, no price of a slot, no limit to what was measured, which is why the paper profiles each job before it runs
(`profiler` is the place for such a profile; by default it is the job's fitted model). A job's batch is the
best one at its count, run at once, without accumulation. A set of jobs that cannot all run queues, or with
`saxena_drop` loses its newest. A job stays on one type, the roomiest when it came.

Where the gradient noise changes the factors all the time, nothing keeps this program from resizing at every decision.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import ClassVar

import numpy as np

from elastic_core.domain import JobView, Limits, Plan, Snapshot, Target
from elastic_core.policy.base.policy import Law
from elastic_core.policy.base.pool import Pool
from elastic_core.policy.base.queue import admit, held_count, held_type, queue_of
from elastic_core.policy.saxena.dynamic_program import best_counts
from elastic_core.policy.saxena.infeasible import drop_newest
from elastic_core.policy.saxena.scalability import Choice, Profiler, StepSeconds, analyse, predicted
from elastic_core.predict.speed.throughput import Floats, Ints, split
from elastic_core.text import plural

INTERVAL = 600.0  # seconds, of the paper's autoscaler; it is asked at every event besides


@dataclass(frozen=True, slots=True)
class AtOnce:
    """The same times, but a batch that a slot cannot hold its part of at once takes for ever.

    Where not even the smallest batch is held at once, what needs no more micro-batches than that one is let through.
    """

    times: StepSeconds

    def seconds(self, num_slots: Ints, kind: str, batches: Ints, pool: Pool, limits: Limits) -> Floats:
        _, parts = split(batches, num_slots, limits.max_local(kind))
        _, fewest = split(np.maximum(limits.min_batch, num_slots), num_slots, limits.max_local(kind))
        return np.where(parts > fewest, np.inf, self.times.seconds(num_slots, kind, batches, pool, limits))


class Saxena:
    name: ClassVar[str] = "saxena"
    laws: ClassVar[frozenset[Law]] = frozenset({Law.WORK_CONSERVING, Law.NO_STARVATION, Law.BOUNDED_RESIZES})
    drops: ClassVar[bool] = False

    def __init__(self, profiler: Profiler = predicted) -> None:
        self._profiler = profiler

    def _profile(self, job: JobView) -> StepSeconds:
        return AtOnce(self._profiler(job))

    def decide(self, snapshot: Snapshot, rng: Random) -> Plan:  # noqa: ARG002 - nothing is drawn
        capacity, pool = snapshot.capacity(), Pool.of(snapshot)
        queue = list(queue_of(snapshot))
        turned_away: dict[str, Target] = {}
        if self.drops:
            queue, turned_away = drop_newest(queue, capacity, snapshot.policy_state)
        admission = admit(queue, capacity)
        targets = {**turned_away, **admission.waiting}
        for kind in sorted(set(admission.admitted.values())):
            inside = [job for job in queue if admission.admitted.get(job.job_id) == kind]
            choices = [analyse(job, (kind,), pool, self._profile, tolerance=0.0)[kind] for job in inside]
            values = [{count: choice.speedup for count, choice in open_to.items()} for open_to in choices]
            prefer = [held_count(job) if held_type(job) == kind else None for job in inside]
            counts, total = best_counts(values, capacity[kind], prefer)
            for job, open_to, count in zip(inside, choices, counts, strict=True):
                targets[job.job_id] = _target(job, kind, open_to[count], len(inside), total)
        return Plan(
            policy=self.name,
            targets=targets,
            state={"turned_away": sorted(turned_away)},
            wake_at=snapshot.now + INTERVAL if snapshot.jobs else None,
            turned_away=tuple(sorted(turned_away)),
        )


class SaxenaDrop(Saxena):
    name: ClassVar[str] = "saxena_drop"
    laws: ClassVar[frozenset[Law]] = frozenset({Law.BOUNDED_RESIZES})
    drops: ClassVar[bool] = True


def _target(job: JobView, kind: str, choice: Choice, num_jobs: int, total: float) -> Target:
    return Target(
        counts={kind: choice.num_slots},
        global_batch=choice.batch,
        layout=job.limits.layout(choice.num_slots),
        reason=(
            f"{plural(choice.num_slots, 'slot')} of {kind}: {choice.speedup:.2f} x one slot; the largest sum over "
            f"{plural(num_jobs, 'job')} is {total:.2f}"
        ),
    )
