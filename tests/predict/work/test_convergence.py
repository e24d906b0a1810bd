"""Loss curves: met where they were seen, continued with care, and a target out of reach is called that."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from math import exp, inf, isfinite, nan

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from elastic_core.predict.work.convergence import fit, optimus
from tests.policy.strategies import BUSY

CURVES: dict[str, Callable[[float], float]] = {
    "power": lambda k: 0.4 + 3.0 * (k + 20) ** -0.5,
    "exponential": lambda k: 0.4 + 2.0 * exp(-k / 150),
    "optimus": lambda k: 0.4 + 1.0 / (0.02 * k + 0.5),
}


def points(curve: Callable[[float], float], upto: int, noise: float = 0.0, seed: int = 0) -> list[tuple[float, float]]:
    rng = np.random.default_rng(seed)
    return [(float(k), curve(k) * float(np.exp(rng.normal(0, noise)))) for k in range(1, upto + 1)]


@pytest.mark.parametrize("name", CURVES)
def test_half_a_curve_gives_its_end(name: str) -> None:
    curve = CURVES[name]
    found = fit(points(curve, 250, noise=0.02))
    assert found is not None
    median, low, high = found.loss(500)
    assert median == pytest.approx(curve(500), rel=0.12)
    assert low <= curve(500) <= high


@pytest.mark.parametrize("name", CURVES)
def test_the_steps_to_a_target_lie_in_the_interval(name: str) -> None:
    curve = CURVES[name]
    inside = 0
    for seed in range(10):
        found = fit(points(curve, 250, noise=0.02, seed=seed))
        assert found is not None
        steps = found.steps_to(curve(400))
        inside += steps.low <= 400 <= steps.high
        assert 250 < steps.median < 900
    assert inside >= 7


def test_optimus_finds_the_parameters_of_its_own_form() -> None:
    found = optimus(points(CURVES["optimus"], 300))
    assert found is not None
    assert found.loss(600) == pytest.approx(CURVES["optimus"](600), rel=0.02)
    assert found.steps_to(CURVES["optimus"](600)) == pytest.approx(600, rel=0.1)
    assert found.steps_to(found.b2) == inf


def test_an_exponential_curve_is_beyond_optimus_and_not_beyond_the_set() -> None:
    seen = points(CURVES["exponential"], 300)
    one, many = optimus(seen), fit(seen)
    assert one is not None
    assert many is not None
    truth = CURVES["exponential"](900)
    assert abs(many.loss(900)[0] - truth) < 0.5 * abs(one.loss(900) - truth)


def test_a_target_below_every_floor_is_out_of_reach() -> None:
    found = fit(points(CURVES["exponential"], 900))
    assert found is not None
    assert found.steps_to(0.2).reachable < 0.05
    assert found.steps_to(0.2).median == inf
    assert found.steps_to(0.5).reachable > 0.95


@settings(BUSY, max_examples=40)
@given(
    losses=st.lists(st.floats(0, 1e6), min_size=4, max_size=40),
    targets=st.lists(st.floats(0, 1e6), min_size=2, max_size=4),
)
@example(losses=[275340.0799404274, 999999.9999999999, 0.0, 0.0], targets=[0.0, 8882.0])  # just half never gets there
def test_a_lower_target_never_takes_fewer_steps(losses: list[float], targets: list[float]) -> None:
    found = fit([(float(k), loss) for k, loss in enumerate(losses, 1)])
    assert found is not None
    steps = [found.steps_to(target) for target in sorted(targets, reverse=True)]
    for easier, harder in pairwise(steps):
        assert easier.median <= harder.median
        assert easier.reachable >= harder.reachable - 1e-9
    assert all(step.low <= step.median <= step.high for step in steps)


@settings(BUSY, max_examples=40)
@given(losses=st.lists(st.floats(0.01, 100), min_size=4, max_size=60), at=st.floats(1, 1e5))
def test_the_curve_never_rises(losses: list[float], at: float) -> None:
    found = fit([(float(k), loss) for k, loss in enumerate(losses, 1)])
    assert found is not None
    assert found.loss(at * 2)[0] <= found.loss(at)[0] * (1 + 1e-9)


def test_the_interval_narrows_as_more_is_seen() -> None:
    early, late = fit(points(CURVES["power"], 50, 0.02)), fit(points(CURVES["power"], 400, 0.02))
    assert early is not None
    assert late is not None
    assert early.loss(800)[2] - early.loss(800)[1] > 2 * (late.loss(800)[2] - late.loss(800)[1])


def test_one_absurd_report_does_not_bend_the_curve() -> None:
    seen = points(CURVES["power"], 250)
    seen[100] = (101.0, 1e6)
    found = fit(seen)
    assert found is not None
    assert found.loss(500)[0] == pytest.approx(CURVES["power"](500), rel=0.1)


@settings(BUSY, max_examples=60)
@given(
    st.lists(
        st.tuples(*[st.sampled_from([nan, inf, -inf, -1.0, 0.0, 1e-9, 1.0, 2.0, 3.0, 7.0, 1e12])] * 2), max_size=30
    )
)
def test_no_reports_make_it_raise_or_answer_nonsense(seen: list[tuple[float, float]]) -> None:
    found, one = fit(seen), optimus(seen)
    usable = {step for step, loss in seen if isfinite(step) and step > 0 and isfinite(loss) and loss >= 0}
    assert len(usable) >= 4 or (found is None and one is None)
    if found is not None:
        assert all(isfinite(value) and value >= 0 for value in found.loss(10.0))
        assert 0 <= found.steps_to(1.0).reachable <= 1 + 1e-9


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("target", "median", "reachable"), [(1e10, 0.0, 1.0), (2.0, 0.0, 1.0), (0.0, inf, 0.0)], ids=["far", "at", "below"]
)
def test_a_loss_that_does_not_fall_is_at_its_target_or_never_gets_there(
    target: float, median: float, reachable: float
) -> None:
    flat = fit([(float(step), 2.0) for step in range(1, 40)])
    assert flat is not None
    estimate = flat.steps_to(target)
    assert (estimate.median, estimate.reachable) == (median, reachable)
