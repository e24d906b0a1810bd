"""The work left of one job: exact where declared, truncated by what is done where not."""

from __future__ import annotations

from math import inf, log

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.domain import WorkForecast, WorkLeft
from elastic_core.predict.work.work_left import PRIOR, finish_seconds, work_left
from elastic_core.protocol.forecasts import DECLARED
from tests.policy.builders import job

FORECAST = WorkForecast(probabilities=(0.1, 0.5, 0.9), totals=(1e4, 4e4, 2e5), source="submission")


def test_declared_work_is_exact() -> None:
    assert work_left(job("a", total_samples=1000, done_samples=400)) == ((600, 600, 600), DECLARED)


def test_before_anything_is_done_the_forecast_is_told_as_it_is() -> None:
    left, source = work_left(job("a", total_samples=None, work_forecast=FORECAST))
    assert left == pytest.approx(FORECAST.totals)
    assert source == "submission"


def test_a_job_that_has_outlived_its_median_needs_the_quantiles_of_those_that_did() -> None:
    done = 4e4
    left, _ = work_left(job("a", total_samples=None, done_samples=int(done), work_forecast=FORECAST))
    # Of those beyond the median, half exceed the 0.75 quantile, which lies between the two known ones.
    share = log(0.5 / 0.25) / log(0.5 / 0.1)
    assert left[1] + done == pytest.approx(4e4 * 5**share)


def test_what_a_job_may_take_at_most_bounds_its_interval() -> None:
    left, _ = work_left(job("a", total_samples=None, most_samples=50_000, done_samples=30_000, work_forecast=FORECAST))
    assert left[2] == 20_000


def test_without_a_forecast_the_progress_itself_says_how_much_is_to_come() -> None:
    early, source = work_left(job("a", total_samples=None, done_samples=10**6))
    late, _ = work_left(job("a", total_samples=None, done_samples=10**8))
    assert source == PRIOR
    assert late[1] > 10 * early[1]


@given(
    totals=st.lists(st.floats(1.0, 1e12), min_size=1, max_size=9, unique=True).map(sorted),
    done=st.tuples(st.integers(0, 10**13), st.integers(0, 10**13)).map(sorted),
)
def test_the_expected_total_never_falls_as_a_job_goes_on(totals: list[float], done: list[int]) -> None:
    probabilities = tuple((place + 1) / (len(totals) + 1) for place in range(len(totals)))
    forecast = WorkForecast(probabilities=probabilities, totals=tuple(totals), source="history")
    before, after = (
        [left + d for left in work_left(job("a", total_samples=None, done_samples=d, work_forecast=forecast))[0]]
        for d in done
    )
    assert before == sorted(before)
    assert all(now >= then * (1 - 1e-9) for then, now in zip(before, after, strict=True))
    assert before[0] >= done[0]


@given(st.floats(1.0, 1e6), st.floats(0.0, 2.0), st.floats(0.0, 1.0), st.floats(1.0, 9.0), st.floats(0.0, 500.0))
def test_more_doubt_about_speed_or_work_only_widens_the_finish(
    seconds: float, error: float, low: float, high: float, pause: float
) -> None:
    told = finish_seconds(seconds, (low, 1.0, high), error, pause)
    exact = finish_seconds(seconds, (1.0, 1.0, 1.0), 0.0, pause)
    wider = finish_seconds(seconds, (low, 1.0, high), error + 0.1, pause)
    assert told is not None
    assert wider is not None
    assert exact == pytest.approx((pause + seconds,) * 3)
    assert told[1] == pytest.approx(pause + seconds)
    assert wider[0] <= told[0] <= told[1] <= told[2] <= wider[2]
    assert told[0] >= pause


def test_an_80_percent_interval_of_speed_alone_is_one_and_a_quarter_deviations_wide() -> None:
    told = finish_seconds(100.0, (5.0, 5.0, 5.0), 0.1)
    assert told == pytest.approx((100 / 1.1**1.2816, 100.0, 100 * 1.1**1.2816))


def test_where_no_time_is_known_none_is_told() -> None:
    assert finish_seconds(inf, (1.0, 1.0, 1.0), 0.1) is None


def test_what_was_decided_by_comes_before_the_raw_forecast() -> None:
    decided = WorkLeft(quantiles=(1.0, 2.0, 3.0), source="history of its task")
    view = job("a", total_samples=None, work_forecast=FORECAST)
    assert work_left(view, decided=decided) == ((1.0, 2.0, 3.0), "history of its task")
