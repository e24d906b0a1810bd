"""Horizon: ours. Types, counts and batches of all jobs at once, with the work that each still has in the objective.

The value of an option to a job is the rate at which it takes time off the sum of all completion times: its goodput
times the price of its work. Work of a job delays the job itself, and every longer one that competes for the part of
the pool it uses (the shorter ones are done by then), so at goodput g on that part of the pool the price is

    p = min over options of (1 + longer jobs * part) / g

which is shortest-remaining-first under load, relative speed without it, and for speed-ups that are powers of the slots
the optimum of heSRPT (Berg, Vesilo and Harchol-Balter 2020). What changes slots pays for its restart out of the time
until the job ends or is expected to be moved again; growing pays more, since what others leave they soon want back.
A new job starts on what its task's earlier jobs have shown (`policy.memory`), not blind on one slot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import ClassVar

import numpy as np

from elastic_core.domain import JobView, Layout, Plan, Snapshot, Target
from elastic_core.policy import memory as memories
from elastic_core.policy.contract import Law
from elastic_core.policy.knapsack import NOTHING, best_choices
from elastic_core.policy.outlook import Options, Outlook, outlooks
from elastic_core.policy.packing import place
from elastic_core.predict import work
from elastic_core.predict.throughput import Floats, Ints

INTERVAL = 60.0  # seconds between two looks at a pool where nothing happened
STAY = 1200.0  # seconds that an allocation is expected to last at most
GROW = 1.5  # restarts that a growth is charged, for the shrinking that follows it
STOP = 2.0  # restarts that a stop is charged
LEAST_KEEP = 0.05  # of an option's value that a start keeps, however long its restart: idle slots serve nobody
FEW_COUNTS = 8  # a job that lists so few counts has them considered as they are


class Horizon:
    name: ClassVar[str] = "horizon"
    laws: ClassVar[frozenset[Law]] = frozenset({Law.WORK_CONSERVING, Law.BOUNDED_RESIZES})

    def decide(self, snapshot: Snapshot, rng: Random) -> Plan:  # noqa: ARG002 - nothing is drawn
        tasks = memories.recall(snapshot.policy_state)
        memories.learn(tasks, snapshot.jobs)
        options = _options(snapshot)
        if options is None or not snapshot.jobs:
            targets = {job.job_id: Target.nothing("waits: the pool has no slots") for job in snapshot.jobs}
        else:
            targets = _place(snapshot, _decide(snapshot, tasks, options))
        wake_at = snapshot.now + INTERVAL if snapshot.jobs else None
        return Plan(policy=self.name, targets=targets, state={"tasks": memories.store(tasks)}, wake_at=wake_at)


def _options(snapshot: Snapshot) -> Options | None:
    sizes: dict[str, list[int]] = {}
    for node in snapshot.nodes:
        if node.present and node.num_slots:
            sizes.setdefault(node.type, []).append(node.num_slots)
    wanted: set[int] = set()
    for job in snapshot.jobs:
        counts = job.limits.slot_counts
        wanted |= set(counts) if len(counts) <= FEW_COUNTS else {counts[0]}
    return Options.of(sizes, sorted(wanted)) if sizes else None


def _decide(snapshot: Snapshot, tasks: Mapping[str, memories.TaskMemory], options: Options) -> dict[str, Target]:
    looks = outlooks(snapshot.jobs, tasks, options)
    remaining = _remaining(snapshot.jobs, tasks)
    goodput = np.asarray([look.goodput for look in looks])
    with np.errstate(divide="ignore"):
        need = np.where(goodput > 0, remaining[:, None] / goodput, np.inf)
    held = np.asarray([_held(job, options) for job in snapshot.jobs])
    pause = np.asarray([max(job.resize_seconds, 0.0) for job in snapshot.jobs])
    price, longer = _prices(goodput, need, options)
    values = _values(price, goodput, need, held, pause)
    chosen = best_choices(values, options.kind_index, options.counts, options.capacity)
    return {
        job.job_id: _target(options, looks[row], int(chosen[row]), float(need[row, chosen[row]]), int(longer[row]))
        for row, job in enumerate(snapshot.jobs)
    }


def _remaining(jobs: Sequence[JobView], tasks: Mapping[str, memories.TaskMemory]) -> Floats:
    """Work left: declared, or expected from what the jobs of its task, and all others, turned out to be."""
    every = [done for memory in tasks.values() for done in memory.works]
    left = []
    for job in jobs:
        if job.total_samples is not None:
            left.append(max(float(job.remaining_samples), 1.0))
        else:
            own = tasks[job.task].works
            expected = work.estimate(own, every, job.done_samples, scale=1000.0 * job.limits.min_batch)
            left.append(max(expected.mean_remaining, 1.0))
    return np.asarray(left)


def _held(job: JobView, options: Options) -> int:
    counts = job.allocation.counts() if job.allocation is not None else {}
    if len(counts) != 1:
        return NOTHING
    ((kind, count),) = counts.items()
    found = options.index(kind, count)
    return NOTHING if found is None else found


def _prices(goodput: Floats, need: Floats, options: Options) -> tuple[Floats, Ints]:
    """(price of a unit of each job's work, number of jobs that need longer than it)."""
    shortest = need.min(axis=1)
    longer = (shortest[None, :] > shortest[:, None]).sum(axis=1)
    part = _parts(goodput, options)
    with np.errstate(divide="ignore"):
        costs = np.where(goodput > 0, (1.0 + longer[:, None] * part[None, :]) / goodput, np.inf)
    price = costs.min(axis=1)
    return np.where(np.isfinite(price), price, 0.0), longer


def _parts(goodput: Floats, options: Options) -> Floats:
    """Part of the pool's power that each option takes: slots, weighted by how fast jobs run on their type."""
    per_slot = goodput / options.counts
    most = per_slot.max(axis=1)
    power = np.ones(len(options.kinds))
    for kind in range(len(options.kinds)):
        best = per_slot[:, options.kind_index == kind].max(axis=1)
        usable = best > 0
        if usable.any():
            power[kind] = np.exp(np.mean(np.log(best[usable] / most[usable])))
    parts: Floats = options.counts * power[options.kind_index] / float(options.capacity @ power)
    return parts


def _values(price: Floats, goodput: Floats, need: Floats, held: Ints, pause: Floats) -> Floats:
    """Value of each option to each job: the rate at which completion times fall, less restarts."""
    rows = np.arange(len(goodput))
    runs = held != NOTHING
    now_at = np.where(runs, goodput[rows, held], 0.0)
    cost = pause[:, None] / np.maximum(np.minimum(need + pause[:, None], STAY), 1e-9)
    cost = np.where(runs[:, None] & (goodput > now_at[:, None]), cost * GROW, cost)
    keep = np.maximum(1.0 - cost, np.where(runs, 0.0, LEAST_KEEP)[:, None])
    keep[rows[runs], held[runs]] = 1.0
    values = price[:, None] * goodput * keep
    again = STOP * pause / STAY * price * now_at  # who is stopped pays for another start
    return np.where(goodput > 0, values + again[:, None], 0.0)


def _target(options: Options, look: Outlook, option: int, need: float, longer: int) -> Target:
    if option == NOTHING:
        return Target.nothing("waits: the slots take more off the sum of completion times where they are")
    kind, count, batch = options.kinds[options.kind_index[option]], int(options.counts[option]), look.batches[option]
    rank = "no job needs longer" if not longer else f"{longer} job{'s' * (longer > 1)} need{'s' * (longer == 1)} longer"
    reason = f"{count} of {kind} at batch {batch}: done in about {_span(need)}, {rank}"
    return Target(counts={kind: count}, global_batch=int(batch), layout=Layout(data=count), reason=reason)


def _span(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.1f} h"
    )


def _place(snapshot: Snapshot, targets: Mapping[str, Target]) -> dict[str, Target]:
    """Nodes for everyone who moves, the largest first: who restarts anyway need not stay where it was."""
    free = {node.name: node.num_slots for node in snapshot.nodes if node.present}
    kinds = {node.name: node.type for node in snapshot.nodes}
    moving = []
    for job in snapshot.jobs:
        target = targets[job.job_id]
        if job.allocation is not None and job.allocation.counts() == dict(target.counts):
            for slot in job.allocation.slots:
                free[slot.node] = free.get(slot.node, 0) - 1
        elif target.num_slots:
            moving.append(job.job_id)
    placed = dict(targets)
    for job_id in sorted(moving, key=lambda job_id: (-targets[job_id].num_slots, job_id)):
        ((kind, count),) = targets[job_id].counts.items()
        here = {name: number for name, number in free.items() if number > 0 and kinds[name] == kind}
        if sum(here.values()) >= count:
            nodes = place(here, count)
            free = {name: number - nodes.get(name, 0) for name, number in free.items()}
            placed[job_id] = replace(targets[job_id], nodes=nodes)
    return placed
