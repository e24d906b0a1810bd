"""The step's formula and its written-out derivatives."""

from __future__ import annotations

from dataclasses import fields

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.predict.speed.step_form import BY_TYPE, COMMON, Shapes, evaluate, slopes
from tests.policy.strategies import BUSY

SIZE = len(COMMON) + 2 * len(BY_TYPE)


def shapes(rng: np.random.Generator, count: int = 12) -> Shapes:
    return Shapes(
        rng.integers(1, 17, count), rng.integers(1, 4, count), rng.integers(1, 300, count),
        rng.integers(1, 5, count), rng.integers(0, 2, count),
    )  # fmt: skip


@settings(BUSY, max_examples=40)
@given(seed=st.integers(0, 10**6))
def test_the_derivatives_are_those_of_the_formula(seed: int) -> None:
    rng = np.random.default_rng(seed)
    theta, where = rng.normal(-1.0, 1.5, SIZE), shapes(rng)
    _, grad, step = slopes(theta, where)
    for i in range(SIZE):
        above, below = theta.copy(), theta.copy()
        above[i] += 1e-5
        below[i] -= 1e-5
        up, down = evaluate(above, where), evaluate(below, where)
        assert (up.log_grad - down.log_grad) / 2e-5 == pytest.approx(grad[:, i], abs=1e-6)
        assert (up.log_step - down.log_step) / 2e-5 == pytest.approx(step[:, i], abs=1e-6)


def test_pollux_formula_by_hand() -> None:
    """Two nodes, six slots, three micro-batches of 10 samples, g = 2."""
    values = {"fixed": 0.1, "per_sample": 0.02, "sync": 0.05, "growth_inside": 0.2, "growth_between": 0.1,
              "overlap": 1.0, "share": 1e-6}  # fmt: skip
    by_type = {"slowness": 2.0, "exchange": 3.0, "between": 4.0}
    theta = np.log([*values.values(), *by_type.values()])
    one = np.asarray([1])
    found = evaluate(theta, Shapes(one * 6, one * 2, one * 10, one * 3, one * 0))
    grad, sync = (0.1 + 0.02 * 10) * 2.0, 0.05 * 3.0 * 4.0 * (1 + 0.1 * 4)
    assert np.exp(found.log_grad[0]) == pytest.approx(grad)
    assert np.exp(found.log_step[0]) == pytest.approx(2 * grad + (grad**2 + sync**2) ** 0.5)


@pytest.mark.parametrize("extreme", [-1e6, -40.0, 40.0, 1e6])
def test_no_parameters_overflow(extreme: float) -> None:
    found = evaluate(np.full(SIZE, extreme), shapes(np.random.default_rng(0)))
    assert np.isfinite(found.log_grad).all()
    assert np.isfinite(found.log_step).all()


def test_configurations_may_have_any_shape() -> None:
    flat = shapes(np.random.default_rng(3))
    square = Shapes(*(getattr(flat, field.name).reshape(3, 4) for field in fields(Shapes)))
    theta = np.random.default_rng(4).normal(-1.0, 1.0, SIZE)
    assert evaluate(theta, square).log_step.ravel() == pytest.approx(evaluate(theta, flat).log_step)
