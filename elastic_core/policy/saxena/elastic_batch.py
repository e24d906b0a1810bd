"""Elastic batch: Saxena et al. 2020 (arXiv 2006.13878): slots and batch sizes of all jobs by one dynamic program.

The analyser (`policy.saxena.scalability`) says what each job would do with each count, and the dynamic program finds
the counts with the largest sum of values (`policy.saxena.objective`). `policy.saxena.saxena` is the paper's program as
it stands. Ours departs from it on purpose:

- The paper's autoscaler acts every interval; this one at every event as well, at the latest after `INTERVAL` seconds.
- A set of jobs that cannot all run: `elastic_batch` lets them in by the queue's order (`policy.base.queue`), the rest
  wait; `elastic_batch_drop` is the paper's other rule and turns the newest away until the rest fits.
- Values are scaling factors less the cost of a resize and a price a slot, where the paper has neither.
- A job runs on one resource type at a time. Each type has its own dynamic program; then a job goes where slots idle
  on another type if that raises the sum, until no such move is left.
- The paper profiles every job before it runs. Here a count above all that was measured is explored only with slots
  that the program leaves idle: the job with the fewest slots first, at most double its largest measured count, once
  a job and decision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar

from elastic_core.domain import JobView, Plan, Snapshot, Target
from elastic_core.policy.base.policy import Law
from elastic_core.policy.base.pool import Pool
from elastic_core.policy.base.queue import Admission, admit, queue_of, usable_types
from elastic_core.policy.saxena import reasons
from elastic_core.policy.saxena.dynamic_program import best_counts
from elastic_core.policy.saxena.infeasible import drop_newest
from elastic_core.policy.saxena.objective import Prospect
from elastic_core.policy.saxena.trials import key, recall, remember

INTERVAL = 60.0  # seconds
_GAIN = 1e-6  # what a move must gain at least, so that rounding moves nobody
_MAX_ROUNDS = 100

Counts = dict[str, int]  # by job_id


class ElasticBatch:
    name: ClassVar[str] = "elastic_batch"
    laws: ClassVar[frozenset[Law]] = frozenset({Law.WORK_CONSERVING, Law.NO_STARVATION, Law.BOUNDED_RESIZES})
    drops: ClassVar[bool] = False  # the rule for an infeasible set: turn the newest away instead of letting it wait

    def decide(self, snapshot: Snapshot, rng: Random) -> Plan:  # noqa: ARG002 - nothing is drawn
        capacity = snapshot.capacity()
        queue = [self._considered(job) for job in queue_of(snapshot)]
        queue, turned_away = drop_newest(queue, capacity, snapshot.policy_state) if self.drops else (queue, {})
        prospects = _Prospects(snapshot, queue)
        admission, counts = _optimise(prospects, queue, capacity)
        kinds = admission.admitted
        idle = _idle(capacity, kinds, counts)
        explored = _explore(prospects, kinds, counts, idle)
        targets = {**turned_away, **admission.waiting}
        for job_id, kind in kinds.items():
            prospect, count = prospects[job_id], explored.get(job_id, counts[job_id])
            why = reasons.explain(
                prospect, kind, count, len(kinds), idle[kind], exploring=job_id in explored, batch_rule=self._batch_rule
            )
            batch, limits = prospect.choices[kind][count].batch, prospect.job.limits
            targets[job_id] = Target(counts={kind: count}, global_batch=batch, layout=limits.layout(count), reason=why)
        return Plan(
            policy=self.name,
            targets=targets,
            state={
                "trials": _remember(snapshot, queue, kinds, explored),
                "turned_away": sorted(turned_away),
            },
            wake_at=snapshot.now + INTERVAL if snapshot.jobs else None,
            turned_away=tuple(sorted(turned_away)),
        )

    _batch_rule: ClassVar[str | None] = None  # why a job has its batch, where it is not the best one

    def _considered(self, job: JobView) -> JobView:
        """The job with the limits that this policy gives it."""
        return job


class ElasticBatchDrop(ElasticBatch):
    """The paper's rule for an infeasible set: turn the newest job away, for good, until the rest fits."""

    name: ClassVar[str] = "elastic_batch_drop"
    laws: ClassVar[frozenset[Law]] = frozenset({Law.BOUNDED_RESIZES})
    drops: ClassVar[bool] = True


class _Prospects(dict[str, Prospect]):
    """What each job of the queue could do; looked into only for those that are let in."""

    def __init__(self, snapshot: Snapshot, queue: Sequence[JobView]) -> None:
        super().__init__()
        self._jobs = {job.job_id: job for job in queue}
        self._pool, self._capacity = Pool.of(snapshot), snapshot.capacity()
        self._state, self._now = snapshot.policy_state, snapshot.now

    def __missing__(self, job_id: str) -> Prospect:
        job, now = self._jobs[job_id], self._now
        kinds, trials = usable_types(job, self._capacity), recall(self._state, job, now)
        self[job_id] = Prospect.of(job, kinds, self._pool, trials, now)
        return self[job_id]


def _optimise(
    prospects: Mapping[str, Prospect], queue: Sequence[JobView], capacity: Mapping[str, int]
) -> tuple[Admission, Counts]:
    """Let in, decide each type by its dynamic program, move jobs to idle slots of other types; until nothing moves.

    Each round lets in more of the front of the queue or raises the sum, so that it ends by itself, long before
    `_MAX_ROUNDS`; and a plan that is in force already is its own first round.
    """
    admission = admit(queue, capacity)
    counts = _share_out(prospects, admission.admitted, capacity)
    for _ in range(_MAX_ROUNDS):
        kinds = _moved_to_idle(prospects, admission.admitted, counts, _idle(capacity, admission.admitted, counts))
        if kinds == admission.admitted:
            break
        admission = admit(queue, capacity, kinds)
        counts = _share_out(prospects, admission.admitted, capacity)
    return admission, counts


def _share_out(prospects: Mapping[str, Prospect], kinds: Mapping[str, str], capacity: Mapping[str, int]) -> Counts:
    counts: Counts = {}
    for kind in sorted(set(kinds.values())):
        inside = [prospects[job_id] for job_id, own in kinds.items() if own == kind]
        values = [prospect.open_values(kind) for prospect in inside]
        prefer = [prospect.held[1] if prospect.held[0] == kind else None for prospect in inside]
        best, _ = best_counts(values, capacity[kind], prefer)
        counts.update(zip((prospect.job.job_id for prospect in inside), best, strict=True))
    return counts


def _moved_to_idle(
    prospects: Mapping[str, Prospect], kinds: Mapping[str, str], counts: Counts, idle: dict[str, int]
) -> dict[str, str]:
    """The types after every job, in order, has gone to idle slots of another type where that is worth more to it."""
    moved = dict(kinds)
    for job_id, here in kinds.items():
        prospect = prospects[job_id]
        options = [
            (value, kind, count)
            for kind in prospect.choices
            if kind != here
            for count, value in prospect.open_values(kind).items()
            if count <= idle[kind]
        ]
        value, kind, count = max(options, default=(0.0, here, 0))
        if options and value > prospect.value(here, counts[job_id]) + _GAIN:
            idle[here] += counts[job_id]
            idle[kind] -= count
            moved[job_id] = kind
    return moved


def _idle(capacity: Mapping[str, int], kinds: Mapping[str, str], counts: Counts) -> dict[str, int]:
    idle = dict(capacity)
    for job_id, count in counts.items():
        idle[kinds[job_id]] -= count
    return idle


def _explore(
    prospects: Mapping[str, Prospect], kinds: Mapping[str, str], counts: Counts, idle: dict[str, int]
) -> Counts:
    """Counts that were never measured, on idle slots (which are taken off `idle`), fewest slots first."""
    explored: Counts = {}
    for job_id in sorted(kinds, key=lambda job_id: counts[job_id]):  # stable: then the queue's order
        kind = kinds[job_id]
        count = prospects[job_id].worth_trying(kind, counts[job_id], idle[kind])
        if count is not None:
            idle[kind] -= count - counts[job_id]
            explored[job_id] = count
    return explored


def _remember(
    snapshot: Snapshot, queue: Sequence[JobView], kinds: Mapping[str, str], explored: Counts
) -> dict[str, Any]:
    state, now, trials_by_job = snapshot.policy_state, snapshot.now, {}
    for job in queue:
        exploring = key(kinds[job.job_id], explored[job.job_id]) if job.job_id in explored else None
        trials_by_job[job.job_id] = remember(recall(state, job, now), job, exploring, now)
    return {job_id: trials for job_id, trials in trials_by_job.items() if trials}
