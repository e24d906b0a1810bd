"""The index by its definition, in the cases that are known in closed form, and as the order of one server's queue."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.policy.base.remaining_distribution import PROBABILITIES, RemainingWork
from elastic_core.policy.horizon.gittins import inverse_index
from tests.policy.horizon import one_server

QUANTILES = st.lists(st.floats(1.0, 1e9), min_size=len(PROBABILITIES), max_size=len(PROBABILITIES)).map(sorted)


def of(*quantiles: object) -> RemainingWork:
    rows = np.asarray(quantiles, dtype=np.float64)
    return RemainingWork(rows, ("test",) * len(rows), ("",) * len(rows))


@given(st.floats(1.0, 1e15))
def test_of_work_that_is_known_it_is_the_work_to_the_last_bit(work: float) -> None:
    left = of([work] * len(PROBABILITIES))
    assert inverse_index(left).tolist() == [work]
    assert left.mean.tolist() == [work]
    assert left.upper_ratio.tolist() == [1.0]


@settings(max_examples=30, deadline=None)
@given(QUANTILES)
def test_it_is_the_best_rate_at_which_the_job_may_end(quantiles: list[float]) -> None:
    """Against the definition, with the expectation summed over ten thousand equally likely works."""
    works = np.interp((np.arange(10_000) + 0.5) / 10_000, PROBABILITIES, quantiles)
    rates = [np.mean(works <= d) / np.mean(np.minimum(works, d)) for d in quantiles[1:]]
    assert inverse_index(of(quantiles))[0] <= 1.0 / max(rates) * 1.02
    assert inverse_index(of(quantiles))[0] <= of(quantiles).mean[0] * (1.0 + 1e-9) / PROBABILITIES[-9]


def test_who_may_end_at_any_moment_alike_needs_its_mean() -> None:
    quantiles = -1000.0 * np.log1p(-np.minimum(PROBABILITIES, 0.9999))
    assert inverse_index(of(quantiles))[0] == pytest.approx(1000.0, rel=0.02)


@pytest.mark.parametrize("done", [0.0, 500.0, 20_000.0])
def test_under_a_heavy_tail_the_index_is_the_hazard_now(done: float) -> None:
    """Lomax of power 2 and scale 1000: hazard 2 / (done + 1000)."""
    quantiles = (done + 1000.0) * ((1.0 - np.minimum(PROBABILITIES, 0.9999)) ** -0.5 - 1.0)
    assert inverse_index(of(quantiles))[0] == pytest.approx((done + 1000.0) / 2.0, rel=0.01)


def test_of_nine_short_and_one_long_the_chance_to_be_short_decides() -> None:
    """A try of the short work ends nine of ten: 100 of work for 0.9 of an end."""
    quantiles = np.where(PROBABILITIES <= 0.9, 100.0, 10_000.0)
    assert inverse_index(of(quantiles))[0] == pytest.approx(100.0 / 0.9, rel=0.01)
    assert of(quantiles).mean[0] < 200.0  # of the tail only the 90 % quantile counts


@pytest.mark.sampled(1)
@pytest.mark.parametrize("law", [one_server.constant, one_server.pareto, one_server.bimodal])
def test_on_one_server_the_policys_queue_is_that_of_the_gittins_policy(law: one_server.Quantile) -> None:
    """All of `horizon` in the simulator, its jobs' forecasts being their law."""
    jobs = one_server.arrivals(law, 40, seed=1)
    exact = one_server.by_rank(jobs, one_server.gittins(law))
    assert one_server.by_horizon(jobs, one_server.forecast(law)) == pytest.approx(exact, rel=0.01)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("law", [one_server.constant, one_server.pareto, one_server.bimodal])
def test_its_order_in_a_long_queue_is_that_of_the_gittins_policy(law: one_server.Quantile) -> None:
    """A thousand jobs, by the same distributions and index, without the machinery around them."""
    jobs = one_server.arrivals(law, 1000, seed=2)
    exact = one_server.by_rank(jobs, one_server.gittins(law))
    assert one_server.by_rank(jobs, one_server.index_of_forecast(law)) == pytest.approx(exact, rel=0.01)
    assert exact >= one_server.by_rank(jobs, one_server.srpt)


@pytest.mark.parametrize(
    ("law", "within"),
    [
        (one_server.exponential, 0.03),  # the mean at every age: every order of the queue is as good as any other
        (one_server.pareto, 0.03),
        (one_server.bimodal, 0.15),  # the edge of the short works lies between two points of the grid
    ],
)
@pytest.mark.parametrize("age", [0.0, 0.1, 1.0, 3.0])
def test_the_index_of_a_forecast_is_that_of_its_law(law: one_server.Quantile, within: float, age: float) -> None:
    done = age * one_server.MEAN
    exact = one_server.gittins(law)(done, 0.0)
    assert one_server.index_of_forecast(law)(done, 0.0) == pytest.approx(exact, rel=within)
