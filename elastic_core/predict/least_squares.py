"""Small robust non-linear least squares: Levenberg and Marquardt's method with given derivatives.

For problems of a dozen parameters with a prior row for each, where a general solver's overhead is most of the time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
# At a point, under a prior (means, spreads): residuals, and their derivatives (rows, parameters).
Residuals = Callable[[Floats, Floats, Floats], tuple[Floats, Floats]]

_MAX_STEPS = 60
_CLOSE = 1e-5  # relative fall of the cost that ends the search
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

    Each search starts at its prior's means. None where nothing finite was found.
    """
    cost, best, normal = inf, hypotheses[0].mean, np.full((1, 1), np.nan)
    for hypothesis in sorted(hypotheses, key=lambda one: one.cost):
        if hypothesis.cost < cost:  # else it cannot win: squares are not negative
            cost, best, normal = min((cost, best, normal), _descend(residuals, hypothesis), key=lambda end: end[0])
    if not (np.isfinite(cost) and np.isfinite(best).all() and np.isfinite(normal).all()):
        return None
    try:
        covariance = np.asarray(np.linalg.inv(normal), dtype=np.float64)
    except np.linalg.LinAlgError:
        return None
    return (best, covariance) if np.isfinite(covariance).all() else None


def _descend(residuals: Residuals, prior: Hypothesis) -> tuple[float, Floats, Floats]:
    """(cost, point, normal matrix) where no step lowers the sum of squares any more."""
    at, damping = prior.mean, 1e-3
    off, slope = residuals(at, prior.mean, prior.spread)
    cost, normal, downhill = float(off @ off), slope.T @ slope, -(slope.T @ off)
    for _ in range(_MAX_STEPS):
        try:
            step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), downhill)
        except np.linalg.LinAlgError:
            break
        there = at + np.clip(step, -_LONGEST, _LONGEST)
        off, slope = residuals(there, prior.mean, prior.spread)
        lower = float(off @ off)
        if lower < cost:
            small = cost - lower < _CLOSE * cost
            at, cost, damping = there, lower, max(damping / 5.0, 1e-9)
            normal, downhill = slope.T @ slope, -(slope.T @ off)
            if small:
                break
        else:
            damping *= 8.0
            if damping > 1e8 or not np.isfinite(step).all():
                break
    return (cost + prior.cost if np.isfinite(cost) else np.inf), at, normal
