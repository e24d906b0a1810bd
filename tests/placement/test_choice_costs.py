"""Costs of many choices at once, beside `provision`, which finds each exactly."""

from __future__ import annotations

from math import inf

import numpy as np
import pytest

from elastic_core.placement.choice_costs import ChoiceCosts
from elastic_core.placement.problem_families import ctr, mixed
from elastic_core.placement.stage_costs import Tables
from tests.placement.builders import choices, small


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_a_cost_is_never_below_the_exact_one_and_finite_where_that_is(seed: int, *, graph: bool) -> None:
    problem = small(seed, layers=5, types=2, graph=graph)
    tables = Tables.of(problem)
    every = np.asarray(list(choices(problem)))
    placements = [tables.provision(choice) for choice in every.tolist()]
    exact = np.asarray([inf if placement is None else placement.cost for placement in placements])
    found = ChoiceCosts([tables])(every)
    assert np.array_equal(np.isfinite(found), np.isfinite(exact))
    there = np.isfinite(exact)
    assert (found[there] >= exact[there] * (1 - 1e-9)).all()


def test_a_cost_is_close_to_the_exact_one() -> None:
    ratios = []
    for seed in range(4):
        problem = (ctr, mixed)[seed % 2](np.random.default_rng([seed, 3]), 10, 4)
        tables = Tables.of(problem)
        some = np.sort(np.random.default_rng(seed).integers(4, size=(24, 10)), axis=1)
        found = ChoiceCosts([tables])(some)
        for choice, cost in zip(some.tolist(), found, strict=True):
            placement = tables.provision(choice)
            if placement is not None:
                ratios.append(cost / placement.cost)
    assert len(ratios) > 20
    assert np.median(ratios) < 1.005
    assert max(ratios) < 1.1


def test_problems_of_one_stack_are_kept_apart() -> None:
    tables = [Tables.of(ctr(np.random.default_rng(seed), 6, 3)) for seed in range(3)]
    some = np.random.default_rng(0).integers(3, size=(30, 6))
    of = np.arange(30) % 3
    together = ChoiceCosts(tables)(some, of)
    for number, one in enumerate(tables):
        assert together[of == number] == pytest.approx(ChoiceCosts([one])(some[of == number]))


def test_problems_of_different_shapes_make_no_stack() -> None:
    with pytest.raises(ValueError, match="same chains and as many types"):
        ChoiceCosts([Tables.of(small(1, layers=4, types=2)), Tables.of(small(1, layers=5, types=2))])
