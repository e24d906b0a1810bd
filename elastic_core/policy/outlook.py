"""What one job would do with every option (type and count): its goodput, its batch, and how long it still needs.

Goodput is work a second: samples at the speed of `predict.throughput`, each worth what the gradient noise leaves of it
at that batch (`predict.efficiency`), relative to the smallest batch. On a type that a task was never measured on, its
speed is projected from how fast the types were to each other for all tasks (`predict.experience`).
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import log2
from typing import Any

import numpy as np

from elastic_core.domain import JobView, Limits, ProfilePoint
from elastic_core.policy.ahead import mean_goodput, seconds, stretches
from elastic_core.policy.corrected import Corrected
from elastic_core.policy.memory import TaskMemory, noise_of, scales_of
from elastic_core.predict import throughput
from elastic_core.predict.experience import NOTHING, Experience, learn
from elastic_core.predict.goodput import Best, Speeds, coarse_batches
from elastic_core.predict.layouts import Factors, factor
from elastic_core.predict.throughput import Floats, Ints, StepTime, split

Key = tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]  # (type, slots, fewest nodes) of all options by type

COLD = 2  # slots that the first job of a task starts on
FEW_NODES = 16  # up to so many nodes every number of them is a choice
MOST_TEACHERS = 32  # tasks that the speeds of types are learnt from
MORE_EVIDENCE = 1.5
_ANY = Limits(slot_counts=(1,), types=(), min_batch=1, max_batch=1)


@dataclass(frozen=True)
class Options:
    """The choices that any job has: parallel arrays, ordered by type, then count."""

    kinds: tuple[str, ...]
    kind_index: Ints
    counts: Ints
    num_nodes: Ints  # the fewest that hold the count
    capacity: Ints  # by kind

    @cached_property
    def key(self) -> Key:
        of = [np.flatnonzero(self.kind_index == number) for number in range(len(self.kinds))]
        return tuple(
            (kind, tuple(self.counts[at].tolist()), tuple(self.num_nodes[at].tolist()))
            for kind, at in zip(self.kinds, of, strict=True)
            if len(at)
        )

    @cached_property
    def _places(self) -> dict[tuple[str, int], int]:
        return {
            (self.kinds[kind], count): at
            for at, (kind, count) in enumerate(zip(self.kind_index.tolist(), self.counts.tolist(), strict=True))
        }

    @staticmethod
    def of(sizes: Mapping[str, Sequence[int]], wanted: Sequence[int], allowed: Container[int] | None = None) -> Options:
        """`sizes`: slots of each node by type. Counts: one to a node in powers of two, then whole nodes, and those
        that jobs list themselves (`wanted`); none that no job may have (`allowed`)."""
        kinds = tuple(sorted(sizes))
        index, counts, num_nodes = [], [], []
        for number, kind in enumerate(kinds):
            ordered = sorted(sizes[kind], reverse=True)
            reach = np.cumsum(ordered)
            for count in sorted(_natural(ordered) | {n for n in wanted if n <= reach[-1]}):
                if allowed is None or count in allowed:
                    index.append(number)
                    counts.append(count)
                    num_nodes.append(int(np.searchsorted(reach, count)) + 1)
        capacity = np.asarray([sum(sizes[kind]) for kind in kinds])
        as_array = [np.asarray(one, dtype=np.int64) for one in (index, counts, num_nodes)]
        return Options(kinds, as_array[0], as_array[1], as_array[2], capacity)

    def index(self, kind: str, count: int) -> int | None:
        return self._places.get((kind, count))


def _natural(ordered: Sequence[int]) -> set[int]:
    largest = ordered[0]
    inside = {2**i for i in range(largest.bit_length()) if 2**i <= largest}
    return inside | {int(reach) for reach in np.cumsum(ordered)[_numbers(len(ordered)) - 1]}


def _numbers(most: int) -> Ints:
    """Of nodes: each while they are few, then four to an octave, and all of them."""
    octaves = np.arange(4 * log2(max(most / FEW_NODES, 1.0)) + 1) / 4
    beyond = np.minimum(np.round(FEW_NODES * 2.0**octaves), most).astype(np.int64)
    return np.unique(np.concatenate((np.arange(1, min(most, FEW_NODES) + 1), beyond, [most])))


@dataclass(frozen=True)
class Outlooks:
    """Of all jobs (rows) with all options (columns); goodput 0 where a job may not run."""

    goodput: Floats  # mean of the time that was looked ahead
    need: Floats  # seconds until it is done
    batches: Ints  # best now


@dataclass(frozen=True)
class Lessons:
    """How fast the types are to each other, by all tasks: where one was never tried, it is projected from this."""

    experience: Experience = NOTHING
    evidence: int = 0  # configurations that it was learnt from

    def refreshed(self, memories: Mapping[str, TaskMemory]) -> Lessons:
        """Learnt anew once there is half as much again to learn from, since it makes every task's model another one."""
        evidence = sum(len(memory.seen) for memory in memories.values())
        if evidence < MORE_EVIDENCE * self.evidence or not evidence:
            return self
        known = [_times(memory.points(), _ANY, NOTHING) for memory in memories.values() if memory.seen]
        return Lessons(learn(known[-MOST_TEACHERS:]), evidence)

    def to_json(self) -> list[Any]:
        return [self.evidence, [list(row) for row in self.experience.by_type]]

    @staticmethod
    def of(raw: Sequence[Any] | None) -> Lessons:
        if raw is None:
            return Lessons()
        rows = tuple((kind, tuple(means), tuple(spreads)) for kind, means, spreads in raw[1])
        return Lessons(Experience(rows), raw[0])


def outlooks(
    jobs: Sequence[JobView], memories: Mapping[str, TaskMemory], options: Options, lessons: Lessons,
    left: Floats, window: float,
) -> Outlooks:  # fmt: skip
    """A job's own measurements set its scale, its task's set the shape. `left`: the work of each; `window`: seconds to
    look ahead."""
    alike: dict[tuple[str, Limits], list[int]] = {}
    for row, job in enumerate(jobs):
        alike.setdefault((job.task, _asked(job.limits)), []).append(row)
    shape = len(jobs), len(options.counts)
    goodput, need, batches = np.zeros(shape), np.full(shape, np.inf), np.zeros(shape, dtype=np.int64)
    for (name, limits), rows in alike.items():
        memory = memories[name]
        mine = [jobs[row] for row in rows]
        task = _task(memory.points(), limits, options.key, lessons.experience)
        rates, batches[rows] = _best(task, [noise_of(job, memory) for job in mine])
        scale = np.asarray(scales_of(mine, task.times, limits))
        reach = max(limits.min_slots, COLD if task.largest == 0 else 2 * task.largest)
        cut = _least_factors(limits, options.counts, task.times.factors)
        slowness = np.where(options.counts <= reach, 1.0 / (scale[:, None] * cut), 0.0)
        done = np.asarray([float(job.done_samples) for job in mine])
        later = _best(task, list(memory.noise.values()))[0] if memory.noise else ()
        parts = stretches(rates, done, left[rows], dict(zip(memory.noise, later, strict=True)))
        goodput[rows] = mean_goodput(parts, window) * slowness
        with np.errstate(divide="ignore"):
            need[rows] = np.where(slowness > 0, seconds(parts) / slowness, np.inf)
    return Outlooks(goodput, need, batches)


@lru_cache(maxsize=4096)
def _asked(limits: Limits) -> Limits:
    """Without what a user of a static scheduler would ask for: models and batches do not depend on it."""
    return replace(limits, requested_slots=1, requested_batch=1)


def _least_factors(limits: Limits, counts: Ints, factors: Factors) -> Floats:
    """Step time of the best layout of each count, relative to replicas; infinite where the job admits none."""
    if not limits.cuts:
        return np.ones(len(counts))
    found = [[factor(factors, layout) for layout in limits.layouts(int(count))] for count in counts]
    return np.asarray([min(one, default=np.inf) for one in found])


def doubts(
    job: JobView, batches: Ints, memories: Mapping[str, TaskMemory], options: Options, lessons: Lessons
) -> Floats:
    """One standard deviation of the job's step time at each option and its batch, relative to it."""
    times = _times(memories[job.task].points(), _asked(job.limits), lessons.experience)
    choices = zip(options.kind_index, options.counts, options.num_nodes, batches, strict=True)
    return np.asarray([
        times.relative_error(int(slots), int(nodes), options.kinds[kind], max(int(batch), int(slots)), job.limits)
        for kind, slots, nodes, batch in choices
    ])  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Task:
    """The model of a task under some limits, and what it says about every option (rows) and batch (columns)."""

    times: Corrected
    speeds: Speeds
    base_batch: int
    largest: int  # slots that were measured, 0 for none


@lru_cache(maxsize=4096)
def _task(points: tuple[ProfilePoint, ...], limits: Limits, options: Key, experience: Experience) -> _Task:
    times = Corrected.of(_times(points, limits, experience), points)
    largest = max((point.num_slots for point in points), default=0)
    return _Task(times, _speeds(times, limits, options), limits.min_batch, largest)


@lru_cache(maxsize=4096)
def _times(points: tuple[ProfilePoint, ...], limits: Limits, experience: Experience) -> StepTime:
    return StepTime.of(throughput.fit(points, limits, experience), limits)


def _speeds(times: Corrected, limits: Limits, options: Key) -> Speeds:
    """A batch is what all ranks share, however evenly: the fullest rank sets the time."""
    grids = [coarse_batches(limits, kind, counts) for kind, counts, _ in options]
    shape = sum(len(grid) for grid in grids), max(grid.shape[1] for grid in grids)
    found = Speeds(np.zeros(shape), *(np.zeros(shape, dtype=np.int64) for _ in range(3)))
    first = 0
    for (kind, counts, num_nodes), grid in zip(options, grids, strict=True):
        here = slice(first, first + len(grid))
        found.batches[here] = grid[:, np.minimum(np.arange(shape[1]), grid.shape[1] - 1)]
        batches, first = found.batches[here], here.stop
        slots, nodes = (np.repeat(np.asarray(one)[:, None], shape[1], axis=1) for one in (counts, num_nodes))
        found.local[here], found.accumulation[here] = split(batches, slots, limits.max_local(kind))
        usable = np.asarray([_may_run(limits, kind, count) for count in counts])
        seconds = times.seconds_of(slots, nodes, kind, found.local[here], found.accumulation[here])
        found.samples[here] = np.where(usable[:, None], batches / seconds, 0.0)
    return found


def _may_run(limits: Limits, kind: str, count: int) -> bool:
    return (not limits.types or kind in limits.types) and count in limits.slot_counts and count <= limits.max_batch


def _best(task: _Task, noises: Sequence[float | None]) -> tuple[Floats, Ints]:
    """(goodput, batch) at the best batch, by job and option. Noise scales are told apart by eighths of an octave: what
    was measured is not more exact than that."""
    rounded = [None if noise is None or noise <= 0 else 2.0 ** (round(8 * log2(noise)) / 8) for noise in noises]
    known = [_at_noise(task, noise) for noise in rounded]
    return np.stack([one.goodputs for one in known]), np.stack([one.batches for one in known])


@lru_cache(maxsize=16384)
def _at_noise(task: _Task, noise: float | None) -> Best:
    """Kept: what is to come is asked for at every octave of a task's noise, decision after decision."""
    return task.speeds.best(task.base_batch, noise)
