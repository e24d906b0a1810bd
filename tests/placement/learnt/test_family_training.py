"""Training over a family: what is learnt serves problems that were not among those trained on."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from elastic_core.placement.learnt.family_training import Family, FamilyTraining, Stack, train
from elastic_core.placement.learnt.layer_policy import LayerPolicy, drawn
from elastic_core.placement.placement_problem import PlacementProblem
from elastic_core.placement.problem_families import ctr, like
from tests.placement.builders import small

SHORT = FamilyTraining(stacks=2, problems=8, rollouts=8, updates=40)


def of_ctr(rng: np.random.Generator) -> PlacementProblem:
    return ctr(rng, 6, 3)


def mean_log_cost(policy: LayerPolicy, stack: Stack) -> float:
    """Of what it draws."""
    with torch.no_grad():
        scores, stay = policy(stack.layers, stack.types)
    choices = drawn(scores, stay, 16, torch.Generator().manual_seed(0)).numpy()
    return float(np.log(stack.relative(stack.asked(choices))).mean())


def test_what_a_trained_policy_draws_for_unseen_problems_is_cheaper_than_before() -> None:
    told: list[float] = []
    policy = train([of_ctr], SHORT, 1, lambda _, log_ratio: told.append(log_ratio))
    torch.manual_seed(1)
    unseen = Stack.of([ctr(np.random.default_rng([seed, 5]), 6, 3) for seed in range(10)])
    assert len(told) == SHORT.updates
    assert mean_log_cost(policy, unseen) < mean_log_cost(LayerPolicy(), unseen) - 0.2


def test_the_same_arguments_make_the_same_policy_and_torchs_own_draws_go_on() -> None:
    shortest = FamilyTraining(stacks=1, problems=2, rollouts=4, updates=2)
    torch.manual_seed(3)
    first = train([of_ctr], shortest, 1, lambda *_: None)
    after = torch.rand(1)
    again = train([of_ctr], shortest, 1, lambda *_: None)
    torch.manual_seed(3)
    assert after == torch.rand(1)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("family", [of_ctr, partial(like, problem=small(2, layers=6, types=3, graph=True))])
def test_the_best_plan_seen_only_gets_cheaper(family: Family) -> None:
    rng = np.random.default_rng(0)
    first = family(rng)
    stack = Stack.of([first, first])
    before = stack.best_costs.copy()
    choices = rng.integers(len(first.types), size=(2, 40, len(first.layers)))
    costs = stack.asked(choices)
    stack.remember(choices, costs)
    assert (stack.best_costs <= before).all()
    assert stack.best_costs == pytest.approx(np.minimum(before, costs.min(axis=1)))
    assert stack.asked(stack.best[:, None])[:, 0] == pytest.approx(stack.best_costs)
    assert (stack.relative(costs) <= 10.0).all()
