"""Sia (Jayaram Subramanya et al., SOSP 2023): one integer program over types and counts, every 60 s.

Each job j and configuration c (1, 2, 4, ... slots of a node, or whole nodes, of one type) has a normalised goodput
G(j, c), 1 at its worst configuration. With restart factor r and p = -0.5 the program takes at most one configuration a
job within each type's capacity and minimises  sum of (r G)^p  + 1.1 for each job that gets nothing  (section 3.3):

    r = (age - restarts x delay) / (age + delay), 1 for the configuration in force and for a job younger than a delay

A job starts on one slot and at most doubles what was profiled; a job in the middle of a restart is left alone. On
types not yet seen the goodput is projected from a seen one by the ratio of the types' speeds (`Speeds`). The
details are those of the artefact's simulator. HiGHS solves to a relative gap of 1e-4 (`pick_one`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import ClassVar

import numpy as np

from elastic_core.domain import JobView, Plan, Snapshot, Target
from elastic_core.policy.base.best_batch import best_goodputs
from elastic_core.policy.base.policy import Law
from elastic_core.policy.base.pool import Pool
from elastic_core.policy.base.queue import fitting_counts, held_count, held_type, queue_of, why_waiting
from elastic_core.policy.sia.pick_one import pick_one
from elastic_core.policy.sia.whole_nodes import on_whole_nodes
from elastic_core.policy.task_memory.type_speeds import LearntSpeeds, Ratios, Speeds, learn
from elastic_core.predict.speed.throughput import Floats, Ints
from elastic_core.text import plural

FAIRNESS = -0.5  # p
NO_ALLOCATION = 1.1  # lambda
ROUND = 60.0  # seconds
GROWTH = 2
_HIGHEST_COST = 3000.0


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The configurations that one job could get, as parallel arrays; goodput is relative to the worst of them."""

    kinds: tuple[str, ...]
    counts: Ints
    batches: Ints
    goodputs: Floats


class Sia:
    name: ClassVar[str] = "sia"
    laws: ClassVar[frozenset[Law]] = frozenset()  # moving a job may cost more than leaving it without slots

    def __init__(self, speeds: Speeds | None = None, delays: Mapping[str, float] | None = None) -> None:
        """`delays`: of a restart by task, in the place of the measured ones."""
        self._speeds, self._delays = speeds or LearntSpeeds(), delays or {}

    def decide(self, snapshot: Snapshot, rng: Random) -> Plan:  # noqa: ARG002 - nothing is drawn
        jobs, pool = queue_of(snapshot), Pool.of(snapshot)
        learnt = learn(snapshot.policy_state, jobs)
        options = [self._options(job, pool, learnt) for job in jobs]
        chosen = _solve(jobs, options, snapshot, self._delays)
        grants = {
            job.job_id: (job_options.kinds[at], int(job_options.counts[at]))
            for job, job_options, at in zip(jobs, options, chosen, strict=True)
            if at is not None
        }
        places = on_whole_nodes(grants, jobs, snapshot)
        capacity = snapshot.capacity()
        targets = {
            job.job_id: Target.nothing(why_waiting(job, capacity, len(grants)))
            if at is None
            else _target(job, job_options, at, places.get(job.job_id))
            for job, job_options, at in zip(jobs, options, chosen, strict=True)
        }
        return Plan(policy=self.name, targets=targets, state={"speeds": learnt}, wake_at=snapshot.now + ROUND)

    def _options(self, job: JobView, pool: Pool, learnt: Ratios) -> JobOptions:
        """Of all types, worst goodput first brought to 1; a job that was never measured knows one slot from another by
        nothing."""
        max_slots = _most_slots(job)
        seen = sorted({point.type for point in job.profile})
        kinds: list[str] = []
        counts: list[int] = []
        batches: list[int] = []
        goodputs: list[float] = []
        for kind in _types(job, pool):
            counts_here = _counts(job, kind, pool, max_slots)
            source = kind if kind in seen or not seen else seen[0]
            best = best_goodputs(
                job, source, counts_here, [_fewest_nodes(source, count, pool) for count in counts_here]
            )
            factor = self._speeds.ratio(job, kind, source, learnt) if source != kind else 1.0
            for count, batch, goodput in zip(counts_here, best.batches, best.rates, strict=True):
                if goodput > 0 or count == job.limits.min_slots:
                    kinds.append(kind)
                    counts.append(count)
                    batches.append(int(batch))
                    goodputs.append(max(float(goodput) * factor, 1e-12))
        values = np.asarray(goodputs)
        relative = values / values.min() if len(values) else values
        return JobOptions(
            tuple(kinds), np.asarray(counts, dtype=np.int64), np.asarray(batches, dtype=np.int64), relative
        )


def _types(job: JobView, pool: Pool) -> list[str]:
    return [kind for kind in pool.sizes if not job.limits.types or kind in job.limits.types]


def _most_slots(job: JobView) -> int:
    """At most double what was profiled on any type; the smallest count for a job never seen."""
    profiled = max((point.num_slots for point in job.profile), default=0)
    return max(GROWTH * profiled, job.limits.min_slots)


def _counts(job: JobView, kind: str, pool: Pool, max_slots: int) -> list[int]:
    """Powers of two within a node and whole nodes, as far as its limits and its profile allow; what it holds always."""
    capacity, node = pool.capacity(kind), pool.sizes[kind][0]
    held = held_count(job) if held_type(job) == kind else 0
    return [
        count
        for count in fitting_counts(job)
        if count <= capacity
        and (
            count in (held, job.limits.min_slots)
            or (count <= max_slots and (count % node == 0 or (count < node and count & (count - 1) == 0)))
        )
    ]


def _fewest_nodes(kind: str, count: int, pool: Pool) -> int:
    """Of this type's size, also for more slots than it has: the speed of another type is projected from here."""
    node = pool.sizes[kind][0] if kind in pool.sizes else count
    return -(-count // node)


def _solve(
    jobs: Sequence[JobView], options: Sequence[JobOptions], snapshot: Snapshot, delays: Mapping[str, float]
) -> list[int | None]:
    """Which option each job gets."""
    room = snapshot.capacity()
    pinned = {
        rank: at
        for rank, (job, job_options) in enumerate(zip(jobs, options, strict=True))
        if _restarting(job, snapshot.now) and (at := _in_force(job, job_options)) is not None
    }
    for rank, at in pinned.items():
        room[options[rank].kinds[at]] -= int(options[rank].counts[at])
    free = [rank for rank in range(len(jobs)) if rank not in pinned]
    picked = pick_one(
        [_costs(jobs[rank], options[rank], snapshot.now, delays) - NO_ALLOCATION for rank in free],
        [options[rank].kinds for rank in free],
        [options[rank].counts for rank in free],
        room,
        [_in_force(jobs[rank], options[rank]) for rank in free],
    )
    chosen: list[int | None] = [pinned.get(rank) for rank in range(len(jobs))]
    for rank, job_options in zip(free, picked, strict=True):
        chosen[rank] = job_options
    return chosen


def _restarting(job: JobView, now: float) -> bool:
    return job.allocation is not None and now < (job.allocated_since or 0.0) + job.resize_seconds


def _in_force(job: JobView, options: JobOptions) -> int | None:
    for at, (kind, count) in enumerate(zip(options.kinds, options.counts, strict=True)):
        if (kind, count) == (held_type(job), held_count(job)):
            return at
    return None


def _costs(job: JobView, options: JobOptions, now: float, delays: Mapping[str, float]) -> Floats:
    goodputs = options.goodputs.copy()
    held = _in_force(job, options)
    if held is not None:
        keep = goodputs[held]
        goodputs *= restart_factor(job, now, delays.get(job.task, job.resize_seconds))
        goodputs[held] = keep
    with np.errstate(divide="ignore"):
        return np.minimum(np.round(goodputs**FAIRNESS, 2), _HIGHEST_COST)


def restart_factor(job: JobView, now: float, delay: float) -> float:
    age = now - job.submitted_at
    if age < delay or age + delay <= 0:
        return 1.0
    return max(age - job.num_resizes * delay, 0.0) / (age + delay)


def _target(job: JobView, options: JobOptions, at: int, nodes: Mapping[str, int] | None) -> Target:
    kind, count = options.kinds[at], int(options.counts[at])
    return Target(
        counts={kind: count},
        global_batch=int(options.batches[at]),
        layout=job.limits.layout(count),
        reason=f"{plural(count, 'slot')} of {kind}: {options.goodputs[at]:.2f} x its worst configuration, "
        f"the best sum of all jobs' goodputs to the power {FAIRNESS}",
        nodes=nodes,
        migrate=True,
    )
