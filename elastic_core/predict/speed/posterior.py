"""The parameters of step times that explain measurements best, of many jobs at once: maximum a posteriori estimates.

Logarithms of step times, of their part without the wait for gradients where that was measured, and that wait itself
are each compared with `predict.speed.step_form`, against the prior that `predict.speed.experience` gives. Jobs are
fitted together with those that have as many types and about as many points (`_size`), which does not change a bit of
their answers (`predict.speed.least_squares`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from math import exp, isfinite, log
from statistics import median

import numpy as np

from elastic_core.domain import CPU, ProfilePoint
from elastic_core.predict.speed.experience import SHARED, Experience, common_prior
from elastic_core.predict.speed.least_squares import Hypothesis, Residuals, minimise, soften
from elastic_core.predict.speed.step_form import BY_TYPE, COMMON, Floats, Ints, Shapes, slopes

MODEL_ERROR = 0.06  # relative, of the form itself: what is left on measured traces however many points there are
POINT_ERROR = 0.10  # relative, of one report
_COMPUTE_ERROR = 0.15  # relative, of a step's time without its wait for gradients
_SYNC_ERROR, _SYNC_SHARE = 0.25, 0.03  # of that wait: relative to it, and to the step
_SHARED_COST = 7.0  # in residuals squared: what the hypothesis of sharing must explain better
_LARGEST = 60.0  # of a logarithm
_FEW_POINTS = 4
_CELLS = 2**20  # derivatives of the fits that are made together: larger arrays do not fit the caches


@dataclass(frozen=True, slots=True)
class Question:
    """What a job measured: at least one point, each with positive sizes and seconds; their types are among `types`."""

    points: Sequence[ProfilePoint]
    types: tuple[str, ...]
    experience: Experience


Answer = tuple[Floats, Floats] | None  # (logarithms, their covariance); None: nothing finite explains it


def estimates(questions: Sequence[Question]) -> list[Answer]:
    """Of each job. The parameters are `COMMON`, then `BY_TYPE` of each of its types."""
    alike: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for index, question in enumerate(questions):
        alike[_size(len(question.points)), len(question.types)].append(index)
    answers: list[Answer] = [None] * len(questions)
    for (size, num_types), indices in alike.items():
        at_once = max(_CELLS // (3 * size * (len(COMMON) + len(BY_TYPE) * num_types)), 1)
        for first in range(0, len(indices), at_once):
            some = indices[first : first + at_once]
            for index, answer in zip(some, _estimates([questions[i] for i in some], size), strict=True):
                answers[index] = answer
    return answers


def prior_of(seconds: float, samples: float, types: Sequence[str], experience: Experience) -> tuple[Floats, Floats]:
    """Means and spreads; `seconds` of a typical micro-batch of `samples` on a slot."""
    of_common, spread_of_common = common_prior()
    of_types, spread_of_types = _prior_of_types(tuple(types), experience)
    mean = np.concatenate((of_common, of_types))
    mean[: COMMON.index("sync") + 1] += log(seconds)
    mean[COMMON.index("per_sample")] -= log(samples)
    return mean, np.concatenate((spread_of_common, spread_of_types))


@lru_cache(maxsize=256)
def _prior_of_types(types: tuple[str, ...], experience: Experience) -> tuple[Floats, Floats]:
    means, spreads = [experience.mean_of(kind) for kind in types], [experience.spread_of(kind) for kind in types]
    return (np.concatenate(means), np.concatenate(spreads)) if types else (np.empty(0), np.empty(0))


def _size(num_points: int) -> int:
    """Rows that so many points are given: by their own number alone, since sums of other lengths round otherwise."""
    return max(1 << (num_points - 1).bit_length(), _FEW_POINTS)


def _estimates(questions: Sequence[Question], size: int) -> list[Answer]:
    measured = _Measured.of_questions(questions, size)
    priors = [prior_of(*_typical(q.points, q.experience), q.types, q.experience) for q in questions]
    starts = np.stack([_start(question, mean) for question, (mean, _) in zip(questions, priors, strict=True)])
    alone = Hypothesis(np.stack([mean for mean, _ in priors]), np.stack([spread for _, spread in priors]), start=starts)
    theta, covariance, converged = minimise(measured, [alone, *_sharing(questions, alone)])
    return [(theta[i], covariance[i]) if converged[i] else None for i in range(len(questions))]


def _start(question: Question, mean: Floats) -> Floats:
    """Where to search from: each type as slow as it was measured, with an exchange as long as its steps.

    From the prior's means, where computing hides the exchange and its derivatives with it, one search in forty ends in
    a worse minimum, and all take half as many steps more (decision record 0074).
    """
    start = mean.copy()
    fixed, per_sample = mean[COMMON.index("fixed")], mean[COMMON.index("per_sample")]
    exchanging = [point for point in question.points if point.num_slots > 1 and _compute_part(point) is not None]
    if exchanging:
        start[COMMON.index("sync")] = median(log(point.step_seconds) for point in exchanging)
    sync = start[COMMON.index("sync")]
    for place, kind in enumerate(question.types):
        own = len(COMMON) + len(BY_TYPE) * place
        slowness = [
            log((_compute_part(point) or point.step_seconds) / point.accumulation)
            - float(np.logaddexp(fixed, per_sample + log(point.local_batch)))
            for point in question.points
            if point.type == kind
        ]
        if slowness:
            start[own + BY_TYPE.index("slowness")] = median(slowness)
        exchanges = [log(point.step_seconds) - sync for point in exchanging if point.type == kind]
        if exchanges:
            start[own + BY_TYPE.index("exchange")] = median(exchanges)
    return start


def _sharing(questions: Sequence[Question], alone: Hypothesis) -> list[Hypothesis]:
    """That slots share what they compute with, where that may be."""
    holds = np.asarray([_may_share(question.points) for question in questions])
    if not holds.any():
        return []
    shared = Hypothesis(alone.mean.copy(), alone.spread.copy(), _SHARED_COST, holds)
    at = COMMON.index("share")
    shared.mean[:, at], shared.spread[:, at] = log(SHARED[0]), SHARED[1]
    return [shared]


def _may_share(points: Sequence[ProfilePoint]) -> bool:
    """Whether slots may share what they compute with: CPUs do, which takes more slots than two to be told."""
    counts = {point.num_slots for point in points}
    return len(counts) > 1 and max(counts) > 2 and any(point.type == CPU for point in points)


def _typical(points: Sequence[ProfilePoint], experience: Experience) -> tuple[float, float]:
    """(seconds, samples) of a typical micro-batch: what the prior's ratios are taken from."""
    seconds = [
        log((_compute_part(point) or point.step_seconds) / point.accumulation)
        - float(experience.mean_of(point.type)[BY_TYPE.index("slowness")])
        for point in points
    ]
    return exp(median(seconds)), float(median([point.local_batch for point in points]))


def _compute_part(point: ProfilePoint) -> float | None:
    """Seconds of a step without the wait for gradients, where that was measured."""
    if point.num_slots == 1:
        return point.step_seconds
    compute = point.step_seconds - point.sync_seconds
    known = isfinite(point.sync_seconds) and point.sync_seconds > 0 and compute > 0.02 * point.step_seconds
    return compute if known else None


@dataclass(frozen=True)
class _Measured:
    """Of some jobs (rows) the points (columns); those that fill a row up, and what was not measured, weigh nothing."""

    shapes: Shapes
    log_step: Floats
    log_compute: Floats  # of one micro-batch
    wait: Floats
    step_weight: Floats  # one over the error, like
    compute_weight: Floats
    wait_weight: Floats

    @staticmethod
    def of_questions(questions: Sequence[Question], size: int) -> _Measured:
        shape = len(questions), size
        sizes = np.ones((5, *shape), dtype=np.int64)
        sizes[4] = 0
        values = np.zeros((6, *shape))
        for row, question in enumerate(questions):
            places = {kind: place for place, kind in enumerate(question.types)}
            for column, point in enumerate(question.points):
                sizes[:, row, column] = (
                    point.num_slots, point.num_nodes, point.local_batch, point.accumulation, places[point.type],
                )  # fmt: skip
                values[:, row, column] = _values(point)
        return _Measured(Shapes(*sizes), *values)

    def of(self, fits: Ints) -> Residuals:
        shapes = Shapes(*(getattr(self.shapes, name.name)[fits] for name in fields(Shapes)))
        rest = (getattr(self, name.name)[fits] for name in fields(self)[1:])
        return _Measured(shapes, *rest)

    def at(self, theta: Floats) -> tuple[Floats, Floats]:
        parts, grad_slope, step_slope = slopes(theta, self.shapes)
        step = np.exp(np.minimum(parts.log_step, _LARGEST))
        grad = np.exp(np.minimum(parts.log_grad, _LARGEST)) * self.shapes.accumulation
        off, factor = soften(
            np.concatenate(
                (
                    (parts.log_step - self.log_step) * self.step_weight,
                    (parts.log_grad - self.log_compute) * self.compute_weight,
                    (step - grad - self.wait) * self.wait_weight,
                ),
                axis=1,
            )
        )
        of_step, of_compute, of_wait = np.split(factor, 3, axis=1)
        waits = (step * self.wait_weight * of_wait)[..., None] * step_slope
        waits -= (grad * self.wait_weight * of_wait)[..., None] * grad_slope
        slope = np.concatenate(
            (
                (self.step_weight * of_step)[..., None] * step_slope,
                (self.compute_weight * of_compute)[..., None] * grad_slope,
                waits,
            ),
            axis=1,
        )
        return off, slope


def _values(point: ProfilePoint) -> tuple[float, ...]:
    """The columns of `_Measured` after its shapes."""
    noise = (MODEL_ERROR**2 + POINT_ERROR**2 / point.count) ** 0.5
    compute = _compute_part(point) if point.num_slots > 1 else None
    if compute is None:
        return log(point.step_seconds), 0.0, 0.0, 1.0 / noise, 0.0, 0.0
    wait = point.sync_seconds
    wait_error = _SYNC_SHARE * point.step_seconds + _SYNC_ERROR * wait
    return (
        log(point.step_seconds), log(compute / point.accumulation), wait,
        1.0 / noise, 1.0 / _COMPUTE_ERROR, 1.0 / wait_error,
    )  # fmt: skip
