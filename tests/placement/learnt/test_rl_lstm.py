"""The learnt planner: what it draws, what it learns, and that a cost need not have a form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from elastic_core.placement.learnt.layer_policy import LayerPolicy, features, log_costs
from elastic_core.placement.learnt.reinforce import Training, by_layer
from elastic_core.placement.learnt.rl_lstm import RlLstm, search_by
from elastic_core.placement.planners.exact import Exact
from elastic_core.placement.problem_families import ctr
from tests.placement.builders import small

TARGET = (0, 2, 2, 1, 0)


def differing(types: Sequence[int]) -> float:
    """A cost that nothing but asking tells: how many layers are not on their type."""
    return 1.0 + sum(a != b for a, b in zip(types, TARGET, strict=True))


def test_it_learns_a_cost_that_it_is_only_told() -> None:
    problem = small(1, layers=5, types=3)
    asked: list[float] = []

    def cost(types: Sequence[int]) -> float:
        asked.append(differing(types))
        return asked[-1]

    search_by(cost, problem, np.random.default_rng(0), Training(updates=60, rollouts=24))
    early, late = np.mean(asked[:48]), np.mean(asked[-48:])
    assert early > 3.5  # as random choices are: 1 + 5 x 2/3
    assert late < early - 1.0
    assert min(asked) == 1.0


@pytest.mark.parametrize("seed", range(3))
def test_its_plan_keeps_every_limit_and_is_never_below_the_optimum(seed: int) -> None:
    problem = ctr(np.random.default_rng(seed), 6, 3)
    best = Exact().plan(problem).placement
    planned = RlLstm(Training(updates=20)).plan(problem, seed)
    assert planned.bound is None
    assert best.cost * (1 - 1e-8) <= planned.placement.cost < 2 * best.cost
    assert planned.placement.throughput >= problem.floor * (1 - 1e-8)


def test_the_same_seed_gives_the_same_plan_and_torchs_own_draws_go_on() -> None:
    problem = ctr(np.random.default_rng(5), 6, 2)
    torch.manual_seed(3)
    first = RlLstm(Training(updates=3)).plan(problem, 1)
    drawn = torch.rand(1)
    again = RlLstm(Training(updates=3)).plan(problem, 1)
    torch.manual_seed(3)
    assert drawn == torch.rand(1)
    assert first.placement == again.placement


def test_one_policy_serves_any_number_of_types_and_their_order_does_not_matter() -> None:
    problem = small(2, layers=6, types=3)
    turned = replace(problem, types=problem.types[::-1])
    torch.manual_seed(0)
    policy = LayerPolicy()
    with torch.no_grad():
        scores, stay = policy(features(problem))
        scores_turned, stay_turned = policy(features(turned))
        assert torch.allclose(scores, scores_turned.flip(1), atol=1e-6)
        assert torch.allclose(stay, stay_turned, atol=1e-6)
        assert policy(features(small(2, layers=6, types=2)))[0].shape == (6, 2)


def test_log_probabilities_are_those_of_what_was_drawn() -> None:
    """Over one layer, the probabilities of what many draws show are the softmax of the scores."""
    given = features(small(4, layers=1, types=3))
    policy = LayerPolicy()
    with torch.no_grad():
        choices, logs, _ = policy.draw(given, 4000, torch.Generator().manual_seed(0))
    for kind in range(3):
        drawn = choices[:, 0] == kind
        assert drawn.float().mean().item() == pytest.approx(logs[drawn][0].exp().item(), abs=0.04)


def test_what_meets_no_floor_counts_as_ten_times_the_worst_that_does() -> None:
    costs = torch.tensor([2.0, float("inf"), 3.0])
    assert log_costs(costs).exp().tolist() == pytest.approx([2.0, 30.0, 3.0])


def test_choices_along_the_chains_come_back_by_layer() -> None:
    problem = replace(small(3, layers=3, types=2), edges=((2, 0), (2, 1)))
    given = features(problem)
    assert given.order == (2, 0, 1)
    assert by_layer(given, [1, 0, 0]) == [0, 0, 1]
