"""Pollux (Qiao et al., OSDI 2021): slots by node for all jobs at once, by a genetic search, every 60 s.

Fitness is the power mean with p = -1 of the jobs' speed-ups: goodput over the goodput of a fair share of the pool. A
job whose slots change counts less by the restart factor (age - restarts x delay) / (age + delay). A job starts on one
slot and at most doubles what was profiled; before it was measured its speed-up is its number of slots. As in the
artefact, jobs with the least attained service come first in the list, which the repair favours. Types are told apart
in the goodput only after both were measured: Pollux itself knows one type. The best solutions seed the next search.
A search takes up to a second; full traces are for patient people.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any, ClassVar

import numpy as np

from elastic_core.domain import JobView, Node, Plan, Snapshot, Target
from elastic_core.policy.base.best_batch import best_goodputs
from elastic_core.policy.base.policy import Law
from elastic_core.policy.base.queue import fitting_counts, queue_of, why_waiting
from elastic_core.policy.pollux.genetic import Fitness, Problem, States, search
from elastic_core.predict.speed.throughput import Floats, Ints
from elastic_core.text import plural

ROUND = 60.0  # seconds
GROWTH = 2
FAIRNESS = -1.0  # p
LARGEST = 64  # slots
_LEAST = 1e-3  # speed-up of a job that waits
_SEEDS = 10  # solutions that are remembered


class Pollux:
    name: ClassVar[str] = "pollux"
    laws: ClassVar[frozenset[Law]] = frozenset()  # a random search promises none

    def decide(self, snapshot: Snapshot, rng: Random) -> Plan:
        jobs = sorted(queue_of(snapshot), key=lambda job: job.attained_slot_seconds)
        nodes = sorted((node for node in snapshot.nodes if node.present), key=lambda node: node.name)
        if not jobs or not nodes:
            waiting = {job.job_id: Target.nothing(why_waiting(job, snapshot.capacity(), 0)) for job in jobs}
            return Plan(policy=self.name, targets=waiting)
        kinds = sorted({node.type for node in nodes})
        problem = _problem(jobs, nodes, kinds)
        tables = [_Table.of(job, nodes, kinds, len(jobs)) for job in jobs]
        seeds = _recall(snapshot.policy_state, jobs, nodes)
        fitness = _fitness(problem, tables, np.asarray([restart_factor(job, snapshot.now) for job in jobs]))
        best, population = search(problem, seeds, fitness, np.random.default_rng(rng.getrandbits(64)))
        capacity = snapshot.capacity()
        running = int(np.count_nonzero(best.sum(axis=1)))
        targets = {
            job.job_id: _target(job, row, nodes, table, capacity, running)
            for job, row, table in zip(jobs, best, tables, strict=True)
        }
        state = {"solutions": [_remember(seed, jobs, nodes) for seed in population[:_SEEDS]]}
        return Plan(policy=self.name, targets=targets, state=state, wake_at=snapshot.now + ROUND)


class _Table:
    """Speed-up and batch of one job by type, one node or several, and count."""

    def __init__(self, speedups: Floats, batches: Ints) -> None:
        self.speedups, self.batches = speedups, batches

    @staticmethod
    def of(job: JobView, nodes: Sequence[Node], kinds: Sequence[str], num_jobs: int) -> _Table:
        most = min(sum(node.num_slots for node in nodes), max(LARGEST, job.limits.min_slots))
        fair = max(1, -(-sum(node.num_slots for node in nodes) // num_jobs))
        counts = list(range(1, max(most, fair) + 1))
        speedups = np.zeros((len(kinds), 2, len(counts) + 1))
        batches = np.zeros((len(kinds), 2, len(counts) + 1), dtype=np.int64)
        for at, kind in enumerate(kinds):
            for several in (0, 1):
                best = best_goodputs(job, kind, counts, [1 + several] * len(counts))
                speedups[at, several, 1:], batches[at, several, 1:] = best.rates, best.batches
        if not job.profile:
            speedups[:] = np.arange(len(counts) + 1)
        largest_node = max(node.num_slots for node in nodes)
        share = speedups[:, int(fair > largest_node), fair].max()
        return _Table(speedups / share if share > 0 else speedups, batches)


def _problem(jobs: Sequence[JobView], nodes: Sequence[Node], kinds: Sequence[str]) -> Problem:
    total = sum(node.num_slots for node in nodes)
    return Problem(
        sizes=np.asarray([node.num_slots for node in nodes]),
        type_of=np.asarray([kinds.index(node.type) for node in nodes]),
        allowed=np.stack([_floors(job, total) for job in jobs]),
        may_use=np.asarray([[not job.limits.types or node.type in job.limits.types for node in nodes] for job in jobs]),
        base=np.stack([_held(job, nodes) for job in jobs]),
    )


def _floors(job: JobView, total: int) -> Ints:
    """The largest count that the job may have among those up to 0, 1, ... slots."""
    profiled = max((point.num_slots for point in job.profile), default=0)
    most = max(
        min(GROWTH * profiled, LARGEST, job.limits.max_batch // job.limits.min_local_batch), job.limits.min_slots
    )
    counts = [0, *(count for count in fitting_counts(job) if count <= most)]
    return np.asarray([max(count for count in counts if count <= number) for number in range(total + 1)])


def _held(job: JobView, nodes: Sequence[Node]) -> Ints:
    held = Counter(slot.node for slot in job.allocation.slots) if job.allocation is not None else Counter[str]()
    return np.asarray([held[node.name] for node in nodes])


def restart_factor(job: JobView, now: float) -> float:
    age, delay = max(now - job.submitted_at, 0.0), job.resize_seconds
    return max(age - job.num_resizes * delay, 0.0) / (age + delay) if age + delay > 0 else 1.0


def _fitness(problem: Problem, tables: Sequence[_Table], factors: Floats) -> Fitness:
    size = max(table.speedups.shape[2] for table in tables)
    speedups = np.stack([_pad(table.speedups, size) for table in tables])
    rows = np.arange(len(tables))

    def fitness(states: States) -> Floats:
        counts, several = states.sum(axis=2), (np.count_nonzero(states, axis=2) > 1).astype(np.int64)
        kinds = problem.type_of[states.argmax(axis=2)]
        values = speedups[rows, kinds, several, np.minimum(counts, size - 1)]
        values = values * np.where((states != problem.base).any(axis=2), factors, 1.0)
        mean = ((values + _LEAST) ** FAIRNESS).mean(axis=1) ** (1.0 / FAIRNESS)
        return np.asarray(mean)

    return fitness


def _pad(table: Floats, size: int) -> Floats:
    return np.pad(table, ((0, 0), (0, 0), (0, size - table.shape[2])), mode="edge")


def _remember(solution: States, jobs: Sequence[JobView], nodes: Sequence[Node]) -> dict[str, dict[str, int]]:
    return {
        job.job_id: {nodes[at].name: int(row[at]) for at in np.flatnonzero(row).tolist()}
        for job, row in zip(jobs, solution, strict=True)
        if row.any()
    }


def _recall(state: Mapping[str, Any], jobs: Sequence[JobView], nodes: Sequence[Node]) -> States:
    """What another version of the platform, or another policy, wrote in another form is forgotten."""
    try:
        solutions = [
            [[int(solution.get(job.job_id, {}).get(node.name, 0)) for node in nodes] for job in jobs]
            for solution in state.get("solutions", ())
        ]
    except (AttributeError, TypeError, ValueError):
        solutions = []
    return np.asarray(solutions, dtype=np.int64).reshape(len(solutions), len(jobs), len(nodes)).clip(min=0)


def _target(
    job: JobView, row: Ints, nodes: Sequence[Node], table: _Table, capacity: Mapping[str, int], running: int
) -> Target:
    count = int(row.sum())
    if count == 0:
        return Target.nothing(why_waiting(job, capacity, running))
    where = {nodes[at].name: int(row[at]) for at in np.flatnonzero(row).tolist()}
    kind = nodes[int(row.argmax())].type
    at = (sorted(capacity).index(kind), int(len(where) > 1), count)
    return Target(
        counts={kind: count},
        global_batch=int(max(table.batches[at], count, job.limits.min_batch)),
        layout=job.limits.layout(count),
        reason=f"{plural(count, 'slot')} of {kind} on {plural(len(where), 'node')}: {table.speedups[at]:.2f} x the "
        "goodput of a fair share of the pool",
        nodes=where,
        migrate=True,
    )
