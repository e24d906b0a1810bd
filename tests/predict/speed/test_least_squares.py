"""The small solver: finds minima, keeps the better hypothesis, is not bent by one absurd residual."""

from __future__ import annotations

import numpy as np
import pytest

from elastic_core.predict.speed.least_squares import Floats, Hypothesis, minimise, soften

X = np.linspace(0.0, 1.0, 9)


def line(y: Floats, noise: float = 0.01) -> object:
    """Residuals of y = a + b x with a prior on (a, b)."""

    def residuals(theta: Floats, mean: Floats, spread: Floats) -> tuple[Floats, Floats]:
        off = (theta[0] + theta[1] * X - y) / noise
        softened, factor = soften(off)
        slope = np.column_stack((np.ones_like(X), X)) / noise * factor[:, None]
        return np.append(softened, (theta - mean) / spread), np.vstack((slope, np.diag(1.0 / spread)))

    return residuals


WIDE = Hypothesis(np.zeros(2), np.full(2, 100.0))


def test_a_line_is_found_with_its_uncertainty() -> None:
    best, covariance = minimise(line(1.0 + 2.0 * X), [WIDE])  # type: ignore[arg-type, misc]
    assert best == pytest.approx([1.0, 2.0], abs=1e-3)
    assert 0 < covariance[0, 0] < 0.01**2
    assert covariance[0, 1] < 0


def test_one_absurd_point_hardly_moves_it() -> None:
    y = 1.0 + 2.0 * X
    y[4] = 50.0
    best, _ = minimise(line(y), [WIDE])  # type: ignore[arg-type, misc]
    assert best == pytest.approx([1.0, 2.0], abs=0.05)


def test_the_hypothesis_that_explains_more_is_kept_unless_it_costs_too_much() -> None:
    near_zero = Hypothesis(np.zeros(2), np.full(2, 0.1))
    right = Hypothesis(np.asarray([1.0, 2.0]), np.full(2, 0.1), cost=7.0)
    dear = Hypothesis(right.mean, right.spread, cost=1e6)
    y = 1.0 + 2.0 * X
    assert minimise(line(y, 0.1), [near_zero, right])[0] == pytest.approx([1.0, 2.0], abs=0.01)  # type: ignore[arg-type, index]
    assert minimise(line(y, 0.1), [near_zero, dear])[0][1] < 1.9  # type: ignore[arg-type, index]


def test_what_has_no_finite_value_is_no_answer() -> None:
    assert minimise(line(np.full(9, np.nan)), [WIDE]) is None  # type: ignore[arg-type]


def test_softened_squares_are_the_soft_l1_loss() -> None:
    off = np.asarray([-100.0, -1.0, 0.0, 1e-3, 3.0])
    softened, factor = soften(off)
    assert softened**2 == pytest.approx(2.0 * (np.sqrt(1.0 + off**2) - 1.0), abs=1e-12)
    moved, _ = soften(off + 1e-6)
    assert (moved - softened) / 1e-6 == pytest.approx(factor, rel=1e-4)
