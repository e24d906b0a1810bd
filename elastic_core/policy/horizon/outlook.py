"""What each job would do with every option (type and count): work a second, its batch, and how long it still needs.

Work a second is in the unit that the job's remaining work has: samples at the speed of `predict.speed.throughput`, each
worth what the gradient noise leaves of it at that batch where work is progress (`predict.speed.efficiency`). The batch
is the one of most work a second among those that the job may have (`policy.base.batch_bound`). On a type that a task
was never measured on, its speed is projected from how fast the types were to each other for all tasks
(`policy.horizon.speeds.type_prior`). All jobs are looked at together: a pool may have thousands, each of a task of its
own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import log2

import numpy as np

from elastic_core.domain import JobView, Limits
from elastic_core.policy.base.batch_bound import BatchBound, known_noise
from elastic_core.policy.base.options import Options
from elastic_core.policy.base.remaining_distribution import RemainingWork, is_declared
from elastic_core.policy.horizon.speeds.corrected import Corrected, scales_of
from elastic_core.policy.horizon.speeds.noise_forecast import mean_rate, stretches, total_seconds
from elastic_core.policy.horizon.speeds.task_models import TaskModel, task_models
from elastic_core.policy.task_memory.exchange_memory import NO_EXCHANGES, ExchangeMemory
from elastic_core.policy.task_memory.measurements import TaskMemory, stage_of
from elastic_core.predict.remembered import Remembered
from elastic_core.predict.speed import throughput
from elastic_core.predict.speed.efficiency import works_per_sample
from elastic_core.predict.speed.experience import Experience
from elastic_core.predict.speed.goodput import BatchRange, Best
from elastic_core.predict.speed.kept_exchange import shared_points
from elastic_core.predict.speed.throughput import Floats, Ints, StepTime, split


@dataclass(frozen=True)
class Outlooks:
    """Of all jobs (rows) with all options (columns); rate 0 where a job may not run."""

    work_rate: Floats  # work a second, mean of the time that was looked ahead
    remaining_seconds: Floats  # seconds until it is done
    batches: Ints  # best now
    noise: tuple[float | None, ...]  # gradient noise scale of each job, its own or its task's; None: never measured
    times: tuple[StepTime, ...]  # the model of each job's task
    slowness: Floats  # of each job, relative to that model
    corrected: tuple[Corrected, ...]  # that model, put right by what was measured


@dataclass(frozen=True)
class _Group:
    """Jobs of one task, with equal limits and unit of work."""

    memory: TaskMemory
    limits: Limits
    model: TaskModel
    rows: list[int]


def outlooks(
    jobs: Sequence[JobView], memories: Mapping[str, TaskMemory], options: Options, experience: Experience,
    remaining_work: Floats, window: float, exchanges: ExchangeMemory = NO_EXCHANGES,
) -> Outlooks:  # fmt: skip
    """A job's own measurements set its scale, its task's set the shape. `remaining_work`: of each, in its own unit;
    `window`: seconds to look ahead."""
    groups = _groups(jobs, memories, options, experience, exchanges)
    models: list[TaskModel] = [groups[0].model] * len(jobs)
    limits: list[Limits] = [groups[0].limits] * len(jobs)
    layout_factor = np.ones((len(jobs), len(options.counts)))
    possible = np.zeros(layout_factor.shape, dtype=np.bool_)
    for group in groups:
        for row in group.rows:
            models[row], limits[row] = group.model, group.limits
            possible[row, group.model.at] = True
        if group.limits.cuts:
            layout_factor[group.rows] = _least_factors(group.limits, options, group.model.corrected.times)
    noise = [memories[job.task].noise_of(job) for job in jobs]
    bounds = [BatchBound.of(job, left) for job, left in zip(jobs, remaining_work.tolist(), strict=True)]
    rates, batches = _best(models, list(map(known_noise, jobs, noise)), bounds, options)
    scale = scales_of(jobs, [model.corrected for model in models], limits)
    with np.errstate(divide="ignore", invalid="ignore"):
        slowness = np.where(possible, 1.0 / (scale[:, None] * layout_factor), 0.0)
        rate = rates * slowness
        remaining_seconds = np.where(rate > 0, remaining_work[:, None] / rate, np.inf)
    corrected = tuple(model.corrected for model in models)
    times = tuple(model.times for model in corrected)
    outlook = Outlooks(rate, remaining_seconds, batches, tuple(noise), times, scale, corrected)
    _look_at_later_noise(outlook, groups, jobs, options, rates, slowness, bounds, remaining_work, window)
    return outlook


def with_caps(outlook: Outlooks, jobs: Sequence[JobView], left: RemainingWork) -> Outlooks:
    """The same, with the seconds until each job is done or has read all that it may (`JobView.samples_left`).

    At a batch of which a sample is worth less it comes to that with less of its work done, and so sooner.
    """
    capped = [row for row, job in enumerate(jobs) if job.samples_left is not None]
    if not capped:
        return outlook
    most = np.stack([_most_work(jobs[row], outlook.batches[row], outlook.noise[row]) for row in capped])
    mean = left.mean[capped, None]
    done = np.minimum(most, mean)
    for at, row in enumerate(capped):
        if not is_declared(jobs[row]):
            done[at] = np.minimum(left.within(row, most[at]), mean[at])
    seconds = outlook.remaining_seconds.copy()
    seconds[capped] *= done / mean
    return replace(outlook, remaining_seconds=seconds)


def _most_work(job: JobView, batches: Ints, noise: float | None) -> Floats:
    """That the samples which the job may still read do at each of these batches, one sample at least."""
    worth = works_per_sample(
        np.maximum(batches, 1), job.limits.reference_batch, known_noise(job, noise), scale_invariant=job.scale_invariant
    )  # fmt: skip
    return max(job.samples_left or 0, 1) * worth


def _groups(
    jobs: Sequence[JobView], memories: Mapping[str, TaskMemory], options: Options, experience: Experience,
    exchanges: ExchangeMemory,
) -> list[_Group]:  # fmt: skip
    rows_by_model: dict[tuple[str, Limits, bool], list[int]] = {}
    for row, job in enumerate(jobs):
        rows_by_model.setdefault((job.task, _without_requests(job.limits), job.scale_invariant), []).append(row)
    key = options.key
    models = task_models.all(
        [
            (
                shared_points(memories[task].points(), limits), limits, key, experience, unit,
                exchanges.forecast(task, limits),
            )
            for task, limits, unit in rows_by_model
        ]
    )  # fmt: skip
    return [
        _Group(memories[task], limits, model, rows)
        for ((task, limits, _), rows), model in zip(rows_by_model.items(), models, strict=True)
    ]


def _look_at_later_noise(
    outlook: Outlooks, groups: Sequence[_Group], jobs: Sequence[JobView], options: Options, rates: Floats,
    slowness: Floats, bounds: Sequence[BatchBound | None], remaining_work: Floats, window: float,
) -> None:  # fmt: skip
    """Put the rates and times right of jobs whose task has shown a gradient noise that they have yet to come to."""
    for group in groups:
        noise = group.memory.noise
        if not noise or all(stage_of(jobs[row].done_samples) >= max(noise) for row in group.rows):
            continue
        rows = group.rows
        of_rows = [bounds[row] for row in rows]
        done = np.asarray([float(jobs[row].done_samples) for row in rows])
        later = {stage: _at_later_noise(group.model, value, of_rows, options) for stage, value in noise.items()}
        work_ahead = stretches(rates[rows], done, remaining_work[rows], later)
        with np.errstate(divide="ignore"):
            outlook.remaining_seconds[rows] = np.where(
                slowness[rows] > 0, total_seconds(work_ahead) / slowness[rows], np.inf
            )
        outlook.work_rate[rows] = mean_rate(work_ahead, window) * slowness[rows]


@lru_cache(maxsize=32768)
def _without_requests(limits: Limits) -> Limits:
    """Without what a user of a static scheduler would ask for: models and batches do not depend on it."""
    return replace(limits, requested_slots=1, requested_batch=1)


def _least_factors(limits: Limits, options: Options, times: StepTime) -> Floats:
    """Step time of the best layout of each count, relative to replicas; infinite where the job admits none. That of
    servers is taken at the reference batch: they are options like any other cut."""
    columns = zip(options.counts.tolist(), options.num_nodes.tolist(), options.kind_index.tolist(), strict=True)
    factors = []
    for count, num_nodes, index in columns:
        batch = max(limits.reference_batch, count)
        layouts = limits.layouts(count)
        of_count = [times.factor_in(layout, num_nodes, options.kinds[index], batch, limits) for layout in layouts]
        factors.append(min(of_count, default=np.inf))
    return np.asarray(factors)


def relative_uncertainty(job: JobView, times: StepTime, batches: Ints, options: Options) -> Floats:
    """One standard deviation of the job's step time at each option and its batch, relative to it. `times`: the model of
    its task."""
    every = np.arange(len(options.counts))
    return _errors([job] * len(every), [times] * len(every), every, batches, options)


def uncertainties_at(
    chosen: Ints, jobs: Sequence[JobView], times: Sequence[StepTime], batches: Ints, options: Options
) -> Floats:
    """The same of each job at one option and batch. What the job has measured there is asked before any model."""
    errors = np.zeros(len(jobs))
    unmeasured = []
    for row, (job, option) in enumerate(zip(jobs, chosen.tolist(), strict=True)):
        kind, count = options.kinds[options.kind_index[option]], int(options.counts[option])
        reports = [point.count for point in job.profile if (point.type, point.num_slots) == (kind, count)]
        if reports:
            errors[row] = throughput.measured_error(max(reports))
        else:
            unmeasured.append(row)
    if unmeasured:
        errors[unmeasured] = _errors(
            [jobs[row] for row in unmeasured], [times[row] for row in unmeasured],
            chosen[unmeasured], batches[unmeasured], options,
        )  # fmt: skip
    return errors


def shares(jobs: Sequence[JobView], at: Ints, batches: Ints, options: Options) -> tuple[Ints, Ints]:
    """(local batch, accumulation) of the fullest rank, of each job at one option and global batch."""
    slots = options.counts[at]
    parts = [
        split(batch, count, job.limits.max_local(options.kinds[index]))
        for batch, count, job, index in zip(
            np.maximum(batches, slots), slots, jobs, options.kind_index[at], strict=True
        )
    ]
    local, accumulation = np.asarray(parts).T
    return local, accumulation


def _errors(jobs: Sequence[JobView], times: Sequence[StepTime], at: Ints, batches: Ints, options: Options) -> Floats:
    slots, kinds = options.counts[at], [options.kinds[index] for index in options.kind_index[at]]
    local, accumulation = shares(jobs, at, batches, options)
    return throughput.relative_errors(times, kinds, slots, options.num_nodes[at], local, accumulation)


def _best(
    models: Sequence[TaskModel], noises: Sequence[float | None], bounds: Sequence[BatchBound | None], options: Options
) -> tuple[Floats, Ints]:
    """Work a second and the best batch of each job (rows) at every option; 0 where it may not run now. Noise scales are
    told apart by eighths of an octave: what was measured is not more exact than that."""
    rounded = [None if noise is None or noise <= 0 else 2.0 ** (round(8 * log2(noise)) / 8) for noise in noises]
    best = _at_noise.all([
        (model, noise, None if bound is None else bound.range(noise))
        for model, noise, bound in zip(models, rounded, bounds, strict=True)
    ])  # fmt: skip
    rates = np.zeros((len(models), len(options.counts)))
    batches = np.zeros(rates.shape, dtype=np.int64)
    for row, (model, of_model) in enumerate(zip(models, best, strict=True)):
        rates[row, model.at], batches[row, model.at] = of_model.rates, of_model.batches
    return rates, batches


def _at_later_noise(model: TaskModel, noise: float, bounds: Sequence[BatchBound | None], options: Options) -> Floats:
    """Work a second by job and option; one row for all where only their range binds them."""
    distinct = list(set(bounds))
    rates, _ = _best([model] * len(distinct), [noise] * len(distinct), distinct, options)
    if len(distinct) == 1:
        return np.asarray(rates[0])
    by_bound = dict(zip(distinct, rates, strict=True))
    return np.stack([by_bound[bound] for bound in bounds])


def _find_best(asked: Sequence[tuple[TaskModel, float | None, BatchRange | None]]) -> list[Best]:
    return [
        model.speeds.best(model.reference_batch, noise, scale_invariant=model.scale_invariant, allowed=allowed)
        for model, noise, allowed in asked
    ]


# Kept: what is to come is asked for at every octave of a task's noise, decision after decision.
_at_noise: Remembered[tuple[TaskModel, float | None, BatchRange | None], Best] = Remembered(_find_best, most=65536)
