"""Loss as a function of steps, and from it the steps to a target loss, with an interval.

Two models. `optimus`: l(k) = 1 / (b0 k + b1) + b2 by non-negative least squares (Peng et al., EuroSys 2018, section
3.1). `fit`: a weighted set of falling curves with an offset, a (k + k0)^-p + c (power laws, of which Optimus's is one)
and a exp(-k / t) + c, each with its own best a and c, weighted by how well it explains what was seen (Bayesian model
averaging over a grid, recent points counting more). One curve cannot say how unsure it is about the floor c; a set of
them that all explain the past can, and where most of their floors lie above the target it is said to be out of reach.
Losses must not be negative; of an accuracy give what is missing (1 - accuracy). Steps in any unit, the caller's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import median_filter
from scipy.optimize import nnls

Floats = NDArray[np.float64]

MIN_POINTS = 4
INTERVAL = (0.1, 0.9)
_BINS = 48
_POWERS = np.asarray([0.15, 0.25, 0.35, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0])
_SHIFTS = np.asarray([0.0, 0.01, 0.03, 0.06, 0.1, 0.17, 0.3, 0.6, 1.2, 2.5])  # of the steps seen
_DECAYS = np.geomspace(0.05, 12.0, 36)  # of the steps seen
_MODEL_ERROR = 0.005  # of the range of losses seen: no curve is exact
_EVIDENCE = 0.5  # of a point
_FLOOR_DOUBT = 3.0  # against floors near the last loss: training is seldom stopped there
_OLDEST = 0.3  # weight of the first point relative to the last
_AROUND = (-2.0, -0.7, 0.7, 2.0)  # of the curves' error: the loss that is taken for the target may be off by that
_FLAT = 1e-300  # of the way to the target: a curve of that scale does not fall
_FOREVER = 1e200  # times the steps seen: a target that takes longer is out of reach
_DRIFT = 0.5  # spread of the model's error ahead, relative to its error so far, for each doubling of the steps


@dataclass(frozen=True, slots=True)
class StepsEstimate:
    """Total steps to the target: median and an 80 % interval, infinite where out of reach; `reachable`: probability."""

    median: float
    low: float
    high: float
    reachable: float


@dataclass(frozen=True, slots=True)
class OptimusCurve:
    b0: float
    b1: float
    b2: float

    def loss(self, step: float) -> float:
        below = self.b0 * step + self.b1
        return self.b2 + (1.0 / below if below > 0 else inf)

    def steps_to(self, target: float) -> float:
        if target <= self.b2 or self.b0 <= 0:
            return inf
        return max((1.0 / (target - self.b2) - self.b1) / self.b0, 0.0)


@dataclass(frozen=True)
class LossCurve:
    """Falling curves with their weights: parallel arrays. `form` 0: (x + shape_a)^-shape_b, 1: exp(-x / shape_a)."""

    seen: float  # the last step
    form: NDArray[np.int64]
    shape_a: Floats  # relative to `seen`, as x is
    shape_b: Floats
    scale: Floats
    floor: Floats
    weight: Floats
    error: float  # spread of the losses around the curves so far

    def loss(self, step: float) -> tuple[float, float, float]:
        """(median, low, high) of the loss at a step."""
        values = self.floor + self.scale * _basis(step / self.seen, self.form, self.shape_a, self.shape_b)
        spread = self.error * (1.0 + _DRIFT * max(np.log2(max(step / self.seen, 1.0)), 0.0))
        low, median, high = _quantiles(values, self.weight)
        return median, max(low - 1.28 * spread, 0.0), high + 1.28 * spread

    def steps_to(self, target: float) -> StepsEstimate:
        """When the loss falls to `target`. A target that the curves have passed already is reached by now."""
        reached = self._steps_of_each(target)
        low, median, high = _quantiles(*self.distribution(target))
        return StepsEstimate(median, low, high, float(self.weight[np.isfinite(reached)].sum()))

    def distribution(self, target: float) -> tuple[Floats, Floats]:
        """(steps, weights): when each curve falls to `target` or to near it; infinite where it never does."""
        steps = [self._steps_of_each(target + off * self.error) for off in _AROUND]
        return np.concatenate(steps), np.tile(self.weight, len(steps)) / len(steps)

    def _steps_of_each(self, target: float) -> Floats:
        above = target - self.floor  # of the curve's scale, at the target
        steps = np.where(above >= 0, 0.0, inf)  # of a curve that is flat: it is there, or will never be
        falls = self.scale > _FLAT * np.abs(above)
        share = np.divide(above, self.scale, out=np.zeros_like(above), where=falls)
        power = falls & (self.form == 0)
        decay = falls & (self.form != 0)
        in_reach = share > np.where(power, _FOREVER**-self.shape_b, _FLAT)
        steps[falls & ~in_reach] = inf
        power, decay = power & in_reach, decay & in_reach
        steps[power] = share[power] ** (-1.0 / self.shape_b[power]) - self.shape_a[power]
        steps[decay] = -self.shape_a[decay] * np.log(share[decay])
        samples: Floats = np.maximum(steps, 0.0) * self.seen
        return samples


def fit(points: Sequence[tuple[float, float]]) -> LossCurve | None:
    """The curves that explain (step, loss) points; None from fewer than `MIN_POINTS` usable ones of different steps."""
    seen = _usable(points)
    if len(seen) < MIN_POINTS:
        return None
    steps, losses, counts = _binned(seen)
    last = float(steps[-1])
    x = steps / last
    noise = _noise(seen[:, 1])
    span = max(float(np.ptp(losses)), 1e-6 * float(losses.max()), 1e-12)
    variance = (_MODEL_ERROR * span) ** 2 + noise**2 / counts
    weights = (_OLDEST + (1 - _OLDEST) * x) / variance
    form, shape_a, shape_b = _members()
    basis = _basis(x[None, :], form[:, None], shape_a[:, None], shape_b[:, None])
    scale, floor = _scales(basis, losses, weights)
    off = losses - floor[:, None] - scale[:, None] * basis
    chi = (weights * off**2).sum(axis=1)
    degrees = _EVIDENCE * max(len(x) - 2.0, 0.5)
    likelihood = -0.5 * degrees * np.log1p(chi / max(len(x) - 2.0, 0.5))  # Student's t: the noise itself is not known
    likelihood -= _FLOOR_DOUBT * floor / max(float(losses[-1]), 1e-6 * float(losses.max()), 1e-12)
    weight = np.exp(likelihood - likelihood.max())
    weight = weight / weight.sum()
    error = float(np.sqrt((weight[:, None] * off**2).sum() / len(x)))
    relevant = weight > 1e-5
    return LossCurve(
        last,
        form[relevant],
        shape_a[relevant],
        shape_b[relevant],
        scale[relevant],
        floor[relevant],
        weight[relevant] / weight[relevant].sum(),
        error,
    )


def optimus(points: Sequence[tuple[float, float]]) -> OptimusCurve | None:
    """Optimus's curve: for each floor b2 of a grid, 1 / (l - b2) is linear in the steps; the best floor is kept."""
    seen = _usable(points)
    if len(seen) < MIN_POINTS:
        return None
    steps, losses, _ = _binned(seen)
    best: tuple[float, OptimusCurve] | None = None
    for floor in np.append(0.0, losses.min() * (1.0 - np.geomspace(1e-3, 0.999, 40))):
        above = losses - floor
        if (above <= 0).any():
            continue
        weight = above**2  # to first order the errors of 1 / above are those of the loss over its square
        matrix = np.column_stack((steps / steps[-1], np.ones_like(steps))) * weight[:, None]
        (slope, start), _ = nnls(matrix, weight / above)
        curve = OptimusCurve(float(slope / steps[-1]), float(start), float(floor))
        off = float(np.sum((losses - np.asarray([curve.loss(step) for step in steps])) ** 2))
        if isfinite(off) and (best is None or off < best[0]):
            best = off, curve
    return best[1] if best is not None else None


def _members() -> tuple[NDArray[np.int64], Floats, Floats]:
    """(form, shape_a, shape_b) of every curve of the set."""
    shift, power = (grid.ravel() for grid in np.meshgrid(_SHIFTS, _POWERS))
    form = np.append(np.zeros(len(shift), dtype=np.int64), np.ones(len(_DECAYS), dtype=np.int64))
    return form, np.append(shift, _DECAYS), np.append(power, np.ones(len(_DECAYS)))


def _basis(x: Floats | float, form: NDArray[np.int64], shape_a: Floats, shape_b: Floats) -> Floats:
    x = np.asarray(x, dtype=np.float64)
    power = np.maximum(x + shape_a, 1e-6) ** -shape_b
    decay = np.exp(-x / np.maximum(shape_a, 1e-9))
    chosen: Floats = np.where(form == 0, power, decay)
    return chosen


def _scales(basis: Floats, losses: Floats, weights: Floats) -> tuple[Floats, Floats]:
    """Best non-negative (scale, floor) of every curve: two-parameter least squares, on the border where it must."""
    total = weights.sum()
    mean_basis, mean_loss = basis @ weights / total, float(losses @ weights / total)
    centred = basis - mean_basis[:, None]
    scale = (centred * (losses - mean_loss)) @ weights / np.maximum((centred**2) @ weights, 1e-300)
    scale = np.maximum(scale, 0.0)
    floor = mean_loss - scale * mean_basis
    alone = np.maximum((basis * losses) @ weights / np.maximum((basis**2) @ weights, 1e-300), 0.0)
    below = floor < 0
    best: tuple[Floats, Floats] = np.where(below, alone, scale), np.where(below, 0.0, floor)
    return best


def _usable(points: Sequence[tuple[float, float]]) -> Floats:
    """Sorted by step, of each step the last report; a point far off its neighbours' median is left out (Optimus)."""
    latest = {step: loss for step, loss in points if isfinite(step) and step > 0 and isfinite(loss) and loss >= 0}
    rows = np.asarray(sorted(latest.items()), dtype=np.float64).reshape(-1, 2)
    if len(rows) < 2 * MIN_POINTS:
        return rows
    neighbours = median_filter(rows[:, 1], size=7, mode="nearest")
    off = np.abs(rows[:, 1] - neighbours)
    limit = 8.0 * np.median(off) + 0.05 * np.abs(neighbours)
    inside = off <= limit
    inside[: MIN_POINTS - 1] = True  # the first steps fall fast
    inside_rows: Floats = rows[inside]
    return inside_rows


def _noise(losses: Floats) -> float:
    """Spread of one report around the curve, from differences of neighbours."""
    return float(np.median(np.abs(np.diff(losses)))) / 0.954 if len(losses) > 1 else 0.0


def _binned(rows: Floats) -> tuple[Floats, Floats, Floats]:
    """(mean step, mean loss, number of points) of at most `_BINS` stretches, shorter at the start."""
    if len(rows) <= _BINS:
        return rows[:, 0], rows[:, 1], np.ones(len(rows))
    place = np.minimum((np.sqrt(rows[:, 0] / rows[-1, 0]) * _BINS).astype(np.int64), _BINS - 1)
    counts = np.bincount(place, minlength=_BINS).astype(np.float64)
    held = counts > 0
    steps, losses = (np.bincount(place, weights=rows[:, i], minlength=_BINS)[held] / counts[held] for i in (0, 1))
    return steps, losses, counts[held]


def _quantiles(values: Floats, weight: Floats) -> tuple[float, float, float]:
    """(low, median, high) of a weighted set."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weight[order]) * (1.0 + 1e-9)  # just half is half, in whatever order it was added up
    low, median, high = (
        float(values[order][min(int(np.searchsorted(reached, q * weight.sum())), len(values) - 1)])
        for q in (INTERVAL[0], 0.5, INTERVAL[1])
    )
    return low, median, high
