"""What one job would do with every option (type and count): work a second, its batch, and how long it still needs.

Work a second is in the unit that the job's remaining work has: samples at the speed of `predict.speed.throughput`, each
worth what the gradient noise leaves of it at that batch where work is progress (`predict.speed.efficiency`). The batch
is the one of most work a second among those that the job may have (`policy.base.batch_bound`). On a type that a task
was never measured on, its speed is projected from how fast the types were to each other for all tasks
(`predict.speed.experience`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import log2
from typing import Any

import numpy as np

from elastic_core.domain import JobView, Limits, ProfilePoint
from elastic_core.policy.base.batch_bound import BatchBound, known_noise
from elastic_core.policy.base.options import Key, Options
from elastic_core.policy.horizon.corrected import Corrected, scales_of
from elastic_core.policy.horizon.noise_forecast import mean_rate, stretches, total_seconds
from elastic_core.policy.task_memory.measurements import TaskMemory
from elastic_core.predict.speed import throughput
from elastic_core.predict.speed.experience import NOTHING, Experience, learn
from elastic_core.predict.speed.goodput import BatchRange, Best, Speeds, coarse_batches
from elastic_core.predict.speed.layout_speeds import Factors, factor
from elastic_core.predict.speed.throughput import Floats, Ints, StepTime, split

COLD_START_SLOTS = 2  # slots that the first job of a task starts on
MAX_TASKS_LEARNT_FROM = 32  # tasks that the speeds of types are learnt from
REFIT_GROWTH = 1.5
_ANY = Limits(slot_counts=(1,), types=(), min_batch=1, max_batch=1)


@dataclass(frozen=True)
class Outlooks:
    """Of all jobs (rows) with all options (columns); rate 0 where a job may not run."""

    work_rate: Floats  # work a second, mean of the time that was looked ahead
    remaining_seconds: Floats  # seconds until it is done
    batches: Ints  # best now
    noise: tuple[float | None, ...]  # gradient noise scale of each job, its own or its task's; None: never measured


@dataclass(frozen=True)
class CrossTaskPrior:
    """How fast the types are to each other, by all tasks: where one was never tried, it is projected from this."""

    experience: Experience = NOTHING
    evidence: int = 0  # configurations that it was learnt from

    def refreshed(self, memories: Mapping[str, TaskMemory]) -> CrossTaskPrior:
        """Learnt anew once there is half as much again to learn from, since it makes every task's model another one."""
        evidence = sum(len(memory.means) for memory in memories.values())
        if evidence < REFIT_GROWTH * self.evidence or not evidence:
            return self
        models = [_times(memory.points(), _ANY, NOTHING) for memory in memories.values() if memory.means]
        return CrossTaskPrior(learn(models[-MAX_TASKS_LEARNT_FROM:]), evidence)

    def to_json(self) -> list[Any]:
        return [self.evidence, [list(row) for row in self.experience.by_type]]

    @staticmethod
    def of(raw: Sequence[Any] | None) -> CrossTaskPrior:
        if raw is None:
            return CrossTaskPrior()
        rows = tuple((kind, tuple(means), tuple(spreads)) for kind, means, spreads in raw[1])
        return CrossTaskPrior(Experience(rows), raw[0])


def outlooks(
    jobs: Sequence[JobView], memories: Mapping[str, TaskMemory], options: Options, prior: CrossTaskPrior,
    remaining_work: Floats, window: float,
) -> Outlooks:  # fmt: skip
    """A job's own measurements set its scale, its task's set the shape. `remaining_work`: of each, in its own unit;
    `window`: seconds to look ahead."""
    rows_by_model: dict[tuple[str, Limits, bool], list[int]] = {}
    for row, job in enumerate(jobs):
        rows_by_model.setdefault((job.task, _without_requests(job.limits), job.scale_invariant), []).append(row)
    shape = len(jobs), len(options.counts)
    work_rate, remaining_seconds, batches = np.zeros(shape), np.full(shape, np.inf), np.zeros(shape, dtype=np.int64)
    noise: list[float | None] = [None] * len(jobs)
    for (name, limits, scale_invariant), rows in rows_by_model.items():
        memory = memories[name]
        task = _task(memory.points(), limits, options.key, prior.experience, scale_invariant)
        of_task = _of_task(task, [jobs[row] for row in rows], memory, options, remaining_work[rows], window)
        work_rate[rows], remaining_seconds[rows] = of_task.work_rate, of_task.remaining_seconds
        batches[rows] = of_task.batches
        for row, value in zip(rows, of_task.noise, strict=True):
            noise[row] = value
    return Outlooks(work_rate, remaining_seconds, batches, tuple(noise))


def _of_task(
    task: _Task, jobs: Sequence[JobView], memory: TaskMemory, options: Options, remaining_work: Floats, window: float
) -> Outlooks:
    """Of jobs of one task, with equal limits."""
    limits, noise = _without_requests(jobs[0].limits), tuple(memory.noise_of(job) for job in jobs)
    bounds = [BatchBound.of(job, left) for job, left in zip(jobs, remaining_work.tolist(), strict=True)]
    rates, batches = _best(task, list(map(known_noise, jobs, noise)), bounds)
    scale = np.asarray(scales_of(jobs, task.times, limits))
    max_slots = max(limits.min_slots, COLD_START_SLOTS if task.largest == 0 else 2 * task.largest)
    layout_factor = _least_factors(limits, options.counts, task.times.factors)
    slowness = np.where(options.counts <= max_slots, 1.0 / (scale[:, None] * layout_factor), 0.0)
    done = np.asarray([float(job.done_samples) for job in jobs])
    later = {stage: _at_later_noise(task, value, bounds) for stage, value in memory.noise.items()}
    work_ahead = stretches(rates, done, remaining_work, later)
    with np.errstate(divide="ignore"):
        remaining_seconds = np.where(slowness > 0, total_seconds(work_ahead) / slowness, np.inf)
    return Outlooks(mean_rate(work_ahead, window) * slowness, remaining_seconds, batches, noise)


@lru_cache(maxsize=4096)
def _without_requests(limits: Limits) -> Limits:
    """Without what a user of a static scheduler would ask for: models and batches do not depend on it."""
    return replace(limits, requested_slots=1, requested_batch=1)


def _least_factors(limits: Limits, counts: Ints, factors: Factors) -> Floats:
    """Step time of the best layout of each count, relative to replicas; infinite where the job admits none."""
    if not limits.cuts:
        return np.ones(len(counts))
    layout_factors = [[factor(factors, layout) for layout in limits.layouts(int(count))] for count in counts]
    return np.asarray([min(of_count, default=np.inf) for of_count in layout_factors])


def relative_uncertainty(
    job: JobView, batches: Ints, memories: Mapping[str, TaskMemory], options: Options, prior: CrossTaskPrior
) -> Floats:
    """One standard deviation of the job's step time at each option and its batch, relative to it."""
    return _errors(range(len(options.counts)), job, batches, memories, options, prior)


def uncertainty_at(
    option: int, job: JobView, batches: Ints, memories: Mapping[str, TaskMemory], options: Options,
    prior: CrossTaskPrior,
) -> float:  # fmt: skip
    """The same at one option. What the job has measured there is asked before any model, which takes longer."""
    kind, count = options.kinds[options.kind_index[option]], int(options.counts[option])
    reports = [point.count for point in job.profile if (point.type, point.num_slots) == (kind, count)]
    if reports:
        return throughput.measured_error(max(reports))
    return float(_errors([option], job, batches, memories, options, prior)[0])


def _errors(
    at: Sequence[int], job: JobView, batches: Ints, memories: Mapping[str, TaskMemory], options: Options,
    prior: CrossTaskPrior,
) -> Floats:  # fmt: skip
    limits = _without_requests(job.limits)
    times = _times(memories[job.task].points(), limits, prior.experience)
    rows = np.asarray(at)
    choices = zip(options.kind_index[rows], options.counts[rows], options.num_nodes[rows], batches[rows], strict=True)
    return np.asarray([
        _error(times, int(slots), int(nodes), options.kinds[kind], max(int(batch), int(slots)), limits)
        for kind, slots, nodes, batch in choices
    ])  # fmt: skip


@lru_cache(maxsize=16384)  # many jobs of a task ask the same
def _error(times: StepTime, slots: int, nodes: int, kind: str, batch: int, limits: Limits) -> float:
    return times.relative_error(slots, nodes, kind, batch, limits)


@dataclass(frozen=True, eq=False)
class _Task:
    """The model of a task under some limits, and what it says about every option (rows) and batch (columns)."""

    times: Corrected
    speeds: Speeds
    reference_batch: int
    largest: int  # slots that were measured, 0 for none
    scale_invariant: bool  # the unit of its work


@lru_cache(maxsize=4096)
def _task(
    points: tuple[ProfilePoint, ...], limits: Limits, options: Key, experience: Experience, scale_invariant: bool
) -> _Task:
    times = Corrected.of(_times(points, limits, experience), points)
    largest = max((point.num_slots for point in points), default=0)
    return _Task(times, _speeds(times, limits, options), limits.reference_batch, largest, scale_invariant)


@lru_cache(maxsize=4096)
def _times(points: tuple[ProfilePoint, ...], limits: Limits, experience: Experience) -> StepTime:
    return StepTime.of(throughput.fit(points, limits, experience), limits)


def _speeds(times: Corrected, limits: Limits, options: Key) -> Speeds:
    """A batch is what all ranks share, however evenly: the fullest rank sets the time."""
    grids = [coarse_batches(limits, kind, counts) for kind, counts, _ in options]
    shape = sum(len(grid) for grid in grids), max(grid.shape[1] for grid in grids)
    speeds = Speeds(np.zeros(shape), *(np.zeros(shape, dtype=np.int64) for _ in range(3)))
    first = 0
    for (kind, counts, num_nodes), grid in zip(options, grids, strict=True):
        rows_of_kind = slice(first, first + len(grid))
        speeds.batches[rows_of_kind] = grid[:, np.minimum(np.arange(shape[1]), grid.shape[1] - 1)]
        batches, first = speeds.batches[rows_of_kind], rows_of_kind.stop
        slots, nodes = (np.repeat(np.asarray(column)[:, None], shape[1], axis=1) for column in (counts, num_nodes))
        speeds.local[rows_of_kind], speeds.accumulation[rows_of_kind] = split(batches, slots, limits.max_local(kind))
        usable = np.asarray([_may_run(limits, kind, count) for count in counts])
        step_seconds = times.seconds_of(
            slots, nodes, kind, speeds.local[rows_of_kind], speeds.accumulation[rows_of_kind]
        )
        speeds.samples[rows_of_kind] = np.where(usable[:, None], batches / step_seconds, 0.0)
    return speeds


def _may_run(limits: Limits, kind: str, count: int) -> bool:
    return (not limits.types or kind in limits.types) and count in limits.slot_counts and count <= limits.max_batch


def _best(task: _Task, noises: Sequence[float | None], bounds: Sequence[BatchBound | None]) -> tuple[Floats, Ints]:
    """(work a second, batch) at the best batch, by job and option. Noise scales are told apart by eighths of an octave:
    what was measured is not more exact than that."""
    best_at_noise = [_bounded_best(task, noise, bound) for noise, bound in zip(noises, bounds, strict=True)]
    return np.stack([best.rates for best in best_at_noise]), np.stack([best.batches for best in best_at_noise])


def _at_later_noise(task: _Task, noise: float, bounds: Sequence[BatchBound | None]) -> Floats:
    """Work a second by job and option; one row for all where only their range binds them."""
    distinct = {bound: _bounded_best(task, noise, bound).rates for bound in set(bounds)}
    return next(iter(distinct.values())) if len(distinct) == 1 else np.stack([distinct[bound] for bound in bounds])


def _bounded_best(task: _Task, noise: float | None, bound: BatchBound | None) -> Best:
    rounded = None if noise is None or noise <= 0 else 2.0 ** (round(8 * log2(noise)) / 8)
    return _at_noise(task, rounded, None if bound is None else bound.range(rounded))


@lru_cache(maxsize=16384)
def _at_noise(task: _Task, noise: float | None, allowed: BatchRange | None) -> Best:
    """Kept: what is to come is asked for at every octave of a task's noise, decision after decision."""
    return task.speeds.best(task.reference_batch, noise, scale_invariant=task.scale_invariant, allowed=allowed)
