"""Robust non-linear least squares under several priors, for many fits of one size at once.

Levenberg and Marquardt's method with given derivatives, damped by Marquardt's scaling and Nielsen's rule (Madsen,
Nielsen and Tingleff 2004, "Methods for non-linear least squares problems", section 3.2). All fits take their steps
together, so that a step costs a few operations on large arrays instead of as many on small ones for each fit; who has
arrived drops out. Promises a local minimum, and that a fit's answer is to the bit the same whoever it is fitted with:
decisions are replayed by other processes, which have fitted other models before.

`scipy.optimize.least_squares` ends in the same minima (`tests/predict/speed/test_least_squares.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
_Mask = NDArray[np.bool_]

_MAX_STEPS = 300  # one that passes a saddle takes more than 60
# A fall of the cost, seen and expected, that ends a search: so little of it, or less than moves a parameter by a
# thousandth of its standard deviation (the cost is in residuals squared, relative to their errors).
_CLOSE, _NOTHING = 1e-8, 1e-7
_DAMPING, _LEAST_DAMPING, _MOST_DAMPING = 1e-4, 1e-9, 1e12  # relative to the diagonal of the normal matrix


class Residuals(Protocol):
    """What is measured of some fits."""

    def at(self, theta: Floats) -> tuple[Floats, Floats]:
        """Residuals (fits, rows) and their derivatives (fits, rows, parameters) at `theta` (fits, parameters)."""
        ...

    def of(self, fits: Ints) -> Residuals:
        """Those of some of the fits, in that order."""
        ...


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """Priors to fit under, one a fit (fits, parameters); `cost` is added to their sums of squares when hypotheses are
    compared. `holds`: whether a fit considers this hypothesis. `start`: where to search from, if not at the means."""

    mean: Floats
    spread: Floats
    cost: float = 0.0
    holds: _Mask | None = None
    start: Floats | None = None

    def of(self, fits: Ints) -> Hypothesis:
        return Hypothesis(self.mean[fits], self.spread[fits], self.cost, None)


@dataclass(frozen=True, slots=True)
class _Point:
    """Where each fit is: arrays of one entry a fit."""

    theta: Floats
    cost: Floats  # sum of squares, the prior's among them; infinite where it is no number
    normal: Floats  # (fits, parameters, parameters): the inverse of the covariance
    gradient: Floats  # half of the cost's

    def put(self, fits: Ints | _Mask, other: _Point, those: Ints | _Mask) -> None:
        """Take over what `other` has of `those`."""
        for own, taken in ((self.theta, other.theta), (self.cost, other.cost), (self.normal, other.normal),
                             (self.gradient, other.gradient)):  # fmt: skip
            own[fits] = taken[those]


def soften(scaled: Floats) -> tuple[Floats, Floats]:
    """Residuals whose squares are the soft-L1 loss, so that one absurd point cannot pull the rest along.

    With the factor that the derivatives of each are multiplied by.
    """
    root = np.sqrt(1.0 + scaled**2)
    softened = scaled * np.sqrt(2.0 / (root + 1.0))
    return softened, np.sqrt((root + 1.0) / 2.0) / root


def minimise(residuals: Residuals, hypotheses: Sequence[Hypothesis]) -> tuple[Floats, Floats, _Mask]:
    """(the best points under the best hypotheses, the inverses of their normal matrices: the covariances, where both
    are finite). What is not finite was not found.

    The first search starts where its hypothesis says, the others where the best so far ended, but for what their priors
    say otherwise. The first hypothesis holds for every fit, and costs least.
    """
    first, *others = hypotheses
    best = _search(residuals, first, first.mean if first.start is None else first.start)
    for other in others:
        tried = best.cost > other.cost  # else it cannot win: squares are not negative
        fits = np.flatnonzero(tried if other.holds is None else tried & other.holds)
        if len(fits):
            prior = other.of(fits)
            start = np.where(prior.mean == first.mean[fits], best.theta[fits], prior.mean)
            reached = _search(residuals.of(fits), prior, start)
            better = reached.cost < best.cost[fits]
            best.put(fits[better], reached, better)
    finite = np.isfinite(best.cost) & np.isfinite(best.theta).all(axis=1) & np.isfinite(best.normal).all(axis=(1, 2))
    covariance = _inverse(np.where(finite[:, None, None], best.normal, np.eye(best.theta.shape[1])))
    return best.theta, covariance, finite & np.isfinite(covariance).all(axis=(1, 2))


def _search(residuals: Residuals, prior: Hypothesis, start: Floats) -> _Point:
    """Where no step lowers the sum of squares of any fit any more."""
    ended = _evaluate(residuals, prior, start)
    fits = np.flatnonzero(np.isfinite(ended.cost))  # those still on their way
    if not len(fits):
        return ended
    here, at, under = _picked(ended, fits), residuals, prior
    if len(fits) < len(start):
        at, under = residuals.of(fits), prior.of(fits)
    damping, growth = np.full(len(fits), _DAMPING), np.full(len(fits), 2.0)
    for _ in range(_MAX_STEPS):
        step, expected = _damped_step(here, damping)
        there = _evaluate(at, under, here.theta + step)
        fall = here.cost - there.cost
        lower = fall > 0
        small = np.maximum(_CLOSE * (here.cost - prior.cost), _NOTHING)
        arrived = (expected <= small) & (fall <= small) | (damping > _MOST_DAMPING)
        gain = np.where(lower, fall, 0.0) / np.maximum(expected, 1e-300)
        shrunk = damping * np.maximum(1.0 / 3.0, 1.0 - np.minimum(2.0 * gain - 1.0, 2.0) ** 3)
        damping = np.where(lower, np.maximum(shrunk, _LEAST_DAMPING), damping * growth)
        growth = np.where(lower, 2.0, 2.0 * growth)
        here.put(lower, there, lower)
        if arrived.any():
            ended.put(fits[arrived], here, arrived)
            going = np.flatnonzero(~arrived)
            if not len(going):
                return ended
            fits, damping, growth = fits[going], damping[going], growth[going]
            here, at, under = _picked(here, going), at.of(going), under.of(going)
    ended.put(fits, here, np.arange(len(fits)))
    return ended


def _picked(point: _Point, fits: Ints) -> _Point:
    return _Point(point.theta[fits], point.cost[fits], point.normal[fits], point.gradient[fits])


def _evaluate(residuals: Residuals, prior: Hypothesis, theta: Floats) -> _Point:
    off, slope = residuals.at(theta)
    from_prior = (theta - prior.mean) / prior.spread
    turned = slope.transpose(0, 2, 1)
    normal, gradient = turned @ slope, (turned @ off[..., None])[..., 0]
    diagonal = np.arange(theta.shape[1])
    normal[:, diagonal, diagonal] += prior.spread**-2
    gradient += from_prior / prior.spread
    cost = (off**2).sum(axis=1) + (from_prior**2).sum(axis=1) + prior.cost
    sound = np.isfinite(cost + gradient.sum(axis=1) + normal.sum(axis=(1, 2)))
    return _Point(theta.copy(), np.where(sound, cost, np.inf), normal, gradient)


def _damped_step(here: _Point, damping: Floats) -> tuple[Floats, Floats]:
    """(the step of each fit, by how much its cost is expected to fall)."""
    diagonal = np.arange(here.theta.shape[1])
    scale = 1.0 / np.sqrt(here.normal[:, diagonal, diagonal])
    matrix = here.normal * scale[:, :, None] * scale[:, None, :]  # of unit diagonal: with the damping never singular
    matrix[:, diagonal, diagonal] += damping[:, None]
    downhill = -here.gradient * scale
    scaled = np.linalg.solve(matrix, downhill[..., None])[..., 0]
    expected: Floats = (scaled * (damping[:, None] * scaled + downhill)).sum(axis=1)
    return scaled * scale, expected


def _inverse(normal: Floats) -> Floats:
    """Of each; not a number where there is none."""
    try:
        return np.asarray(np.linalg.inv(normal), dtype=np.float64)
    except np.linalg.LinAlgError:
        return np.stack([_inverse_of_one(matrix) for matrix in normal])


def _inverse_of_one(matrix: Floats) -> Floats:
    try:
        return np.asarray(np.linalg.inv(matrix), dtype=np.float64)
    except np.linalg.LinAlgError:
        return np.full(matrix.shape, np.nan)
