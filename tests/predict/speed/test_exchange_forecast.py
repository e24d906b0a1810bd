"""The wait for each exchange where none was tried: by bytes and links, between nodes by what their ranks share."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.domain import ExchangeCost, ExchangeNeeds, Limits, Link
from elastic_core.domain.exchange_costs import WORTH
from elastic_core.predict.speed.exchange_forecast import (
    ExchangeForecast,
    Links,
    as_of_one_rank,
    crossing,
    forecast_of,
)
from elastic_core.predict.speed.step_form import Shapes
from tests.policy.builders import limits

VALUES = 25.0e6
FAST, SLOW = Link(1e-5, 1e-10), Link(1e-4, 1e-8)  # 10 GB a second within a node, 100 MB between two


def cost(algorithm: str, bytes_a_value: float, own_seconds: float = 0.0) -> ExchangeCost:
    """As of those that swap chunks and sums of one bucket."""
    sent = tuple(bytes_a_value * VALUES * (ranks - 1) / ranks for ranks in (2, 4, 64))
    return ExchangeCost(
        algorithm=algorithm, sent_bytes=sent, rounds=(2.0, 2.0, 2.0), own_seconds=own_seconds, least_share=1.0
    )


EXACT, BYTES = cost("allreduce", 8.0), cost("bytegrad", 2.0, own_seconds=0.05)
AVERAGE = ExchangeCost(
    algorithm="local_sgd", sent_bytes=EXACT.sent_bytes, rounds=EXACT.rounds, beside_seconds=0.04, every=8
)
COSTS = {one.algorithm: one for one in (EXACT, BYTES, AVERAGE)}
LINKS = {"cpu": Links(FAST, SLOW)}


def auto(allow: str = "lossy") -> Limits:
    return limits(comm="auto", comm_allow=allow)


def ask(forecast: ExchangeForecast, slots: int, num_nodes: int, computing: float = 1.0, accumulation: int = 1):
    """(seconds of a step, the algorithm, how many times as fast as by the exact sum); None where nothing is known."""
    shapes = Shapes(*(np.asarray([value]) for value in (slots, num_nodes, 16, accumulation, 0)))
    found = forecast.expected(("cpu",), shapes, np.asarray([computing]))
    if not found.known[0]:
        return None
    return float(found.seconds[0]), forecast.costs[int(found.chosen[0])].algorithm, float(found.gain[0])


def test_within_a_node_the_exact_sum_is_counted_with_and_between_two_a_quarter_of_its_bytes() -> None:
    forecast = forecast_of(COSTS, LINKS, auto())
    assert forecast is not None
    seconds, algorithm, gain = ask(forecast, 2, 1)
    assert (algorithm, gain) == ("allreduce", 1.0)
    assert seconds == pytest.approx(1.0 + 1e8 * 1e-10 + 2e-5)
    seconds, algorithm, gain = ask(forecast, 2, 2)
    assert algorithm == "bytegrad"
    assert seconds == pytest.approx(1.0 + 2.5e7 * 1e-8 + 2e-4 + 0.05)
    assert gain == pytest.approx((1.0 + 1.0 + 2e-4) / seconds)


def test_ranks_of_a_node_share_its_link() -> None:
    forecast = forecast_of({"allreduce": EXACT, "bytegrad": replace(BYTES, own_seconds=9.0)}, LINKS, auto())
    assert forecast is not None
    alone, shared = (ask(forecast, 4, nodes)[0] - 1.0 for nodes in (4, 2))
    assert shared == pytest.approx(2 * 2 / 3 * alone, rel=1e-3)


@given(slots=st.integers(2, 64), nodes=st.integers(2, 64))
def test_what_was_met_by_many_ranks_predicts_itself(slots: int, nodes: int) -> None:
    nodes = min(slots, nodes)
    needs = ExchangeNeeds(num_slots=slots, num_nodes=nodes, type="cpu", costs=(), link=SLOW)
    one = as_of_one_rank(needs)
    again = one.seconds_per_byte * float(crossing(np.asarray(slots), np.asarray(nodes)))
    assert again == pytest.approx(SLOW.seconds_per_byte)
    assert one.latency == SLOW.latency


def test_only_what_a_job_admits_is_counted_with() -> None:
    chosen = {allow: ask(forecast_of(COSTS, LINKS, auto(allow)), 2, 2)[1] for allow in ("lossy", "averaging")}
    assert chosen == {"lossy": "bytegrad", "averaging": "local_sgd"}
    named = forecast_of(COSTS, LINKS, limits(comm="local_sgd"))
    assert ask(named, 2, 1)[1] == "local_sgd", "though the exact sum is about as fast there"


@pytest.mark.parametrize("lim", [limits(), limits(comm="powersgd"), auto("exact")])
def test_where_there_is_nothing_to_choose_nothing_is_forecast(lim: Limits) -> None:
    assert forecast_of(COSTS, LINKS, lim) is None
    assert forecast_of(COSTS, {}, auto()) is None


def test_one_slot_and_links_that_nobody_met_are_not_known() -> None:
    forecast = forecast_of(COSTS, {"cpu": Links(within=FAST), "gpu": Links(FAST, SLOW)}, auto())
    assert ask(forecast, 1, 1) is None
    assert ask(forecast, 2, 2) is None
    assert ask(forecast, 2, 1) is not None


@given(own=st.floats(0.0, 2.0))
def test_another_is_counted_with_where_it_saves_a_twentieth(own: float) -> None:
    forecast = forecast_of({"allreduce": EXACT, "bytegrad": replace(BYTES, own_seconds=own)}, LINKS, auto())
    exact, byte = 1.0 + 1.0 + 2e-4, 1.0 + 0.25 + 2e-4 + own
    assert ask(forecast, 2, 2)[1] == ("bytegrad" if byte <= WORTH * exact else "allreduce")


def test_backward_hides_what_it_can_of_the_last_micro_batch_and_whole_steps_what_averages_send() -> None:
    hides = replace(EXACT, hidden_backward=0.5, least_share=0.1)
    beside = replace(AVERAGE, hidden_steps=1.0, beside_seconds=0.0, every=1)
    forecast = forecast_of({"allreduce": hides, "local_sgd": beside}, LINKS, auto("averaging"))
    assert ask(forecast, 2, 2, computing=1.5)[0] == pytest.approx(1.5), "an average goes on beside a step"
    exact = forecast_of({"allreduce": hides, "bytegrad": replace(BYTES, own_seconds=9.0)}, LINKS, auto())
    assert ask(exact, 2, 2, computing=1.0, accumulation=3)[0] == pytest.approx(3.0 + 1.0002 - 0.5)
    assert ask(exact, 2, 2, computing=9.0)[0] == pytest.approx(9.0 + 0.10002), "but for its last bucket"


@given(ranks=st.integers(2, 64))
def test_bytes_between_the_numbers_of_ranks_that_were_told_are_right_for_chunks(ranks: int) -> None:
    forecast = forecast_of({"allreduce": EXACT, "bytegrad": replace(BYTES, own_seconds=99.0)}, LINKS, auto())
    seconds = ask(forecast, ranks, 1, computing=0.0)[0]
    assert seconds == pytest.approx(8 * VALUES * (ranks - 1) / ranks * 1e-10 + 2e-5, rel=1e-6)
