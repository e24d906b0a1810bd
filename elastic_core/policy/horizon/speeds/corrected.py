"""A fitted step time, put right by what was measured: near a measured configuration the measurement counts.

No formula of a few parameters meets every type, count and batch of a real model (a detector on one A100 was three
times as fast as its best fit). What the fit leaves is taken from the measured points around: a kernel smoother over
the logarithms of slots and local batch, within a type, which fades to nothing away from what was measured.
Many models are asked at once (`seconds_of`); none depends on the others.

Where jobs may choose among exchanges, and have tried none on so many slots, the fit knows what they compute; what they
wait for is what the links and the bytes of each exchange say (`predict.speed.exchange_forecast`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from math import exp, inf, log
from statistics import median

import numpy as np
from numpy.typing import NDArray

from elastic_core.domain import JobView, Limits, ProfilePoint
from elastic_core.predict.speed.exchange_forecast import ExchangeForecast, TriedAt, tried_at
from elastic_core.predict.speed.kept_exchange import own_points
from elastic_core.predict.speed.layout_speeds import is_plain
from elastic_core.predict.speed.step_form import Shapes, evaluate
from elastic_core.predict.speed.throughput import Floats, Ints, StepTime, stacked

FIT_WEIGHT = 0.3  # of a measurement's own weight: what speaks for the fit everywhere
SLOTS_REACH, BATCH_REACH = 0.5, 1.0  # octaves
ACROSS_NODES = 1.0  # octaves of slots between one node and several
_UNBOUNDED = 2**62  # samples that fit a slot where no limit is known


@dataclass(frozen=True, eq=False)
class Corrected:
    times: StepTime
    kinds: tuple[str, ...]  # where was measured: the type, and a column of coordinates (see `_coordinates`) a point
    measured_at: Floats
    residuals: Floats  # logarithm of measured over fitted seconds there
    exchange: ExchangeForecast | None = None  # of who may choose one; None: the fit says it all
    tried: frozenset[TriedAt] = frozenset()  # where it has no say

    @staticmethod
    def of(times: StepTime, points: Sequence[ProfilePoint], exchange: ExchangeForecast | None = None) -> Corrected:
        return Corrected.of_all([times], [points], [exchange])[0]

    @staticmethod
    def of_all(
        models: Sequence[StepTime], points: Sequence[Sequence[ProfilePoint]],
        exchanges: Sequence[ExchangeForecast | None] | None = None,
    ) -> list[Corrected]:  # fmt: skip
        """`points`, `exchanges`: of each model."""
        usable = [[p for p in own if 0 < p.step_seconds < inf and is_plain(p.layout)] for own in points]
        kinds = tuple(sorted({point.type for own in usable for point in own}))
        local = [[point.local_batch for point in own] for own in usable]
        accumulation = [[point.accumulation for point in own] for own in usable]
        shapes = _shapes(usable, kinds, _table(local), _table(accumulation))
        fitted = evaluate(stacked(models, kinds), shapes).log_step
        coordinates = np.stack(_coordinates(shapes), axis=1)
        corrected = []
        for row, own in enumerate(usable):
            measured = np.log([point.step_seconds for point in own])
            corrected.append(
                Corrected(
                    models[row], tuple(point.type for point in own), coordinates[row, :, : len(own)],
                    measured - fitted[row, : len(own)],
                    *_exchange_of(own, None if exchanges is None else exchanges[row]),
                )
            )  # fmt: skip
        return corrected


def _exchange_of(
    points: Sequence[ProfilePoint], forecast: ExchangeForecast | None
) -> tuple[()] | tuple[ExchangeForecast, frozenset[TriedAt]]:
    return () if forecast is None else (forecast, tried_at(points))


def seconds_of(models: Sequence[Corrected], kinds: tuple[str, ...], shapes: Shapes) -> Floats:
    """Step seconds of each model (rows) at its configurations, whose types are counted in `kinds`."""
    fitted: Floats = np.exp(_log_steps(models, kinds, shapes))
    most = max(len(model.kinds) for model in models)
    if not most:
        return fitted
    measured_at, residuals = np.zeros((3, most, len(models))), np.zeros((most, len(models)))
    kind_at = np.full((most, len(models)), -1)
    for row, model in enumerate(models):
        number = len(model.kinds)
        measured_at[:, :number, row], residuals[:number, row] = model.measured_at, model.residuals
        kind_at[:number, row] = [kinds.index(kind) if kind in kinds else -1 for kind in model.kinds]
    column = len(models), *(1,) * (shapes.num_slots.ndim - 1)
    coordinates = _coordinates(shapes)
    total, weights = np.zeros(fitted.shape), np.zeros(fitted.shape)
    for point in range(most):  # a sum in the order of the points, however many others have
        slots, far, local = (
            (of - at.reshape(column)) ** 2 for of, at in zip(coordinates, measured_at[:, point], strict=True)
        )
        weight = np.exp(-0.5 * (slots + far + local)) * (shapes.type_index == kind_at[point].reshape(column))
        total += weight * residuals[point].reshape(column)
        weights += weight
    return fitted * np.exp(total / (weights + FIT_WEIGHT))


def _log_steps(models: Sequence[Corrected], kinds: tuple[str, ...], shapes: Shapes) -> Floats:
    """By the fits, but where an exchange that was not tried yet is forecast."""
    parts = evaluate(stacked([model.times for model in models], kinds), shapes)
    forecasts = _with_forecasts(models)
    if not forecasts:
        return parts.log_step
    log_step = parts.log_step.copy()
    for forecast, tried, rows in forecasts:
        own = _of_rows(shapes, rows)
        expected = forecast.expected(kinds, own, np.exp(parts.log_grad[rows]))
        counts = expected.known & ~_was_tried(tried, kinds, own)
        log_step[rows] = np.where(counts, np.log(np.where(counts, expected.seconds, 1.0)), log_step[rows])
    return log_step


def _with_forecasts(models: Sequence[Corrected]) -> list[tuple[ExchangeForecast, frozenset[TriedAt], list[int]]]:
    """Those that have one, and their rows: jobs of one task share a model."""
    rows_of: dict[int, list[int]] = {}
    for row, model in enumerate(models):
        if model.exchange is not None:
            rows_of.setdefault(id(model), []).append(row)
    known = [(models[rows[0]], rows) for rows in rows_of.values()]
    return [(model.exchange, model.tried, rows) for model, rows in known if model.exchange is not None]


def _of_rows(shapes: Shapes, rows: Sequence[int]) -> Shapes:
    """The configurations of some models."""
    of_all = (getattr(shapes, name.name) for name in fields(Shapes))
    return Shapes(*(of if len(of) == 1 else of[rows] for of in of_all))


def _was_tried(tried: Collection[TriedAt], kinds: Sequence[str], shapes: Shapes) -> NDArray[np.bool_]:
    """Whether each configuration is at one of these."""
    found = np.zeros(np.broadcast_shapes(shapes.num_slots.shape, shapes.type_index.shape), dtype=np.bool_)
    for slots, far, kind in tried:
        if kind in kinds:
            found |= (shapes.num_slots == slots) & (shapes.far == far) & (shapes.type_index == kinds.index(kind))
    return found


@dataclass(frozen=True, slots=True)
class CountedWith:
    """An exchange, by which a step is `gain` times as fast as by the exact sum. `forecast`: the speed there rests on
    it, since nothing was measured."""

    algorithm: str
    gain: float
    forecast: bool


def counted_with(
    models: Sequence[Corrected], kinds: tuple[str, ...], type_index: Ints, slots: Ints, nodes: Ints, local: Ints,
    accumulation: Ints,
) -> list[CountedWith | None]:  # fmt: skip
    """Of each model at one configuration; None where nothing is to be said of its exchange."""
    shapes = Shapes(*(of[:, None] for of in (slots, nodes, local, accumulation, type_index)))
    computing = np.exp(evaluate(stacked([model.times for model in models], kinds), shapes).log_grad)
    found: list[CountedWith | None] = [None] * len(models)
    for forecast, tried, rows in _with_forecasts(models):
        own = _of_rows(shapes, rows)
        expected, was_tried = forecast.expected(kinds, own, computing[rows]), _was_tried(tried, kinds, own)
        of_rows = (of[:, 0].tolist() for of in (expected.known, expected.chosen, expected.gain, was_tried))
        for row, told, chosen, gain, measured in zip(rows, *of_rows, strict=True):
            if told:
                found[row] = CountedWith(forecast.costs[chosen].algorithm, gain, not measured)
    return found


def slowness_over_nodes(
    models: Sequence[Corrected], kinds: tuple[str, ...], type_index: Ints, slots: Ints, local: Ints, accumulation: Ints
) -> Floats:
    """By how much longer a step takes on slots of several nodes than on those of one, of each model at one
    configuration; at least 1."""
    near, far = (
        seconds_of(models, kinds, Shapes(*(of[:, None] for of in (
            slots, np.full_like(slots, nodes), local, accumulation, type_index)))) for nodes in (1, 2)
    )  # fmt: skip
    return np.maximum((far / near)[:, 0], 1.0)


def scales_of(jobs: Sequence[JobView], models: Sequence[Corrected], limits: Sequence[Limits]) -> Floats:
    """How much slower each job is than its task's model says: the median over what it measured itself, and where nobody
    has measured its task, over what its steps are forecast to take. `models`, `limits`: of each job.

    Another model size under the same entry point shows here.
    """
    scales = np.ones(len(jobs))
    known = [
        [point for point in own_points(job.profile, own) if point.step_seconds > 0] or _forecast(job, model)
        for job, model, own in zip(jobs, models, limits, strict=True)
    ]
    rows = [row for row, points in enumerate(known) if points]
    if not rows:
        return scales
    points = [known[row] for row in rows]
    kinds = tuple(sorted({point.type for own in points for point in own}))
    most = [[limits[row].max_local(p.type) or _UNBOUNDED for p in own] for row, own in zip(rows, points, strict=True)]
    batches = _table([[point.global_batch for point in own] for own in points])
    slots = _table([[point.num_slots for point in own] for own in points])
    share = -(-batches // slots)
    accumulation = -(-share // _table(most))
    shapes = _shapes(points, kinds, -(-share // accumulation), accumulation)
    predicted = seconds_of([models[row] for row in rows], kinds, shapes).tolist()
    for row, own, expected in zip(rows, points, predicted, strict=True):
        scales[row] = _scale(own, expected, models[row].times, limits[row])
    return scales


def is_forecast(job: JobView, model: Corrected) -> bool:
    """Whether its speed is one that jobs of other tasks say: its task's model is fitted to no measurement."""
    return job.step_forecast is not None and not job.profile and not model.times.num_points


def _forecast(job: JobView, model: Corrected) -> list[ProfilePoint]:
    """The medians, as if they had been measured."""
    if job.step_forecast is None or not is_forecast(job, model):
        return []
    batch, at = job.limits.requested_batch, job.step_forecast.probabilities
    return [
        ProfilePoint(
            num_slots=1, num_nodes=1, type=kind, global_batch=batch, local_batch=batch, accumulation=1,
            step_seconds=float(np.exp(np.interp(0.5, at, np.log(seconds)))), sync_seconds=0.0, count=1,
        )
        for kind, seconds in job.step_forecast.seconds.items()
    ]  # fmt: skip


def _scale(points: Sequence[ProfilePoint], predicted: Sequence[float], times: StepTime, limits: Limits) -> float:
    ratios = []
    for point, expected in zip(points, predicted, strict=False):  # the rest fills the row up
        if expected > 0:
            place = point.num_nodes, point.type, point.global_batch
            layout_factor = 1.0 if point.layout is None else times.factor_in(point.layout, *place, limits)
            ratios.append(log(point.step_seconds / (expected * layout_factor)))
    return exp(median(ratios)) if ratios else 1.0


def _shapes(
    points: Sequence[Sequence[ProfilePoint]], kinds: tuple[str, ...], local: Ints, accumulation: Ints
) -> Shapes:
    """Of points in rows, filled up with ones."""
    return Shapes(
        _table([[point.num_slots for point in own] for own in points]),
        _table([[point.num_nodes for point in own] for own in points]),
        local,
        accumulation,
        _table([[kinds.index(point.type) for point in own] for own in points], 0),
    )


def _table(rows: Sequence[Sequence[int]], fill: int = 1) -> Ints:
    width = max(map(len, rows), default=0)
    return np.asarray([[*row, *(fill,) * (width - len(row))] for row in rows], dtype=np.int64).reshape(len(rows), width)


def _coordinates(shapes: Shapes) -> tuple[Floats, Floats, Floats]:
    """Coordinates in which the smoother reaches one unit."""
    return (
        np.log2(shapes.num_slots) / SLOTS_REACH,
        np.where(shapes.far, ACROSS_NODES / SLOTS_REACH, 0.0),
        np.log2(shapes.local_batch) / BATCH_REACH,
    )
