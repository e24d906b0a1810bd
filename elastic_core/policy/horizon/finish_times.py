"""When each job is expected to be done: who gets slots, on them; who waits, after those before it in the queue.

A job that waits is taken to start on its fewest slots, of the type where these are free first, once those before it are
done (`predict.work.estimated_starts`, by which the page tells starts too), and to stay on them; the high end of its
interval is where all others need the high ends of theirs. An elastic policy may start it sooner and give it more, so
that the low end is where it starts at once with the option on which it is done first.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np

from elastic_core.domain import Quantiles, Queue
from elastic_core.policy.base.knapsack import NOTHING
from elastic_core.policy.base.queue import in_order
from elastic_core.policy.horizon.allocation_problem import Problem
from elastic_core.policy.horizon.outlook import uncertainties_at
from elastic_core.predict.speed.throughput import Ints
from elastic_core.predict.work.estimated_starts import SlotsFreed, WaitingJob, estimated_starts
from elastic_core.predict.work.work_left import finish_seconds

MOST_FORESEEN = 64  # waiting jobs, the first of the queue: who stands behind as many is told no time
_MEDIAN, _HIGH = 1, 2


def finish_times(problem: Problem, chosen: Ints, queues: Sequence[Queue]) -> dict[int, Quantiles | None]:
    """Seconds until each job is done, by row: (low, median, high), its restart included; absent where none is known."""
    rows = np.flatnonzero(chosen != NOTHING).tolist()
    granted = dict(zip(rows, _on(problem, rows, chosen[rows]), strict=True))
    return {**granted, **_of_waiting(problem, chosen, granted, {one.name for one in queues if one.is_limited})}


def _on(problem: Problem, rows: Sequence[int], options: Ints, *, restarts: bool = False) -> list[Quantiles | None]:
    """Of each of these jobs on the option beside it. `restarts`: by new processes, whatever it holds now."""
    if not len(rows):
        return []
    jobs, times = [problem.jobs[row] for row in rows], [problem.times[row] for row in rows]
    slower = uncertainties_at(options, jobs, times, problem.batches[rows, options], problem.options)
    # `remaining_seconds` are for the mean of the work, which a few long jobs decide.
    seconds_of_mean, mean = problem.remaining_seconds[rows, options], problem.left.mean
    finishes = []
    for row, option, seconds, error in zip(
        rows, options.tolist(), seconds_of_mean.tolist(), slower.tolist(), strict=True
    ):
        if row in problem.placed.of:
            error = float(problem.placed.errors(row, len(problem.options.counts))[option])
        apart = problem.served.error(row, option, problem.jobs[row], problem.times[row])
        error = error if apart is None else apart
        work = problem.left.interval(row)
        pause = 0.0 if option == problem.held[row] else float(problem.resize_seconds[row, option])
        pause = float(problem.restart_seconds[row]) if restarts else pause
        finishes.append(finish_seconds(seconds * work[1] / float(mean[row]), work, error, pause))
    return finishes


@dataclass(frozen=True, slots=True)
class _Waiting:
    row: int
    needs: int  # its fewest slots
    kinds: tuple[str, ...]  # of one of which it takes them
    alone: Quantiles  # seconds that it trains on them
    at_best: float  # low end of them, on the slots that suit it best


def _of_waiting(
    problem: Problem, chosen: Ints, granted: Mapping[int, Quantiles | None], limited: Collection[str]
) -> dict[int, Quantiles | None]:
    queue = _queue(problem, chosen, limited)
    if not queue:
        return {}
    starts, latest = (_starts(problem, chosen, granted, queue, end) for end in (_MEDIAN, _HIGH))
    finishes: dict[int, Quantiles | None] = {}
    for job in queue:
        key = str(job.row)
        if key in starts:
            median, high = starts[key] + job.alone[_MEDIAN], latest.get(key, starts[key]) + job.alone[_HIGH]
            finishes[job.row] = (min(job.at_best, median), median, max(high, median))
    return finishes


def _queue(problem: Problem, chosen: Ints, limited: Collection[str]) -> list[_Waiting]:
    """Those that wait and of which a time can be told, in the order in which they are taken to start."""
    rows = {job.job_id: row for row, job in enumerate(problem.jobs)}
    waiting = [
        rows[job.job_id]
        for job in in_order(problem.jobs[row] for row in np.flatnonzero(chosen == NOTHING))
        if job.queue not in limited
    ]
    fewest, best, asked = [], [], []
    for row in waiting[:MOST_FORESEEN]:
        if row in problem.placed.of or row in problem.served.of:  # it may need slots of several types at once
            continue
        seconds = problem.remaining_seconds[row, : problem.options.num_single]
        runs = np.flatnonzero(np.isfinite(seconds))
        if not len(runs):
            continue
        counts = problem.options.counts[runs]
        smallest = runs[counts == counts.min()]
        asked.append(row)
        fewest.append(int(smallest[seconds[smallest].argmin()]))
        best.append(int(seconds.argmin()))
    on_fewest, on_best = (_on(problem, asked, np.asarray(at, dtype=np.int64), restarts=True) for at in (fewest, best))
    return [
        _Waiting(row, int(problem.options.counts[option]), _kinds_at(problem, row, option), alone, at_best[0])
        for row, option, alone, at_best in zip(asked, fewest, on_fewest, on_best, strict=True)
        if alone is not None and at_best is not None
    ]


def _kinds_at(problem: Problem, row: int, option: int) -> tuple[str, ...]:
    """Types of which the job could have as many slots as with this option."""
    options, single = problem.options, problem.options.num_single
    same = (options.counts[:single] == options.counts[option]) & np.isfinite(problem.remaining_seconds[row, :single])
    return tuple(options.kinds[kind] for kind in options.kind_index[:single][same].tolist())


def _starts(
    problem: Problem, chosen: Ints, granted: Mapping[int, Quantiles | None], queue: Sequence[_Waiting], end: int
) -> dict[str, float]:
    """Seconds until each starts, where all jobs need the median, or the high end, of what they are expected to need."""
    options = problem.options
    taken = chosen[chosen != NOTHING]
    free = dict(zip(options.kinds, (options.capacity - options.use[taken].sum(axis=0)).tolist(), strict=True))
    releases = [
        SlotsFreed(finish[end], kind, count)
        for row, finish in granted.items()
        if finish is not None and isfinite(finish[end])
        for kind, count in options.slots_of(int(chosen[row])).items()
    ]
    jobs = [WaitingJob(str(job.row), job.needs, job.kinds, job.alone[end]) for job in queue]
    return estimated_starts(0.0, free, releases, jobs)
