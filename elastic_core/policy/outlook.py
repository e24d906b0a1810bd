"""What one job would do with every option (type and count): its goodput, its batch, and how long it still needs.

Goodput is work a second: samples at the speed of `predict.throughput`, each worth what the gradient noise leaves of it
at that batch (`predict.efficiency`), relative to the smallest batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import log2

import numpy as np

from elastic_core.domain import JobView, Limits, ProfilePoint
from elastic_core.policy.memory import TaskMemory, noise_of, scale_of
from elastic_core.predict import throughput
from elastic_core.predict.throughput import Floats, Ints, StepTime

_Choices = tuple[tuple[int, ...], ...]  # (index of the type, slots, nodes) of every option

COLD = 2  # slots that the first job of a task starts on
_BATCH_STEP = 2**0.5


@dataclass(frozen=True)
class Options:
    """The choices that any job has: parallel arrays, ordered by type, then count."""

    kinds: tuple[str, ...]
    kind_index: Ints
    counts: Ints
    num_nodes: Ints  # the fewest that hold the count
    capacity: Ints  # by kind

    @staticmethod
    def of(sizes: Mapping[str, Sequence[int]], wanted: Sequence[int]) -> Options:
        """`sizes`: slots of each node by type. Counts: one to a node in powers of two, then whole nodes, and those
        that jobs list themselves (`wanted`)."""
        kinds = tuple(sorted(sizes))
        index, counts, num_nodes = [], [], []
        for number, kind in enumerate(kinds):
            ordered = sorted(sizes[kind], reverse=True)
            reach = np.cumsum(ordered)
            for count in sorted(_natural(ordered) | {n for n in wanted if n <= reach[-1]}):
                index.append(number)
                counts.append(count)
                num_nodes.append(int(np.searchsorted(reach, count)) + 1)
        capacity = np.asarray([sum(sizes[kind]) for kind in kinds])
        return Options(kinds, np.asarray(index), np.asarray(counts), np.asarray(num_nodes), capacity)

    def index(self, kind: str, count: int) -> int | None:
        if kind not in self.kinds:
            return None
        found = np.flatnonzero((self.kind_index == self.kinds.index(kind)) & (self.counts == count))
        return int(found[0]) if len(found) else None


def _natural(ordered: Sequence[int]) -> set[int]:
    largest = ordered[0]
    inside = {2**i for i in range(largest.bit_length()) if 2**i <= largest}
    return inside | {int(reach) for reach in np.cumsum(ordered)}


@dataclass(frozen=True)
class Outlook:
    """Of one job: arrays over the options; goodput 0 where it may not run."""

    goodput: Floats
    batches: Ints


def outlooks(jobs: Sequence[JobView], memories: Mapping[str, TaskMemory], options: Options) -> list[Outlook]:
    """One for each job. A job's own measurements set its scale, its task's set the shape."""
    choices = tuple(map(tuple, np.stack((options.kind_index, options.counts, options.num_nodes), axis=1).tolist()))
    tasks: dict[tuple[str, Limits], _Task] = {}
    found = []
    for job in jobs:
        own = (job.task, job.limits)
        if own not in tasks:
            tasks[own] = _task(memories[job.task].points(), job.limits)
        found.append(_outlook(job, memories[job.task], tasks[own], options, choices))
    return found


def _outlook(job: JobView, memory: TaskMemory, task: _Task, options: Options, choices: _Choices) -> Outlook:
    noise = noise_of(job, memory)
    rounded = None if noise is None or noise <= 0 else round(8 * log2(noise)) / 8  # so that answers can be kept
    rates, batches = _best(task, rounded, options.kinds, choices)
    scale = scale_of(job, task.times, job.limits)
    reach = max(job.limits.min_slots, COLD if task.largest == 0 else 2 * task.largest)
    return Outlook(np.where(options.counts <= reach, rates / scale, 0.0), batches)


@dataclass(frozen=True, eq=False)
class _Task:
    """The model of a task under some limits. Compared by identity: `_task` gives the same one for the same points."""

    times: StepTime
    limits: Limits
    largest: int  # slots that were measured, 0 for none


@lru_cache(maxsize=1024)
def _task(points: tuple[ProfilePoint, ...], limits: Limits) -> _Task:
    times = StepTime.of(throughput.fit(points, limits), limits)
    return _Task(times, limits, max((point.num_slots for point in points), default=0))


@lru_cache(maxsize=16384)
def _best(task: _Task, log_noise: float | None, kinds: tuple[str, ...], choices: _Choices) -> tuple[Floats, Ints]:
    """(goodput, batch) of every option at its best batch; the goodput is 0 where the job may not run."""
    goodput, chosen = np.zeros(len(choices)), np.zeros(len(choices), dtype=np.int64)
    for number, kind in enumerate(kinds):
        if task.limits.types and kind not in task.limits.types:
            continue
        tried = [
            (at, count, num_nodes, batch)
            for at, (index, count, num_nodes) in enumerate(choices)
            if index == number and count in task.limits.slot_counts and count <= task.limits.max_batch
            for batch in _batches(task.limits, kind, count)
        ]
        if tried:
            row, slots, num_nodes, batch = np.asarray(tried).T
            rate = batch / task.times.seconds(slots, num_nodes, kind, batch, task.limits)
            if log_noise is not None:
                rate = rate * (2.0**log_noise + task.limits.min_batch) / (2.0**log_noise + batch)
            order = np.lexsort((-batch, rate))  # the last of each row is its best; of equals the smaller batch
            goodput[row[order]] = rate[order]
            chosen[row[order]] = batch[order]
    return goodput, chosen


@lru_cache(maxsize=65536)
def _batches(limits: Limits, kind: str, count: int) -> tuple[int, ...]:
    low = max(limits.min_batch, count * limits.min_local_batch)
    high = limits.max_batch
    if low >= high:
        return (max(high, count),)
    grid = low * _BATCH_STEP ** np.arange(int(np.log(high / low) / np.log(_BATCH_STEP)) + 1)
    full = count * (limits.max_local(kind) or 1)
    tried = {int(point) for point in np.append(grid, high)}
    tried |= {point // count * count for point in tried} | {full * times for times in (1, 2, 4)}
    return tuple(sorted(batch for batch in tried if low <= batch <= high))
