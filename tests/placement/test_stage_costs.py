"""What stages cost, held to a plain account of the formulas; the best units, to trying all."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from elastic_core.domain import LayerTimes
from elastic_core.placement.placement_problem import PlacementProblem
from elastic_core.placement.stage_costs import Stage, Tables, cut_chain
from elastic_core.placement.stretches import stretches
from tests.placement.builders import a_layer, a_type, choices, plain_cost, small


@pytest.mark.parametrize("seed", range(40))
def test_judged_stages_cost_what_the_formulas_say(seed: int) -> None:
    problem = small(seed, graph=seed % 2 == 1, floor=False)
    rng = np.random.default_rng(seed)
    types = rng.integers(len(problem.types), size=len(problem.layers))
    stages = [
        Stage(layers=layers, type=kind, units=int(rng.integers(1, 5)))
        for chain in problem.chains
        for layers, kind in cut_chain(chain, types)
    ]
    judged = Tables.of(problem).judge(stages)
    want = plain_cost(unlimited(problem), [(one.layers, one.type, one.units) for one in stages])
    assert (judged.cost, judged.throughput) == pytest.approx(want)


def unlimited(problem: PlacementProblem) -> PlacementProblem:
    types = tuple(a_type(kind.name, price=kind.price, units=1000, link_bytes_per_second=kind.link_bytes_per_second)
                  for kind in problem.types)  # fmt: skip
    return PlacementProblem(
        name="unlimited", batch=problem.batch, types=types, layers=problem.layers, edges=problem.edges
    )


@pytest.mark.parametrize("seed", range(25))
def test_provisioned_units_are_the_best_of_all(seed: int) -> None:
    """For every choice of types, against every number of units."""
    problem = small(seed, layers=1 + seed % 4, types=2, graph=seed % 3 == 0)
    tables = Tables.of(problem)
    for types in choices(problem):
        parts = [part for chain in problem.chains for part in cut_chain(chain, types)]
        counts = [range(1, problem.types[kind].most_units + 1) for _, kind in parts]
        costs = [
            found[0]
            for units in product(*counts)
            if (found := plain_cost(problem, [(*part, count) for part, count in zip(parts, units, strict=True)]))
        ]
        placement = tables.provision(types)
        assert (placement is None) == (costs == [])
        if placement is not None:
            assert placement.cost == pytest.approx(min(costs), rel=1e-8)


@pytest.mark.parametrize("seed", range(20))
def test_the_least_units_are_the_fewest_that_meet_a_cycle_time(seed: int) -> None:
    problem = small(seed, shared=False)
    for chain in problem.chains:
        table = stretches(problem, chain)
        units = np.arange(1.0, 101.0)[:, None, None, None]
        meets = (table.seconds(units) <= 2.0) & (units >= table.floor_units) & (units <= table.most_units)
        want = np.where(meets.any(axis=0), meets.argmax(axis=0) + 1.0, np.inf)
        got = table.least_units(np.asarray(2.0))
        upper = np.triu(np.ones(got.shape[:2], dtype=bool))
        assert np.array_equal(got[upper], want[upper])


def test_a_cycle_time_that_is_a_stages_own_needs_no_unit_more() -> None:
    problem = small(3, layers=6, types=3, shared=False, floor=False)
    table = stretches(problem, range(6))
    for count in (1.0, 2.0, 7.0, 60.0):
        own = table.seconds(np.asarray(count))
        again = table.least_units(np.where(np.isfinite(own), own, 1.0))
        shares = np.isfinite(own) & (table.floor_units <= count) & (table.most_units >= count)
        assert np.all(again[shares] <= count)


def test_the_slowest_stage_sets_the_throughput_and_all_units_are_paid_for() -> None:
    layers = (a_layer("table", {"cpu": 2.0, "gpu": 8.0}), a_layer("mlp", {"cpu": 40.0, "gpu": 4.0}))
    types = (a_type("cpu", price=0.5, units=4), a_type("gpu", price=3.0, units=2))
    problem = PlacementProblem(name="m", batch=16.0, types=types, layers=layers, samples=3600.0 * 16)
    placement = Tables.of(problem).judge([Stage(layers=(0,), type=0, units=2), Stage(layers=(1,), type=1, units=1)])
    assert placement.throughput == 4.0  # 16 samples in the 4 seconds of the MLP
    assert placement.cost == pytest.approx(4.0 * (2 * 0.5 + 3.0))  # 14,400 s


def test_units_of_a_type_that_shares_weights_out_hold_a_part_each() -> None:
    layer = a_layer("table", {"ps": 1.0, "gpu": 1.0}, weight_bytes=90.0, activation_bytes=20.0)
    types = (a_type("ps", units=9, memory_bytes=30.0, shards_weights=True), a_type("gpu", units=9, memory_bytes=100.0))
    problem = PlacementProblem(name="m", batch=1.0, types=types, layers=(layer,))
    assert stretches(problem, (0,)).floor_units.ravel().tolist() == [4.0, 2.0]


def test_activations_go_over_the_links_of_both_sides_and_back() -> None:
    times = {"gpu": LayerTimes(compute_seconds=0.1)}
    layers = tuple(a_layer(name, times, activation_bytes=30.0) for name in "abc")
    problem = PlacementProblem(name="m", batch=1.0, types=(a_type(link_bytes_per_second=10.0),), layers=layers)
    table = stretches(problem, (0, 1, 2))
    border = table.exchange_shared[:, :, 0]
    assert [border[0, 0], border[1, 1], border[0, 2]] == [6.0, 12.0, 0.0]
