"""Horizon: ours. Types, counts and batches of all jobs at once, with the work that each still has in the objective.

The value of an option to a job is the rate at which it takes time off the sum of all completion times: its goodput
times the price of its work (`policy.horizon.job_value`), which is the delay that it is to its own job and to longer
ones. What changes slots pays for its restart (`policy.horizon.restarts`). A new job starts on what its task's earlier
jobs have shown (`policy.task_memory.measurements`), with the noise that is to come
(`policy.horizon.noise_forecast`), not blind on one slot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import ClassVar

import numpy as np

from elastic_core.domain import JobView, Layout, Plan, Quantiles, Snapshot, Target
from elastic_core.policy.base.knapsack import NOTHING
from elastic_core.policy.base.options import Options
from elastic_core.policy.base.policy import Law
from elastic_core.policy.base.pool import Pool
from elastic_core.policy.base.remaining_work import expected_remaining, remaining_quantiles, upper_ratio
from elastic_core.policy.horizon.job_value import capacity_shares, job_value
from elastic_core.policy.horizon.outlook import CrossTaskPrior, outlooks, relative_uncertainty, uncertainty_at
from elastic_core.policy.horizon.restarts import (
    expected_stays,
    restart_seconds_of,
    seconds_until_back,
    values_less_restarts,
)
from elastic_core.policy.plans.layout_choice import with_layouts
from elastic_core.policy.plans.packing import Room
from elastic_core.policy.rules import flapping, starvation
from elastic_core.policy.rules.claims import ClaimContext, Resolution
from elastic_core.policy.rules.rules import share_out
from elastic_core.policy.rules.spending import prices_of, spending
from elastic_core.policy.rules.urgency import SafetyMargin
from elastic_core.policy.task_memory import measurements
from elastic_core.policy.task_memory.measurements import TaskMemory
from elastic_core.predict.speed.throughput import Floats, Ints
from elastic_core.predict.work.work_left import finish_seconds
from elastic_core.text import plural, span

INTERVAL = 60.0  # seconds between two looks at a pool where nothing happened
LOOK_AHEAD = 1200.0  # seconds over which an option's goodput is taken
FEW_COUNTS = 8  # a job that lists so few counts has them considered as they are


class Horizon:
    name: ClassVar[str] = "horizon"
    laws: ClassVar[frozenset[Law]] = frozenset(Law)

    def decide(self, snapshot: Snapshot, rng: Random) -> Plan:  # noqa: ARG002 - nothing is drawn
        moves, turns = flapping.recall(snapshot), starvation.recall(snapshot)
        tasks, prior = _recall(snapshot)
        shared = _problem(snapshot, tasks, prior)
        if shared is None:
            targets = {
                job.job_id: Target.nothing("waits: the pool has no number of slots that it may have")
                for job in snapshot.jobs
            }
        else:
            safety_margin = partial(_safety_margin, problem=shared, tasks=tasks, prior=prior)
            resolution = share_out(
                snapshot, partial(_context, snapshot, shared), shared.held, moves, turns, safety_margin
            )
            finishes = _finishes(shared, resolution.chosen, tasks, prior)
            targets = _place(snapshot, _targets(shared, resolution, finishes))
        state = {
            "tasks": measurements.store(tasks), "types": prior.to_json(),
            "moves": moves.store(targets, snapshot.now), "turns": turns,
        }  # fmt: skip
        wake_at = snapshot.now + INTERVAL if snapshot.jobs else None
        return Plan(policy=self.name, targets=with_layouts(targets, snapshot), state=state, wake_at=wake_at)


def _recall(snapshot: Snapshot) -> tuple[dict[str, TaskMemory], CrossTaskPrior]:
    tasks = measurements.recall(snapshot.policy_state)
    measurements.learn(tasks, snapshot.jobs)
    return tasks, CrossTaskPrior.of(snapshot.policy_state.get("types")).refreshed(tasks)


def _finished_works(tasks: Mapping[str, TaskMemory]) -> dict[str, list[float]]:
    return {task: memory.works for task, memory in tasks.items()}


def _options(snapshot: Snapshot) -> Options | None:
    sizes = Pool.of(snapshot).sizes
    listed_counts: set[int] = set()
    allowed_counts = {job.allocation.num_slots for job in snapshot.jobs if job.allocation is not None}
    for counts in {job.limits.slot_counts for job in snapshot.jobs}:
        listed_counts |= set(counts) if len(counts) <= FEW_COUNTS else {counts[0]}
        allowed_counts |= set(counts)
    return Options.of(sizes, sorted(listed_counts), allowed_counts) if sizes else None


@dataclass(frozen=True)
class Problem:
    """What a decision maximises: the sum of one value a job, within the capacity of every type."""

    jobs: tuple[JobView, ...]
    options: Options
    values: Floats  # of each option (columns) to each job (rows); 0 where it may not run
    batches: Ints  # of the same shape, like
    remaining_work: Floats  # expected, by job
    remaining_seconds: Floats  # that it takes; of the shape of `values`
    num_longer: Ints  # jobs that need longer, by job
    held: Ints  # option that each job holds
    restart_seconds: Floats  # seconds of a restart of each
    values_at: Callable[[Ints], Floats]  # the values as if other options were held
    notes: Mapping[int, str] = field(default_factory=dict)  # about the options of some jobs, for their reasons

    @property
    def job_ids(self) -> tuple[str, ...]:
        return tuple(job.job_id for job in self.jobs)


def problem(snapshot: Snapshot) -> Problem | None:
    """The problem that `Horizon` solves for this snapshot; None where there is nothing to share out."""
    return _problem(snapshot, *_recall(snapshot))


def _problem(snapshot: Snapshot, tasks: Mapping[str, TaskMemory], prior: CrossTaskPrior) -> Problem | None:
    options = _options(snapshot)
    if options is None or not len(options.counts):
        return None
    remaining_work = expected_remaining(snapshot.jobs, _finished_works(tasks))
    outlook = outlooks(snapshot.jobs, tasks, options, prior, remaining_work, LOOK_AHEAD)
    goodput, remaining_seconds = outlook.goodput, outlook.remaining_seconds
    held = np.asarray([_held(job, options) for job in snapshot.jobs])
    restart_seconds = restart_seconds_of(snapshot.jobs)
    age = np.asarray([snapshot.now - job.submitted_at for job in snapshot.jobs])
    job_values = job_value(goodput, remaining_seconds, age, options)
    until_back = seconds_until_back(remaining_seconds, capacity_shares(goodput, options))
    values_at = partial(
        values_less_restarts, job_values.price, goodput, remaining_seconds,
        restart_seconds=restart_seconds, stay=expected_stays(snapshot), until_back=until_back,
    )  # fmt: skip
    shared = Problem(
        snapshot.jobs, options, values_at(held), outlook.batches, remaining_work, remaining_seconds,
        job_values.num_longer, held, restart_seconds, values_at,
    )  # fmt: skip
    return _minding_money(shared, snapshot, goodput, partial(_safety_margin, problem=shared, tasks=tasks, prior=prior))


def _minding_money(problem: Problem, snapshot: Snapshot, goodput: Floats, safety_margin: SafetyMargin) -> Problem:
    """The options that a budget, or a preference for cost, leaves each job."""
    wishes = spending(
        problem.jobs, problem.options, prices_of(snapshot.nodes, problem.options), snapshot.now, goodput,
        problem.remaining_seconds, problem.held, problem.restart_seconds, safety_margin,
    )  # fmt: skip
    if wishes is None:
        return problem
    values, values_at, restrict = problem.values, problem.values_at, wishes.restrict
    return replace(
        problem, values=restrict(values), values_at=lambda held: restrict(values_at(held)), notes=wishes.notes
    )


def _context(snapshot: Snapshot, problem: Problem, held: Ints) -> ClaimContext:
    """As if the jobs held those options."""
    values = problem.values if held is problem.held else problem.values_at(held)
    return ClaimContext(
        problem.jobs, problem.options, snapshot.now, values, problem.remaining_seconds, held, problem.restart_seconds
    )


def _safety_margin(row: int, problem: Problem, tasks: Mapping[str, TaskMemory], prior: CrossTaskPrior) -> Floats:
    """By how much each option may take longer than predicted: slower steps, and more work than expected."""
    job = problem.jobs[row]
    slower = relative_uncertainty(job, problem.batches[row], tasks, problem.options, prior)
    return (1.0 + slower) * upper_ratio(job, _finished_works(tasks)) - 1.0


def _finishes(
    problem: Problem, chosen: Ints, tasks: Mapping[str, TaskMemory], prior: CrossTaskPrior
) -> dict[int, Quantiles | None]:
    """Seconds until each job that gets slots is done on them, its restart included."""
    rows = np.flatnonzero(chosen != NOTHING).tolist()
    works = remaining_quantiles([problem.jobs[row] for row in rows], _finished_works(tasks))
    finishes = {}
    for row, work in zip(rows, works, strict=True):
        option = int(chosen[row])
        slower = uncertainty_at(option, problem.jobs[row], problem.batches[row], tasks, problem.options, prior)
        # `remaining_seconds` are for the mean of the work, which a few long jobs decide.
        seconds = float(problem.remaining_seconds[row, option] * work[1] / problem.remaining_work[row])
        pause = 0.0 if option == problem.held[row] else float(problem.restart_seconds[row])
        finishes[row] = finish_seconds(seconds, work, slower, pause)
    return finishes


def _targets(problem: Problem, resolution: Resolution, finishes: Mapping[int, Quantiles | None]) -> dict[str, Target]:
    targets = {}
    for row, job in enumerate(problem.jobs):
        option = int(resolution.chosen[row])
        batch, num_longer = int(problem.batches[row, option]), int(problem.num_longer[row])
        target = _target(problem.options, option, batch, finishes.get(row), num_longer)
        notes = [note for note in (problem.notes.get(row), resolution.notes.get(row)) if note]
        targets[job.job_id] = replace(target, reason="; ".join((target.reason, *notes)))
    return targets


def _held(job: JobView, options: Options) -> int:
    counts = job.allocation.counts() if job.allocation is not None else {}
    if len(counts) != 1:
        return NOTHING
    ((kind, count),) = counts.items()
    option = options.index(kind, count)
    return NOTHING if option is None else option


def _target(options: Options, option: int, batch: int, finish: Quantiles | None, num_longer: int) -> Target:
    if option == NOTHING:
        return Target.nothing("waits: the slots take more off the sum of completion times where they are")
    kind, count = options.kinds[options.kind_index[option]], int(options.counts[option])
    rank = f"{plural(num_longer, 'job')} need{'s' * (num_longer == 1)} longer" if num_longer else "no job needs longer"
    ending = f"done in about {span(finish[1])}" if finish is not None else "done at a time that is not known"
    reason = f"{count} of {kind} at batch {batch}: {ending}, {rank}"
    layout = Layout(data=count)
    return Target(counts={kind: count}, global_batch=batch, layout=layout, reason=reason, finish_seconds=finish)


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
