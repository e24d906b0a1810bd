"""Limits that an exact run keeps, and that one which does not learn breaks."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.domain import ExactLoss
from elastic_core.predict.work.exact_loss import limits

TOTAL = 10_000


def a_run(
    floor: float, scale: float, power: float, noise: float, seed: int, until: int = TOTAL
) -> list[tuple[float, float]]:
    random = Random(seed)
    return [(samples, floor + scale * (1 + samples / 400) ** -power + random.gauss(0, noise * scale))
            for samples in range(100, until + 1, 100)]  # fmt: skip


runs = st.builds(
    a_run, st.floats(0.5, 2), st.floats(0.5, 5), st.floats(0.3, 1.5), st.floats(0, 0.05), st.integers(0, 99)
)


@given(runs, st.sampled_from([0.3, 1.0]))
def test_the_run_itself_and_what_is_forecast_of_it_stay_below(run: list[tuple[float, float]], seen: float) -> None:
    known = ExactLoss(limits=limits(run[: int(seen * len(run))], TOTAL))
    assert all(loss <= (known.limit(samples) or 0) for samples, loss in run)


@given(runs)
def test_one_that_learns_nothing_is_above_by_the_end(run: list[tuple[float, float]]) -> None:
    (_, first), *_ = run
    last = ExactLoss(limits=limits(run, TOTAL)).limit(TOTAL)
    learnt = first - run[-1][1]
    assert last is not None
    assert last < first or learnt < 0.5 * first, "half of what was learnt, where that is more than noise"


def test_too_few_points_say_nothing() -> None:
    assert limits([(100, 3.0), (200, 2.0), (300, 1.5)], TOTAL) == ()
    assert ExactLoss().limit(100) is None


@pytest.mark.parametrize(("samples", "want"), [(0, None), (10, 4.0), (15, 3.0), (20, 2.0), (99, 2.0)])
def test_between_points_a_limit_is_on_the_line(samples: float, want: float | None) -> None:
    assert ExactLoss(limits=((10.0, 4.0), (20.0, 2.0))).limit(samples) == want
