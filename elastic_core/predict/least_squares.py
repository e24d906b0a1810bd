"""Small robust non-linear least squares: Levenberg and Marquardt's method with given derivatives.

For problems of a dozen parameters with a prior row for each, where a general solver's overhead is most of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
# At a point, under a prior (means, spreads): residuals, and their derivatives (rows, parameters).
Residuals = Callable[[Floats, Floats, Floats], tuple[Floats, Floats]]

_MAX_STEPS = 60
_CLOSE = 1e-5  # relative fall of the cost that ends the search
_DAMPING = 0.1  # of the first step
_LONGEST = 2.0  # of a step in one parameter: they are logarithms


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A prior to fit under; `cost` is added to its sum of squares when hypotheses are compared."""

    mean: Floats
    spread: Floats
    cost: float = 0.0


def soften(scaled: Floats) -> tuple[Floats, Floats]:
    """Residuals whose squares are the soft-L1 loss, so that one absurd point cannot pull the rest along.

    With the factor that the derivatives of each are multiplied by.
    """
    root = np.sqrt(1.0 + scaled**2)
    softened = scaled * np.sqrt(2.0 / (root + 1.0))
    return softened, np.sqrt((root + 1.0) / 2.0) / root


def minimise(residuals: Residuals, hypotheses: Sequence[Hypothesis]) -> tuple[Floats, Floats] | None:
    """(the best point under the best hypothesis, the inverse of its normal matrix: the covariance).

    The first search starts at its prior's means, the others where the best so far ended, but for what their priors say
    otherwise. None where nothing finite was found.
    """
    first, *others = sorted(hypotheses, key=lambda one: one.cost)
    cost, best, normal = _descend(residuals, first, first.mean)
    for other in others:
        if other.cost < cost:  # else it cannot win: squares are not negative
            start = np.where(other.mean == first.mean, best, other.mean)
            cost, best, normal = min((cost, best, normal), _descend(residuals, other, start), key=lambda end: end[0])
    if not (np.isfinite(cost) and np.isfinite(best).all() and np.isfinite(normal).all()):
        return None
    try:
        covariance = np.asarray(np.linalg.inv(normal), dtype=np.float64)
    except np.linalg.LinAlgError:
        return None
    return (best, covariance) if np.isfinite(covariance).all() else None


def _descend(residuals: Residuals, prior: Hypothesis, start: Floats) -> tuple[float, Floats, Floats]:
    """(cost, point, normal matrix) where no step lowers the sum of squares any more. Damping after Nielsen 1999."""
    at, damping, harder = start, _DAMPING, 2.0
    off, slope = residuals(at, prior.mean, prior.spread)
    cost, normal, downhill = float(off @ off), slope.T @ slope, -(slope.T @ off)
    for _ in range(_MAX_STEPS):
        damped = normal.copy()
        damped.flat[:: len(at) + 1] *= 1.0 + damping
        try:
            step = np.linalg.solve(damped, downhill)
        except np.linalg.LinAlgError:
            break
        step = np.minimum(np.maximum(step, -_LONGEST), _LONGEST)
        off, slope = residuals(at + step, prior.mean, prior.spread)
        lower = float(off @ off)
        if lower < cost:
            expected = float(step @ (2.0 * downhill - normal @ step))
            small = cost - lower < _CLOSE * cost
            ratio = (cost - lower) / expected if expected > 0 else 0.0
            damping, harder = max(damping * max(1 / 5, 1.0 - (2.0 * ratio - 1.0) ** 3), 1e-9), 2.0
            at, cost = at + step, lower
            normal, downhill = slope.T @ slope, -(slope.T @ off)
            if small:
                break
        else:
            damping, harder = damping * harder, harder * 2.0
            if damping > 1e8 or not np.isfinite(step).all():
                break
    return (cost + prior.cost if np.isfinite(cost) else np.inf), at, normal
