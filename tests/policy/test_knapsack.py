"""One option a job within every type's capacity: exact where it says so, near where it does not, never over."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.policy.knapsack import NOTHING, _by_prices, best_choices

Instance = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def total(values: np.ndarray, chosen: np.ndarray) -> float:
    rows = np.flatnonzero(chosen != NOTHING)
    return float(values[rows, chosen[rows]].sum())


def used(instance: Instance, chosen: np.ndarray) -> np.ndarray:
    _, kinds, counts, capacity = instance
    taken = chosen[chosen != NOTHING]
    return np.bincount(kinds[taken], weights=counts[taken], minlength=len(capacity))


def by_hand(instance: Instance) -> float:
    """Every combination."""
    values, _, counts, capacity = instance
    best = 0.0
    for combination in product(range(-1, len(counts)), repeat=len(values)):
        chosen = np.asarray(combination)
        if (used(instance, chosen) <= capacity).all():
            best = max(best, total(values, chosen))
    return best


@st.composite
def instances(draw: st.DrawFn) -> Instance:
    """Up to four jobs, up to five options of up to two types; values of both signs."""
    num_kinds = draw(st.integers(1, 2))
    num_options = draw(st.integers(1, 5))
    kinds = np.asarray([draw(st.integers(0, num_kinds - 1)) for _ in range(num_options)])
    counts = np.asarray([draw(st.integers(1, 4)) for _ in range(num_options)])
    capacity = np.asarray([draw(st.integers(0, 6)) for _ in range(num_kinds)])
    rows = draw(st.integers(1, 4))
    value = st.integers(-3, 20).map(float)
    values = np.asarray([[draw(value) for _ in range(num_options)] for _ in range(rows)])
    return values, kinds, counts, capacity


@given(instances())
@settings(max_examples=150)
def test_small_instances_are_solved_exactly(instance: Instance) -> None:
    chosen = best_choices(*instance)
    assert (used(instance, chosen) <= instance[3]).all()
    assert total(instance[0], chosen) == pytest.approx(by_hand(instance))


@given(instances())
@settings(max_examples=150)
def test_prices_never_overbook_and_take_nothing_worthless(instance: Instance) -> None:
    chosen = _by_prices(*instance)
    assert (used(instance, chosen) <= instance[3]).all()
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
    return scale * counts[None, :] ** power, kinds, counts, np.asarray(capacity)


def test_prices_come_near_the_optimum_at_a_size_where_it_can_still_be_known() -> None:
    """Coarse counts on few slots are their worst case: larger pools have smaller gaps."""
    instances = [concave(seed, jobs=40, capacity=(24, 24, 16)) for seed in range(12)]
    parts = [total(one[0], _by_prices(*one)) / total(one[0], best_choices(*one)) for one in instances]
    assert np.median(parts) >= 0.99
    assert min(parts) >= 0.94


def test_large_instances_use_prices_and_fit() -> None:
    instance = concave(1, jobs=300, capacity=(1024, 512, 256))
    chosen = best_choices(*instance)
    assert (used(instance, chosen) <= instance[3]).all()
    assert used(instance, chosen).sum() > 0.95 * instance[3].sum()
