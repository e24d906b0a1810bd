"""Horizon: ours. Types, counts and batches of all jobs at once, with the work that each still has in the objective.

The value of an option to a job is the rate at which it takes time off the sum of all completion times: its goodput
times the price of its work (`policy.worth`), which is the delay that it is to its own job and to longer ones. What
changes slots pays for its restart (`policy.restarts`). A new job starts on what its task's earlier jobs have shown
(`policy.memory`), with the noise that is to come (`policy.ahead`), not blind on one slot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from typing import ClassVar

import numpy as np

from elastic_core.domain import JobView, Layout, Plan, Snapshot, Target
from elastic_core.policy import flapping, starvation, work_left
from elastic_core.policy import memory as memories
from elastic_core.policy.claims import Case, Settled
from elastic_core.policy.contract import Law
from elastic_core.policy.knapsack import NOTHING
from elastic_core.policy.layouts import with_layouts
from elastic_core.policy.outlook import Lessons, Options, doubts, outlooks
from elastic_core.policy.packing import Room
from elastic_core.policy.queue import plural
from elastic_core.policy.restarts import charged, pauses, slots_back, stays
from elastic_core.policy.rules import share_out
from elastic_core.policy.scalability import Pool
from elastic_core.policy.words import span
from elastic_core.policy.worth import parts, worth
from elastic_core.predict.throughput import Floats, Ints

INTERVAL = 60.0  # seconds between two looks at a pool where nothing happened
LOOK_AHEAD = 1200.0  # seconds over which an option's goodput is taken
FEW_COUNTS = 8  # a job that lists so few counts has them considered as they are


class Horizon:
    name: ClassVar[str] = "horizon"
    laws: ClassVar[frozenset[Law]] = frozenset(Law) - {Law.MONOTONE_IN_CAPACITY}

    def decide(self, snapshot: Snapshot, rng: Random) -> Plan:  # noqa: ARG002 - nothing is drawn
        moves, turns = flapping.recall(snapshot), starvation.recall(snapshot)
        tasks, lessons = _recall(snapshot)
        shared = _problem(snapshot, tasks, lessons)
        if shared is None:
            targets = {
                job.job_id: Target.nothing("waits: the pool has no number of slots that it may have")
                for job in snapshot.jobs
            }
        else:
            caution = partial(_caution, problem=shared, tasks=tasks, lessons=lessons)
            settled = share_out(snapshot, partial(_case, snapshot, shared), shared.held, moves, turns, caution)
            targets = _place(snapshot, _targets(shared, settled))
        state = {
            "tasks": memories.store(tasks), "types": lessons.to_json(),
            "moves": moves.store(targets, snapshot.now), "turns": turns,
        }  # fmt: skip
        wake_at = snapshot.now + INTERVAL if snapshot.jobs else None
        return Plan(policy=self.name, targets=with_layouts(targets, snapshot), state=state, wake_at=wake_at)


def _recall(snapshot: Snapshot) -> tuple[dict[str, memories.TaskMemory], Lessons]:
    tasks = memories.recall(snapshot.policy_state)
    memories.learn(tasks, snapshot.jobs)
    return tasks, Lessons.of(snapshot.policy_state.get("types")).refreshed(tasks)


def _options(snapshot: Snapshot) -> Options | None:
    sizes = Pool.of(snapshot).sizes
    wanted: set[int] = set()
    allowed = {job.allocation.num_slots for job in snapshot.jobs if job.allocation is not None}
    for counts in {job.limits.slot_counts for job in snapshot.jobs}:
        wanted |= set(counts) if len(counts) <= FEW_COUNTS else {counts[0]}
        allowed |= set(counts)
    return Options.of(sizes, sorted(wanted), allowed) if sizes else None


@dataclass(frozen=True)
class Problem:
    """What a decision maximises: the sum of one value a job, within the capacity of every type."""

    jobs: tuple[JobView, ...]
    options: Options
    values: Floats  # of each option (columns) to each job (rows); 0 where it may not run
    batches: Ints  # of the same shape, like
    need: Floats  # seconds
    longer: Ints  # jobs that need longer, by job
    held: Ints  # option that each job holds
    pause: Floats  # seconds of a restart of each
    values_at: Callable[[Ints], Floats]  # the values as if other options were held

    @property
    def job_ids(self) -> tuple[str, ...]:
        return tuple(job.job_id for job in self.jobs)


def problem(snapshot: Snapshot) -> Problem | None:
    """The problem that `Horizon` solves for this snapshot; None where there is nothing to share out."""
    return _problem(snapshot, *_recall(snapshot))


def _problem(snapshot: Snapshot, tasks: Mapping[str, memories.TaskMemory], lessons: Lessons) -> Problem | None:
    options = _options(snapshot)
    if options is None or not len(options.counts):
        return None
    left = work_left.remaining(snapshot.jobs, tasks)
    looks = outlooks(snapshot.jobs, tasks, options, lessons, left, LOOK_AHEAD)
    goodput, need = looks.goodput, looks.need
    held = np.asarray([_held(job, options) for job in snapshot.jobs])
    pause = pauses(snapshot.jobs)
    age = np.asarray([snapshot.now - job.submitted_at for job in snapshot.jobs])
    worths = worth(goodput, need, age, options)
    back = slots_back(need, parts(goodput, options))
    values_at = partial(charged, worths.price, goodput, need, pause=pause, stay=stays(snapshot), back=back)
    return Problem(snapshot.jobs, options, values_at(held), looks.batches, need, worths.longer, held, pause, values_at)


def _case(snapshot: Snapshot, problem: Problem, held: Ints) -> Case:
    """As if the jobs held those options."""
    values = problem.values if held is problem.held else problem.values_at(held)
    return Case(problem.jobs, problem.options, snapshot.now, values, problem.need, held, problem.pause)


def _caution(row: int, problem: Problem, tasks: Mapping[str, memories.TaskMemory], lessons: Lessons) -> Floats:
    """By how much each option may take longer than predicted: slower steps, and more work than expected."""
    job = problem.jobs[row]
    slower = doubts(job, problem.batches[row], tasks, problem.options, lessons)
    return (1.0 + slower) * work_left.most_relative(job, tasks) - 1.0


def _targets(problem: Problem, settled: Settled) -> dict[str, Target]:
    found = {}
    for row, job in enumerate(problem.jobs):
        option = int(settled.chosen[row])
        need, longer = float(problem.need[row, option]), int(problem.longer[row])
        target = _target(problem.options, option, int(problem.batches[row, option]), need, longer)
        note = settled.notes.get(row)
        found[job.job_id] = replace(target, reason=f"{target.reason}; {note}") if note else target
    return found


def _held(job: JobView, options: Options) -> int:
    counts = job.allocation.counts() if job.allocation is not None else {}
    if len(counts) != 1:
        return NOTHING
    ((kind, count),) = counts.items()
    found = options.index(kind, count)
    return NOTHING if found is None else found


def _target(options: Options, option: int, batch: int, need: float, longer: int) -> Target:
    if option == NOTHING:
        return Target.nothing("waits: the slots take more off the sum of completion times where they are")
    kind, count = options.kinds[options.kind_index[option]], int(options.counts[option])
    rank = f"{plural(longer, 'job')} need{'s' * (longer == 1)} longer" if longer else "no job needs longer"
    reason = f"{count} of {kind} at batch {batch}: done in about {span(need)}, {rank}"
    return Target(counts={kind: count}, global_batch=batch, layout=Layout(data=count), reason=reason)


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
    rooms = {
        kind: Room({name: number for name, number in free.items() if number > 0 and kinds[name] == kind})
        for kind in set(kinds.values())
    }
    placed = dict(targets)
    for job_id in sorted(moving, key=lambda job_id: (-targets[job_id].num_slots, job_id)):
        ((kind, count),) = targets[job_id].counts.items()
        if count <= rooms[kind].total:
            placed[job_id] = replace(targets[job_id], nodes=rooms[kind].take(count))
    return placed
