"""One option a job within every type's capacity: exact where it says so, near where it does not, never over."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.policy.base.knapsack import NOTHING, _by_prices, _exact, _improved, best_choices
from elastic_core.policy.base.prices import minimise
from tests.policy.strategies import BUSY

Instance = tuple[np.ndarray, np.ndarray, np.ndarray]  # values, slots by option and type, capacity


def total(values: np.ndarray, chosen: np.ndarray) -> float:
    rows = np.flatnonzero(chosen != NOTHING)
    return float(values[rows, chosen[rows]].sum())


def used(instance: Instance, chosen: np.ndarray) -> np.ndarray:
    _, use, _ = instance
    return use[chosen[chosen != NOTHING]].sum(axis=0)


def by_hand(instance: Instance) -> float:
    """Every combination."""
    values, use, capacity = instance
    best = 0.0
    for combination in product(range(-1, len(use)), repeat=len(values)):
        chosen = np.asarray(combination)
        if (used(instance, chosen) <= capacity).all():
            best = max(best, total(values, chosen))
    return best


@st.composite
def instances(draw: st.DrawFn) -> Instance:
    """Up to four jobs, up to five options of up to two types, some of both at once; values of both signs."""
    num_kinds = draw(st.integers(1, 2))
    num_options = draw(st.integers(1, 5))
    slots = st.tuples(*[st.integers(0, 4)] * num_kinds).filter(any)
    use = np.asarray([draw(slots) for _ in range(num_options)])
    capacity = np.asarray([draw(st.integers(0, 6)) for _ in range(num_kinds)])
    rows = draw(st.integers(1, 4))
    value = st.integers(-3, 20).map(float)
    values = np.asarray([[draw(value) for _ in range(num_options)] for _ in range(rows)])
    return values, use, capacity


@given(instances())
@settings(BUSY, max_examples=150)
def test_small_instances_are_solved_exactly(instance: Instance) -> None:
    chosen = best_choices(*instance)
    assert (used(instance, chosen) <= instance[2]).all()
    assert total(instance[0], chosen) == pytest.approx(by_hand(instance))


@given(instances())
@settings(BUSY, max_examples=150)
def test_prices_never_overbook_and_take_nothing_worthless(instance: Instance) -> None:
    values, use, capacity = instance
    fits = (use <= capacity).all(axis=1)
    chosen = _by_prices(np.where(fits, np.maximum(values, 0.0), 0.0), use, capacity)
    assert (used(instance, chosen) <= instance[2]).all()
    assert total(values, chosen) == pytest.approx(by_hand(instance))
    rows = np.flatnonzero(chosen != NOTHING)
    assert (instance[0][rows, chosen[rows]] > 0).all()


def concave(seed: int, jobs: int, capacity: tuple[int, ...]) -> Instance:
    """Speed-ups as jobs have them: concave in the slots, another scale a type."""
    rng = np.random.default_rng(seed)
    sizes = (1, 2, 4, 8, 16)
    kinds = np.repeat(np.arange(len(capacity)), len(sizes))
    counts = np.tile(sizes, len(capacity))
    power = rng.uniform(0.4, 0.95, size=(jobs, 1))
    scale = rng.lognormal(0.0, 1.0, size=(jobs, 1)) * rng.uniform(0.5, 3.0, size=(1, len(capacity)))[:, kinds]
    use = np.zeros((len(counts), len(capacity)), dtype=np.int64)
    use[np.arange(len(use)), kinds] = counts
    return scale * counts[None, :] ** power, use, np.asarray(capacity)


def near(values: np.ndarray, use: np.ndarray, capacity: np.ndarray) -> np.ndarray:
    """As where the exact program is too large even for what prices leave, from nothing."""
    prices = minimise(values, use, capacity)
    return _improved(np.full(len(values), NOTHING), prices, values, use, capacity)


@pytest.mark.parametrize("seed", range(6))
def test_what_prices_rule_out_is_in_no_best_choice(seed: int) -> None:
    instance = concave(seed, jobs=14, capacity=(9, 8, 6))
    assert total(instance[0], _by_prices(*instance)) == pytest.approx(total(instance[0], _exact(*instance)))


def test_prices_come_near_the_optimum_at_a_size_where_it_can_still_be_known() -> None:
    """Coarse counts on few slots are their worst case: larger pools have smaller gaps."""
    instances = [concave(seed, jobs=40, capacity=(24, 24, 16)) for seed in range(12)]
    parts = [total(one[0], near(*one)) / total(one[0], best_choices(*one)) for one in instances]
    assert np.median(parts) >= 0.999
    assert min(parts) >= 0.98


@given(instances())
@settings(BUSY, max_examples=150)
def test_no_choice_is_worth_more_than_the_bound_that_prices_prove(instance: Instance) -> None:
    values, use, capacity = instance
    possible = np.where((use <= capacity).all(axis=1), values, 0.0)
    if (possible > 0).any():
        assert minimise(possible, use, capacity).bound >= by_hand(instance) - 1e-9


@pytest.mark.parametrize("different", [300, 5, 1])
def test_large_instances_come_within_a_hundredth_of_that_bound_however_many_jobs_are_alike(different: int) -> None:
    values, use, capacity = concave(1, jobs=different, capacity=(1024, 512, 256))
    values = values[np.arange(300) % different]
    instance = (values, use, capacity)
    chosen = best_choices(*instance)
    assert (used(instance, chosen) <= capacity).all()
    assert total(values, chosen) >= 0.99 * minimise(values, use, capacity).bound


def test_where_there_is_enough_everybody_gets_the_best_and_slots_cost_nothing() -> None:
    values, use, capacity = concave(3, jobs=30, capacity=(2048, 2048, 2048))
    assert best_choices(values, use, capacity).tolist() == values.argmax(axis=1).tolist()
    assert minimise(values, use, capacity).price.tolist() == [0.0, 0.0, 0.0]
