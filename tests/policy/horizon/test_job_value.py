"""What work is worth: shortest first under load, by relative speed without it, and nobody last for ever."""

from __future__ import annotations

from math import log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.policy.base.options import Options
from elastic_core.policy.horizon.job_value import (
    AS_LONG,
    HEAVIEST,
    TAIL,
    job_value,
    marginal_slot_price,
    weight_of_longer,
    weights,
)
from tests.policy.strategies import BUSY

POOL = Options.of({"t4": [4] * 16}, [])
TWO = Options.of({"a100": [8] * 2, "t4": [4] * 4}, [])


def goodput(options: Options, powers: list[float], speeds: list[float] | None = None) -> np.ndarray:
    """Speed-ups that are powers of the slots."""
    speed = np.ones(len(powers)) if speeds is None else np.asarray(speeds)
    return speed[:, None] * options.counts[None, :] ** np.asarray(powers)[:, None]


@pytest.mark.parametrize("power", [0.0, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("options", [POOL, TWO])
def test_the_slot_price_is_the_power_that_speed_ups_are_of_the_slots(options: Options, power: float) -> None:
    assert marginal_slot_price(goodput(options, [power] * 3), options) == pytest.approx(power)


def test_the_slot_price_is_full_when_there_are_more_jobs_than_slots() -> None:
    assert marginal_slot_price(goodput(POOL, [0.1] * 65), POOL) == 1.0


def test_the_slot_price_is_nothing_for_a_job_that_cannot_use_its_share() -> None:
    found = goodput(POOL, [1.0])
    found[:, POOL.counts > 4] = 0.0  # it may have four slots at most
    assert marginal_slot_price(found, POOL) == 0.0


def test_what_a_job_may_not_have_is_stepped_over() -> None:
    found = goodput(POOL, [0.5] * 4)  # a share of 16
    found[:, (POOL.counts == 16) | (POOL.counts == 20)] = 0.0
    assert marginal_slot_price(found, POOL) == pytest.approx(0.5)


@BUSY
@given(st.lists(st.floats(0.01, 10.0), min_size=1, max_size=8))
def test_diminishing_returns_make_the_slot_price_grow_with_the_number_of_jobs(ceilings: list[float]) -> None:
    found = np.asarray([POOL.counts / (ceiling + POOL.counts) for ceiling in ceilings])
    assert (
        0.0
        <= marginal_slot_price(found, POOL)
        <= marginal_slot_price(np.repeat(found, 3, axis=0), POOL) + 1e-9
        <= 1.0 + 2e-9
    )


def test_of_two_jobs_that_are_alike_the_shorter_ones_work_is_worth_more() -> None:
    found = goodput(POOL, [0.9, 0.9])
    price = job_value(found, np.asarray([[100.0], [1000.0]]) / found, np.zeros(2), POOL)
    assert price[0] > price[1]


SECONDS = st.lists(st.floats(1.0, 1e6), min_size=1, max_size=9)


def longer_in_part(seconds: list[float], weight: list[float]) -> list[float]:
    """As it is defined: a pair of jobs at a time."""

    def part(one: float, other: float) -> float:
        return min(max(0.5 + log(other / one) / (2 * log(AS_LONG)), 0.0), 1.0)

    return [
        sum(weight[j] * part(seconds[i], seconds[j]) for j in range(len(seconds)) if j != i)
        for i in range(len(seconds))
    ]


@BUSY
@given(SECONDS, st.data())
def test_each_longer_job_counts_and_one_about_as_long_in_part(seconds: list[float], data: st.DataObject) -> None:
    weight = data.draw(st.lists(st.floats(0.3, 3.0), min_size=len(seconds), max_size=len(seconds)))
    found = weight_of_longer(np.asarray(seconds), np.asarray(weight))
    assert found == pytest.approx(longer_in_part(seconds, weight), abs=1e-6)


@BUSY
@given(SECONDS)
def test_the_shorter_a_job_the_more_counts_as_longer(seconds: list[float]) -> None:
    found = weight_of_longer(np.asarray(seconds), np.ones(len(seconds)))
    assert (np.diff(found[np.argsort(seconds, kind="stable")]) <= 1e-9).all()


def test_who_never_ends_is_longer_than_all_who_do() -> None:
    found = weight_of_longer(np.asarray([10.0, np.inf, 1000.0, np.inf]), np.asarray([1.0, 2.0, 4.0, 8.0]))
    assert found.tolist() == pytest.approx([14.0, 0.0, 10.0, 0.0])


def test_two_jobs_as_long_are_worth_as_much_whichever_is_a_second_ahead() -> None:
    found = goodput(POOL, [0.9, 0.9])
    for other in (4_999.0, 5_000.0, 5_001.0):
        price = job_value(found, np.asarray([[5_000.0], [other]]) / found, np.zeros(2), POOL)
        assert price[0] == pytest.approx(price[1], rel=1e-3)


def test_who_has_been_here_for_long_weighs_more() -> None:
    found, work = goodput(POOL, [0.9, 0.9]), np.asarray([[500.0], [500.0]])
    price = job_value(found, work / found, np.asarray([0.0, 50_000.0]), POOL)
    assert price[1] > price[0]


@BUSY
@given(st.lists(st.floats(1.0, 1e6), min_size=1, max_size=9), st.floats(0.01, 100.0))
def test_weights_compare_jobs_and_know_no_unit(here: list[float], unit: float) -> None:
    found = weights(np.asarray(here))
    assert found == pytest.approx(weights(np.asarray(here) * unit))
    assert (np.diff(found[np.argsort(here)]) >= 0).all()
    assert 1 / HEAVIEST <= found.min() <= found.max() <= HEAVIEST
    if 1 / HEAVIEST < found.min() <= found.max() < HEAVIEST:
        assert found.max() / found.min() == pytest.approx((max(here) / min(here)) ** TAIL)


def test_a_job_that_never_ends_and_one_that_cannot_run_are_worth_nothing_odd() -> None:
    found = goodput(POOL, [0.9, 0.9])
    found[1] = 0.0
    with np.errstate(divide="ignore"):
        price = job_value(found, 100.0 / found, np.zeros(2), POOL)
    assert price[1] == 0.0
    assert np.isfinite(price).all()
