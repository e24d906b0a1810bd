"""How well the curve has forecast the run so far: figures without a unit, of whatever was reported."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, inf, nan
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.predict.forecasts.run_features import Progress
from elastic_core.predict.predictability.self_check import CHECK_NAMES, check_table
from tests.policy.strategies import BUSY
from tests.predict.forecasts.builders import a_description

REPORTS = range(1, 41)
Losses = Sequence[float]


def figures(losses: Losses) -> dict[str, float]:
    progress = Progress(100.0 * len(losses), tuple((100 * k, loss) for k, loss in enumerate(losses, 1)))
    return dict(zip(CHECK_NAMES, check_table([a_description(0.2)], [progress])[0], strict=True))


def falling() -> Losses:
    rng = Random(1)
    return [(0.2 + 2.0 / (1 + 0.3 * k)) * exp(rng.gauss(0, 0.005)) for k in REPORTS]


def still_then_falling() -> Losses:
    return [2.0 + 0.01 * (k % 2) if k <= 28 else 2.0 - 0.15 * (k - 28) for k in REPORTS]


def test_a_curve_that_went_on_as_it_began_had_the_present_in_its_interval() -> None:
    found = figures(falling())
    assert found["check_low_0.5"] < 0.05
    assert found["check_high_0.5"] > -0.1
    assert abs(found["check_missed_0.5"]) < 0.05
    assert abs(found["check_moved_0.7"]) < 0.2


def test_a_run_that_did_what_its_curve_did_not_say_was_missed() -> None:
    assert figures(still_then_falling())["check_missed_0.7"] < -0.5
    assert abs(figures(still_then_falling())["check_missed_in_errors_0.7"]) > 20


def test_a_plateau_has_its_floor_where_it_is_and_falls_no_more_to_its_limit() -> None:
    rng = Random(2)
    flat = figures([1.0 + rng.gauss(0, 0.01) for _ in REPORTS])
    assert flat["check_floor_high"] > 0.95
    assert flat["check_limit_fall_in_errors"] < 1 < figures(falling())["check_limit_fall_in_errors"]


@settings(BUSY, max_examples=20)
@given(st.floats(1e-3, 1e3))
def test_the_unit_of_the_loss_does_not_matter(factor: float) -> None:
    found = figures([loss * factor for loss in falling()])
    assert list(found.values()) == pytest.approx(list(figures(falling()).values()), rel=1e-3, abs=1e-4)


@settings(BUSY, max_examples=40)
@given(st.lists(st.sampled_from([nan, inf, -inf, -1.0, 0.0, 1e-9, 1.0, 5.0, 1e300]), max_size=40))
def test_no_reports_make_it_raise(losses: list[float]) -> None:
    assert not np.isinf(list(figures(losses).values())).any()


def test_of_too_few_reports_nothing_is_said() -> None:
    assert np.isnan(list(figures(falling()[:7]).values())).all()
