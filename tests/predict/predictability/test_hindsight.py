"""Was it predictable? Asked half way, with the first half only, as a scheduler would have had to."""

from __future__ import annotations

from math import exp, nan
from random import Random

import pytest

from elastic_core.predict.predictability.hindsight import LEAST_REPORTS, was_predictable

ENDS = 60


def falling(noise: float = 0.01, seed: int = 1) -> list[tuple[float, float]]:
    rng = Random(seed)
    return [(100.0 * k, (0.2 + 2.0 / (1 + 0.15 * k)) * exp(rng.gauss(0, noise))) for k in range(1, ENDS + 1)]


def test_a_run_that_falls_along_a_curve_was_predictable() -> None:
    assert was_predictable(falling()) is True


def test_a_run_that_stood_still_and_fell_in_its_second_half_was_not() -> None:
    still = [(100.0 * k, 2.0 + 0.01 * (k % 2)) for k in range(1, 46)]
    assert was_predictable([*still, *((100.0 * k, 0.5) for k in range(46, ENDS + 1))]) is False


def test_a_run_that_diverged_in_its_second_half_was_not() -> None:
    first, second = falling()[:30], falling()[30:]
    assert was_predictable([*first, *((at, 3.0 + at / 4000) for at, _ in second)]) is False


def test_a_plateau_was_not_since_its_next_hundredth_could_come_at_any_time() -> None:
    rng = Random(3)
    assert was_predictable([(100.0 * k, 1.0 + rng.gauss(0, 0.02)) for k in range(1, ENDS + 1)]) is False


def test_a_target_that_was_reached_as_the_curve_said_counts_instead_of_the_last_losses() -> None:
    run = falling()
    assert was_predictable(run, target=run[-1][1]) is True
    assert was_predictable(run, target=0.05) is False  # below the floor: said to be out of reach, and yet it ended


@pytest.mark.parametrize("count", [0, 3, LEAST_REPORTS - 1])
def test_of_too_few_reports_nothing_is_said(count: int) -> None:
    assert was_predictable(falling()[:count]) is None


def test_reports_that_are_no_numbers_are_passed_over() -> None:
    assert was_predictable([(at, nan if i == 7 else loss) for i, (at, loss) in enumerate(falling())]) is True
    assert was_predictable([(100.0 * k, nan) for k in range(1, ENDS)]) is None
