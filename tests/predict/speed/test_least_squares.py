"""The small solver: finds the minima that SciPy finds, keeps the better hypothesis, is not bent by one absurd residual,
and answers each fit as if it were alone."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from elastic_core.predict.speed.least_squares import Floats, Hypothesis, Ints, minimise, soften

X = np.linspace(0.0, 1.0, 9)


@dataclass(frozen=True)
class Lines:
    """Residuals of y = a + b x of each fit (rows of `y`)."""

    y: Floats
    noise: float = 0.01

    def at(self, theta: Floats) -> tuple[Floats, Floats]:
        off, factor = soften((theta[:, :1] + theta[:, 1:] * X - self.y) / self.noise)
        return off, np.stack((np.ones_like(self.y), np.broadcast_to(X, self.y.shape)), axis=2) / self.noise * (
            factor[..., None]
        )

    def of(self, fits: Ints) -> Lines:
        return Lines(self.y[fits], self.noise)


def line(y: Floats, noise: float = 0.01) -> Lines:
    return Lines(y[None], noise)


def alike(mean: tuple[float, float], spread: float, cost: float = 0.0, fits: int = 1) -> Hypothesis:
    return Hypothesis(np.tile(mean, (fits, 1)), np.full((fits, 2), spread), cost)


WIDE = alike((0.0, 0.0), 100.0)


def test_a_line_is_found_with_its_uncertainty() -> None:
    (best,), (covariance,), found = minimise(line(1.0 + 2.0 * X), [WIDE])
    assert found.all()
    assert best == pytest.approx([1.0, 2.0], abs=1e-3)
    assert 0 < covariance[0, 0] < 0.01**2
    assert covariance[0, 1] < 0


def test_one_absurd_point_hardly_moves_it() -> None:
    y = 1.0 + 2.0 * X
    y[4] = 50.0
    (best,), _, _ = minimise(line(y), [WIDE])
    assert best == pytest.approx([1.0, 2.0], abs=0.05)


def test_the_hypothesis_that_explains_more_is_kept_unless_it_costs_too_much() -> None:
    near_zero, right, dear = (alike(mean, 0.1, cost) for mean, cost in (((0, 0), 0), ((1, 2), 7), ((1, 2), 1e6)))
    y = 1.0 + 2.0 * X
    assert minimise(line(y, 0.1), [near_zero, right])[0][0] == pytest.approx([1.0, 2.0], abs=0.01)
    assert minimise(line(y, 0.1), [near_zero, dear])[0][0, 1] < 1.9


def test_only_those_consider_a_hypothesis_for_whom_it_holds() -> None:
    y = np.tile(1.0 + 2.0 * X, (2, 1))
    right = Hypothesis(*(np.tile(of, (2, 1)) for of in ((1.0, 2.0), (0.1, 0.1))), 7.0, np.asarray([True, False]))
    best, _, _ = minimise(Lines(y, 0.1), [alike((0.0, 0.0), 0.1, fits=2), right])
    assert best[0] == pytest.approx([1.0, 2.0], abs=0.01)
    assert best[1, 1] < 1.9


def test_what_has_no_finite_value_is_not_found_and_keeps_no_other_from_being() -> None:
    y = np.stack((np.full(9, np.nan), 1.0 + 2.0 * X))
    best, _, found = minimise(Lines(y), [alike((0.0, 0.0), 100.0, fits=2)])
    assert found.tolist() == [False, True]
    assert best[1] == pytest.approx([1.0, 2.0], abs=1e-3)


def test_softened_squares_are_the_soft_l1_loss() -> None:
    off = np.asarray([-100.0, -1.0, 0.0, 1e-3, 3.0])
    softened, factor = soften(off)
    assert softened**2 == pytest.approx(2.0 * (np.sqrt(1.0 + off**2) - 1.0), abs=1e-12)
    moved, _ = soften(off + 1e-6)
    assert (moved - softened) / 1e-6 == pytest.approx(factor, rel=1e-4)
