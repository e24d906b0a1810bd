"""On which nodes `horizon`'s jobs go: who moves gets a place of its own choice, who stays is moved where that pays.

What one node is worth to a job rather than several is what its steps take longer over the network, by the model of its
task, for as long as it will hold its slots; what a move costs is the work that its restart loses, and of a job that is
resized anyway what a restart loses more than going on in its processes (`policy.plans.consolidation`). Jobs on slots of
several types are placed by what is free after that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from elastic_core.domain import JobView, Snapshot, Target
from elastic_core.policy.base.knapsack import NOTHING
from elastic_core.policy.horizon import wording
from elastic_core.policy.horizon.allocation_problem import Problem
from elastic_core.policy.horizon.outlook import shares
from elastic_core.policy.horizon.speeds.corrected import slowness_over_nodes
from elastic_core.policy.plans.consolidation import Stake, consolidate
from elastic_core.policy.plans.migration import by_node
from elastic_core.policy.plans.packing import Room, place
from elastic_core.policy.rules.priorities import weights
from elastic_core.predict.speed.posterior import MODEL_ERROR
from elastic_core.predict.speed.throughput import Ints

_Stakes = dict[str, dict[str, Stake]]  # by type, then job
_Free = dict[str, dict[str, int]]  # slots by type, then node


def with_nodes(snapshot: Snapshot, targets: Mapping[str, Target], problem: Problem, chosen: Ints) -> dict[str, Target]:
    """`chosen`: the option of each job of the problem, which its target says in words."""
    stakes, free, placed = _stakes(snapshot, problem, chosen), _slots_of_nodes(snapshot), dict(targets)
    jobs = {job.job_id: job for job in snapshot.jobs}
    others = [
        job for job in snapshot.jobs
        if targets[job.job_id].num_slots and not any(job.job_id in of_kind for of_kind in stakes.values())
    ]  # fmt: skip
    for job in others:
        if _holds(job, targets[job.job_id]):
            _take(free, job)
    for kind, of_kind in stakes.items():
        for job_id, nodes in consolidate(of_kind, free[kind]).items():
            for node, number in nodes.items():
                free[kind][node] = free[kind].get(node, 0) - number
            if not (held := of_kind[job_id].held) or any(nodes.get(node, 0) < kept for node, kept in held.items()):
                moved = _holds(jobs[job_id], targets[job_id])
                placed[job_id] = _on_nodes(targets[job_id], nodes, moved=moved)
    moving = {job.job_id: targets[job.job_id] for job in others if not _holds(job, targets[job.job_id])}
    return placed | _on_what_is_left(moving, free)


def _on_nodes(target: Target, nodes: Mapping[str, int], *, moved: bool) -> Target:
    if not moved:
        return replace(target, nodes=nodes)
    return replace(target, nodes=nodes, migrate=True, reason=f"{target.reason}; {wording.why_moved(nodes)}")


def _slots_of_nodes(snapshot: Snapshot) -> _Free:
    free: _Free = {}
    for node in snapshot.nodes:
        if node.present:
            free.setdefault(node.type, {})[node.name] = node.num_slots
    return free


def _holds(job: JobView, target: Target) -> bool:
    return job.allocation is not None and job.allocation.counts() == dict(target.counts)


def _take(free: _Free, job: JobView) -> None:
    for slot in job.allocation.slots if job.allocation is not None else ():
        if slot.node in free.get(slot.type, {}):
            free[slot.type][slot.node] -= 1


def _on_what_is_left(moving: Mapping[str, Target], free: _Free) -> dict[str, Target]:
    """The largest first. Who finds too few slots keeps its target without nodes."""
    rooms = {kind: Room({name: number for name, number in of.items() if number > 0}) for kind, of in free.items()}
    placed = {}
    for job_id, target in sorted(moving.items(), key=lambda item: (-item[1].num_slots, item[0])):
        if all(kind in rooms and count <= rooms[kind].total for kind, count in target.wanted.items()):
            by_kind = [rooms[kind].take(count) for kind, count in target.wanted.items()]
            placed[job_id] = replace(target, nodes={node: taken for of in by_kind for node, taken in of.items()})
    return placed


def _stakes(snapshot: Snapshot, problem: Problem, chosen: Ints) -> _Stakes:
    """Of each job that gets slots of one type and is no placed job."""
    options, largest = problem.options, _largest_nodes(snapshot)
    rows = [
        row for row in np.flatnonzero(chosen != NOTHING).tolist()
        if row not in problem.placed.of and int(chosen[row]) < options.num_single
    ]  # fmt: skip
    by_priority = weights(problem.jobs)
    gains = _gains_of_one_node(problem, chosen, rows, largest)
    stakes: _Stakes = {}
    for row in rows:
        job, option = problem.jobs[row], int(chosen[row])
        kind, count = options.kinds[options.kind_index[option]], int(options.counts[option])
        own = {} if job.allocation is None else dict(by_node(job.allocation.slots))
        held = sum(own.values())
        goes_on = job.allocation is not None and job.allocation.counts().keys() == {kind}
        in_place = 0.0 if held == count else float(problem.resize_seconds[row, option])
        lost = max(float(problem.restart_seconds[row]) - in_place, 0.0) * float(problem.worth[row, option])
        weight = 1.0 if by_priority is None else float(by_priority[row])
        kept = own if held <= count else place({}, count, own)
        stakes.setdefault(kind, {})[job.job_id] = Stake(
            count=count, gain=weight * gains.get(row, 0.0), cost=weight * lost if goes_on else 0.0,
            held=kept if goes_on else {}, near=frozenset(own),
        )  # fmt: skip
    return stakes


def _largest_nodes(snapshot: Snapshot) -> dict[str, int]:
    largest: dict[str, int] = {}
    for node in snapshot.nodes:
        if node.present:
            largest[node.type] = max(largest.get(node.type, 0), node.num_slots)
    return largest


def _gains_of_one_node(
    problem: Problem, chosen: Ints, rows: Sequence[int], largest: Mapping[str, int]
) -> dict[int, float]:
    """What each of these jobs would lose on several nodes, for as long as it will hold its slots; by row.

    Nothing, where that is no more than the models err by.
    """
    options = problem.options
    fitting = [
        row
        for row in rows
        if 1 < options.counts[chosen[row]] <= largest[options.kinds[options.kind_index[chosen[row]]]]
    ]
    if not fitting:
        return {}
    at = chosen[fitting]
    slots, type_index = options.counts[at], options.kind_index[at]
    jobs = [problem.jobs[row] for row in fitting]
    local, accumulation = shares(jobs, at, problem.batches[fitting, at], options)
    models = [problem.corrected[row] for row in fitting]
    slowness = slowness_over_nodes(models, options.kinds, type_index, slots, local, accumulation)
    slowness = np.where(slowness > 1.0 + MODEL_ERROR, slowness, 1.0)
    gains = problem.worth[fitting, at] * (1.0 - 1.0 / slowness) * problem.lasting[fitting, at]
    return dict(zip(fitting, gains.tolist(), strict=True))
