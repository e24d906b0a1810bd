"""The accelerator's prices at which mixing wins, by throughputs that were measured."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from benchmarks.placement_real.price_range import Measured, price_range

CPU_PRICE = 0.04
MIXED = Measured(
    name="mixed", stages="", cpus=4, accelerators=1, predicted=450.0, throughput=400.0, rate=4 * CPU_PRICE + 0.35
)
ON_CPUS = replace(MIXED, cpus=8, accelerators=0, throughput=80.0, rate=8 * CPU_PRICE)
ON_ACCELERATORS = replace(MIXED, cpus=0, accelerators=2, throughput=160.0, rate=0.7)
RIVALS = (ON_CPUS, ON_ACCELERATORS)


def samples_per_unit(one: Measured, price: float) -> float:
    """At an accelerator's price in processors' prices."""
    return replace(one, rate=CPU_PRICE * (one.cpus + price * one.accelerators)).samples_per_unit


def test_samples_for_a_unit_of_money_and_the_part_of_what_was_predicted():
    assert MIXED.samples_per_unit == pytest.approx(400 * 3600 / 0.51)
    assert MIXED.ratio == pytest.approx(400 / 450)


def test_inside_the_range_mixing_is_cheapest_and_at_its_ends_one_type_is_as_cheap():
    low, high = price_range(MIXED, RIVALS)
    assert 0 < low < high
    for price, wins in ((low * 0.9, False), (low * 1.1, True), (high * 0.9, True), (high * 1.1, False)):
        best = max(samples_per_unit(rival, price) for rival in RIVALS)
        assert (samples_per_unit(MIXED, price) > best) is wins, price
    assert samples_per_unit(MIXED, low) == pytest.approx(samples_per_unit(ON_ACCELERATORS, low))
    assert samples_per_unit(MIXED, high) == pytest.approx(samples_per_unit(ON_CPUS, high))


def test_without_a_rival_on_processors_no_price_is_too_high():
    slow = replace(ON_ACCELERATORS, throughput=100.0)
    assert price_range(MIXED, (slow,)) == (pytest.approx(4 / 400 / (2 / 100 - 1 / 400)), inf)


def test_beside_a_rival_that_needs_less_of_both_there_is_no_range():
    better = replace(MIXED, cpus=2)
    low, high = price_range(MIXED, (better,))
    assert low > high
