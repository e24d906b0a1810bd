"""Which exchange `horizon` counted with for a job whose ranks choose one: the target names it, and they try it first.

Where the job has tried none on so many slots its speed there rests on it (`horizon.speeds.corrected`), and the reason
says so. What is measured there has the last word, at the next decision.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from elastic_core.domain import EXACT, JobView, Target
from elastic_core.policy.base.knapsack import NOTHING
from elastic_core.policy.horizon import wording
from elastic_core.policy.horizon.allocation_problem import Problem
from elastic_core.policy.horizon.outlook import shares
from elastic_core.policy.horizon.speeds.corrected import CountedWith, counted_with
from elastic_core.predict.speed.throughput import Ints


def with_expected_exchanges(targets: Mapping[str, Target], problem: Problem, chosen: Ints) -> dict[str, Target]:
    """`chosen`: the option of each job of the problem; targets have their nodes."""
    rows = [
        row for row, model in enumerate(problem.corrected)
        if model.exchange is not None and _exchanges(problem, row, int(chosen[row]))
    ]  # fmt: skip
    named = dict(targets)
    if rows:
        for row, counted in zip(rows, _counted_with(targets, problem, rows, chosen[rows]), strict=True):
            if counted is not None:
                job_id = problem.jobs[row].job_id
                named[job_id] = _with(named[job_id], counted)
    return named


def _exchanges(problem: Problem, row: int, option: int) -> bool:
    """Replicas on several slots of one type."""
    if option == NOTHING or option >= problem.options.num_single or problem.options.counts[option] == 1:
        return False
    return row not in problem.placed.of and problem.served.apart(row, option) is None


def _counted_with(
    targets: Mapping[str, Target], problem: Problem, rows: list[int], at: Ints
) -> list[CountedWith | None]:
    options, jobs = problem.options, [problem.jobs[row] for row in rows]
    nodes = [
        _num_nodes(job, targets[job.job_id], fewest)
        for job, fewest in zip(jobs, options.num_nodes[at].tolist(), strict=True)
    ]
    local, accumulation = shares(jobs, at, problem.batches[rows, at], options)
    models, slots, type_index = [problem.corrected[row] for row in rows], options.counts[at], options.kind_index[at]
    return counted_with(models, options.kinds, type_index, slots, np.asarray(nodes), local, accumulation)


def _num_nodes(job: JobView, target: Target, fewest: int) -> int:
    """Of its slots: those that the target names, those that it stays on, or as few as hold them."""
    if target.nodes is not None:
        return sum(1 for number in target.nodes.values() if number)
    if job.allocation is not None and job.allocation.counts() == target.wanted:
        return job.allocation.num_nodes
    return fewest


def _with(target: Target, counted: CountedWith) -> Target:
    if not counted.forecast or counted.algorithm == EXACT:
        return replace(target, expected_comm=counted.algorithm)
    words = wording.why_exchange(counted.algorithm, counted.gain)
    return replace(target, expected_comm=counted.algorithm, reason=f"{target.reason}; {words}")
