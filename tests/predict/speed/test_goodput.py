"""Goodput and its optimum: what a batch is worth, and the batch that a search of all of them would choose."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.domain import Limits
from elastic_core.predict.speed.efficiency import efficiency
from elastic_core.predict.speed.fit import job_models
from elastic_core.predict.speed.goodput import (
    BatchRange,
    Speeds,
    best,
    coarse_batches,
    filling_batches,
    geometric_batches,
)
from elastic_core.predict.speed.throughput import StepTime
from tests.policy.strategies import BUSY
from tests.predict.speed.test_throughput import point

LIMITS = Limits(slot_counts=(1, 2, 4, 8), types=(), min_batch=16, max_batch=1024, max_local_batch=64)
MODEL = StepTime.of(job_models(tuple(point(n, b) for n in (1, 2, 4) for b in (32, 128)), LIMITS), LIMITS)


def ints(*values: int) -> np.ndarray:
    return np.asarray(values, dtype=np.int64)


@settings(BUSY, max_examples=40)
@given(count=st.integers(1, 16), nodes=st.integers(1, 2), noise=st.none() | st.floats(1, 1e6))
def test_close_to_the_best_of_all_batches(count: int, nodes: int, noise: float | None) -> None:
    batches = np.arange(16, 1025)
    slots, spread = np.full_like(batches, count), np.full_like(batches, nodes)
    rates = batches / MODEL.seconds(slots, spread, "cpu", batches, LIMITS)
    every = [rate * efficiency(int(batch), 16, noise) for rate, batch in zip(rates, batches, strict=True)]
    found = best(MODEL, LIMITS, "cpu", ints(count), ints(nodes), noise)
    assert 0.93 * max(every) <= found.rates[0] <= 1.05 * max(every)


@settings(BUSY, max_examples=30)
@given(counts=st.lists(st.integers(1, 64), min_size=1, max_size=6), noise=st.none() | st.floats(1, 1e6))
def test_the_split_is_the_batch_and_fits(counts: list[int], noise: float | None) -> None:
    slots = np.asarray(counts)
    found = best(MODEL, LIMITS, "cpu", slots, np.ones_like(slots), noise)
    assert (found.local <= 64).all()
    assert (found.batches <= LIMITS.max_batch).all()
    assert (found.local * found.accumulation * slots >= found.batches).all()
    assert (found.rates <= found.samples * (1 + 1e-12)).all()


def test_configurations_do_not_influence_each_other() -> None:
    together = best(MODEL, LIMITS, "cpu", ints(1, 4, 8), ints(1, 1, 2), 200.0)
    for i, (count, nodes) in enumerate(((1, 1), (4, 1), (8, 2))):
        assert best(MODEL, LIMITS, "cpu", ints(count), ints(nodes), 200.0).rates[0] == together.rates[i]


def test_noise_asks_for_larger_batches() -> None:
    quiet, noisy = (best(MODEL, LIMITS, "cpu", ints(8), ints(1), noise).batches[0] for noise in (5.0, 1e6))
    assert quiet < noisy


def test_one_slot_takes_two_micro_batches_where_gradients_are_compared() -> None:
    found = best(MODEL, LIMITS, "cpu", ints(1, 2), ints(1, 1), 1e6, two_gradients=True)
    assert found.batches[0] > LIMITS.min_batch
    assert found.accumulation[0] >= 2
    small = replace(LIMITS, max_batch=48)  # fits a slot at once: two gradients cost a second start of the computation
    one, two = (best(MODEL, small, "cpu", ints(1), ints(1), 1e6, two_gradients=both) for both in (False, True))
    assert (one.accumulation[0], two.accumulation[0]) == (1, 2)
    assert two.rates[0] < one.rates[0]


def test_a_count_that_cannot_feed_every_slot_is_worth_nothing() -> None:
    fed = replace(LIMITS, min_local_batch=32, max_batch=64)
    assert [bool(g) for g in best(MODEL, fed, "cpu", ints(1, 2, 4), ints(1, 1, 1), None).rates] == [
        True,
        True,
        False,
    ]


@settings(BUSY, max_examples=60)
@given(
    low=st.integers(1, 500), more=st.integers(0, 4000), local=st.none() | st.integers(1, 200), count=st.integers(1, 64)
)
def test_batches_that_are_tried_are_in_range_and_ascend(low: int, more: int, local: int | None, count: int) -> None:
    tried = filling_batches(low, low + more, local, count)
    assert (np.diff(tried) > 0).all()
    assert tried[0] >= max(low, count) or len(tried) == 1
    limits = replace(LIMITS, min_batch=low, max_batch=low + more)
    assert ((geometric_batches(limits, (count,)) >= low) & (geometric_batches(limits, (count,)) <= low + more)).all()


def test_what_fills_the_slots_exactly_is_tried() -> None:
    assert 8 * 48 in filling_batches(16, 1024, 48, 8)


def test_without_noise_goodput_is_throughput() -> None:
    found = best(MODEL, LIMITS, "cpu", ints(4), ints(1), None)
    assert found.rates == pytest.approx(found.samples)


def speeds(*samples: float) -> Speeds:
    """One configuration at batches of 32, 64, 128, 256."""
    batches = ints(32, 64, 128, 256)[None, :]
    return Speeds(np.asarray([samples]), batches, batches, np.ones_like(batches))


ANY = BatchRange(reference=64, low=32, high=256, needed=1)


def test_where_work_is_samples_a_larger_batch_has_to_bring_five_percent() -> None:
    hardly, clearly = speeds(99.0, 100.0, 102.0, 104.0), speeds(80.0, 100.0, 130.0, 134.0)
    assert hardly.best(64, 50.0, scale_invariant=False, allowed=ANY).batches[0] == 64
    assert clearly.best(64, 50.0, scale_invariant=False, allowed=ANY).batches[0] == 128


def test_where_the_reference_is_not_tried_the_largest_allowed_stands_for_it() -> None:
    hardly = speeds(99.0, 100.0, 102.0, 104.0)
    between = BatchRange(reference=150, low=32, high=200, needed=1)
    assert hardly.best(64, 50.0, scale_invariant=False, allowed=between).batches[0] == 128


def test_each_unit_of_work_chooses_its_own_batch() -> None:
    linear = speeds(50.0, 100.0, 180.0, 300.0)
    assert linear.best(64, 50.0, scale_invariant=False, allowed=ANY).batches[0] == 256
    assert linear.best(64, 50.0, scale_invariant=True, allowed=ANY).batches[0] == 128
    assert linear.best(64, 1.0, scale_invariant=True, allowed=ANY).batches[0] == 64


def test_a_batch_beyond_the_range_is_taken_only_to_feed_slots_that_are_needed() -> None:
    linear = speeds(50.0, 100.0, 180.0, 300.0)
    within = BatchRange(reference=64, low=64, high=64, needed=1)
    assert linear.best(64, None, scale_invariant=False, allowed=within).batches[0] == 64
    wide = Speeds(*(of[:, 2:] for of in (linear.samples, linear.batches, linear.local, linear.accumulation)))
    assert wide.best(64, None, scale_invariant=False, allowed=within).rates[0] == 0.0
    fed = wide.best(64, None, scale_invariant=False, allowed=replace(within, needed=128))
    assert (fed.batches[0], fed.rates[0]) == (128, 180.0)


@given(base=st.integers(16, 1024), count=st.integers(1, 64))
def test_the_base_batch_is_tried_wherever_it_feeds_every_slot(base: int, count: int) -> None:
    tried = coarse_batches(replace(LIMITS, base_batch=base), "cpu", (count,))[0]
    assert (base in tried) == (base >= count)
