"""`exact` is the optimum: of brute force, of the integer program, and within its own bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from elastic_core.domain import LayerTimes
from elastic_core.placement.placement_problem import PlacementProblem
from elastic_core.placement.planners.brute_force import BruteForce
from elastic_core.placement.planners.exact import Exact, Milp
from elastic_core.placement.planners.planner import NoPlacement, Planner
from elastic_core.placement.problem_families import ctr, mixed
from tests.effort import EFFORT
from tests.placement.builders import a_layer, a_type, plain_cost, small


def cost(planner: Planner, problem: PlacementProblem) -> float | None:
    """None where there is no placement."""
    try:
        planned = planner.plan(problem)
    except NoPlacement:
        return None
    stages = [(stage.layers, stage.type, stage.units) for stage in planned.placement.stages]
    assert plain_cost(problem, stages) == pytest.approx(
        (planned.placement.cost, planned.placement.throughput), rel=1e-9
    )
    assert sorted(layer for layers, _, _ in stages for layer in layers) == list(range(len(problem.layers)))
    if planned.bound is not None:
        assert planned.bound <= planned.placement.cost * (1 + 1e-12)
    return planned.placement.cost


KINDS = {
    "units of each stage's own": {"shared": False},
    "units shared between stages": {},
    "branching layers": {"graph": True},
    "no floor": {"floor": False},
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("more", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("block", range(3 * EFFORT))
def test_exact_is_what_trying_everything_finds(more: dict[str, bool], block: int) -> None:
    """20 problems a block, 240 in all at the least; the first of branching layers, and more of `make nightly`, have 8
    layers x 3 types, which takes 20 s."""
    possible = 0
    for seed in range(20 * block, 20 * (block + 1)):
        large = seed == 0 and (EFFORT > 1 or "graph" in more)
        problem = small(seed, layers=8, types=3, **more) if large else small(seed, **more)
        want, got = cost(BruteForce(), problem), cost(Exact(), problem)
        assert (got is None) == (want is None), problem.name
        if got is not None:
            assert got == pytest.approx(want, rel=3e-8), problem.name
            assert Exact().plan(problem).proved
            possible += 1
    assert possible >= 8


@pytest.mark.parametrize("more", KINDS.values(), ids=KINDS)
def test_the_integer_program_finds_the_same(more: dict[str, bool]) -> None:
    for seed in range(500, 515):
        problem = small(seed, **more)
        want, got = cost(Exact(), problem), cost(Milp(), problem)
        assert (got is None) == (want is None)
        assert got is None or got == pytest.approx(want, rel=3e-8)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(6))
def test_on_larger_models_it_is_never_above_another_planner(seed: int) -> None:
    from elastic_core.placement.planner_names import get

    problem = (ctr, mixed)[seed % 2](np.random.default_rng(seed), 12, 4)
    best = cost(Exact(), problem)
    assert best is not None
    others = [cost(get(name), problem) for name in ("greedy", "genetic", "cpu_only", "gpu_only", "first_on_cpu")]
    assert all(other is None or other >= best * (1 - 1e-9) for other in others)
    assert any(other is not None for other in others)


def test_a_search_that_is_cut_short_says_how_far_it_may_be_off() -> None:
    problem = ctr(np.random.default_rng(3), 16, 4)
    best = Exact().plan(problem).placement.cost
    short = Exact(most_looks=3).plan(problem)
    assert short.gap is not None
    assert 1e-6 < short.gap < 10
    assert short.bound is not None
    assert short.bound <= best <= short.placement.cost


@pytest.mark.sampled(10)
@pytest.mark.parametrize("seed", range(30))
def test_cost_never_falls_with_a_price_or_the_floor_nor_rises_with_units(seed: int) -> None:
    problem = small(seed, layers=6, types=3)
    base = cost(Exact(), problem)
    dearer = replace(problem, types=tuple(replace(kind, price=kind.price * (1.3 if t == seed % 3 else 1.0))
                                          for t, kind in enumerate(problem.types)))  # fmt: skip
    higher = replace(problem, floor=problem.floor * 1.2)
    more = replace(problem, types=tuple(replace(kind, units=kind.units + 3) for kind in problem.types))
    if base is None:
        assert cost(Exact(), higher) is None
        return
    assert (cost(Exact(), dearer) or 0.0) >= base * (1 - 1e-9)
    assert (cost(Exact(), higher) or np.inf) >= base * (1 - 1e-9)
    assert (cost(Exact(), more) or np.inf) <= base * (1 + 1e-9)


def test_all_prices_times_two_is_twice_the_cost_of_the_same_stages() -> None:
    problem = small(7, layers=8, types=3)
    doubled = replace(problem, types=tuple(replace(kind, price=2 * kind.price) for kind in problem.types))
    one, two = (Exact().plan(each).placement for each in (problem, doubled))
    assert two.stages == one.stages
    assert two.cost == pytest.approx(2 * one.cost)


def test_stages_of_one_type_are_not_cut_to_go_faster() -> None:
    """Two layers that do not scale, on one type: as two stages they would meet the floor, and they are one stage."""

    serial = LayerTimes(compute_seconds=1.0, alpha=0.0)
    layers = tuple(a_layer(name, {"gpu": serial}) for name in ("a", "b"))
    problem = PlacementProblem(name="serial", batch=1.0, types=(a_type(),), layers=layers, floor=0.8)
    with pytest.raises(NoPlacement, match=r"highest that can be reached is 0\.5"):
        Exact().plan(problem)
    assert Exact().plan(replace(problem, floor=0.5)).placement.throughput == pytest.approx(0.5)


def test_a_floor_out_of_reach_says_what_can_be_reached_and_what_limits_it() -> None:
    layers = (a_layer("table", {"gpu": 4.0}), a_layer("mlp", {"gpu": 4.0}))
    problem = PlacementProblem(name="m", batch=16.0, types=(a_type(),), layers=layers, floor=9.0)
    with pytest.raises(NoPlacement) as refused:
        Exact().plan(problem)
    assert str(refused.value) == (
        "placement 'm': no placement has 9 samples a second; the highest that can be reached is 8, limited by the "
        "stage of 'table' to 'mlp' on 4 of 4 units of 'gpu'; lower the floor, or raise the limit"
    )


def test_a_layer_that_fits_nowhere_is_named() -> None:
    types = (a_type("gpu", memory_bytes=10.0), a_type("cpu", memory_bytes=20.0))
    layers = (a_layer("mlp", {"gpu": 1.0, "cpu": 1.0}), a_layer("table", {"gpu": 1.0, "cpu": 1.0}, weight_bytes=30.0))
    with pytest.raises(NoPlacement, match="layer 'table' fits on no type: 30 bytes of weights"):
        Exact().plan(PlacementProblem(name="m", batch=1.0, types=types, layers=layers))


def test_chains_that_together_need_more_units_than_there_are_are_refused() -> None:
    layers = tuple(a_layer(name, {"gpu": 1.0}) for name in "abc")
    problem = PlacementProblem(name="fork", batch=1.0, types=(a_type(units=2),), layers=layers, edges=((0, 1), (0, 2)))
    with pytest.raises(
        NoPlacement, match="its 3 chains of layers and their memory need more units than there are: 2 of"
    ):
        Exact().plan(problem)
