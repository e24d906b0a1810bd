"""The learnt planner: what it draws, what it learns, and that a cost need not have a form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from elastic_core.placement.learnt import policy_files
from elastic_core.placement.learnt.layer_policy import LayerPolicy, drawn, features, likeliest, log_chances, log_costs
from elastic_core.placement.learnt.reinforce import Training, by_layer
from elastic_core.placement.learnt.rl_lstm import Answering, RlLstm, RlLstmSearch, search_by
from elastic_core.placement.planners.exact import Exact
from elastic_core.placement.planners.planner import NoPlacement
from elastic_core.placement.problem_families import ctr, mixed
from elastic_core.placement.stage_costs import Tables
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
def test_a_searched_plan_keeps_every_limit_and_is_never_below_the_optimum(seed: int) -> None:
    problem = ctr(np.random.default_rng(seed), 6, 3)
    best = Exact().plan(problem).placement
    planned = RlLstmSearch(Training(updates=20)).plan(problem, seed)
    assert planned.bound is None
    assert best.cost * (1 - 1e-8) <= planned.placement.cost < 2 * best.cost
    assert planned.placement.throughput >= problem.floor * (1 - 1e-8)


def test_the_same_seed_gives_the_same_plan_and_torchs_own_draws_go_on() -> None:
    problem = ctr(np.random.default_rng(5), 6, 2)
    torch.manual_seed(3)
    first = RlLstmSearch(Training(updates=3)).plan(problem, 1)
    drawn = torch.rand(1)
    again = RlLstmSearch(Training(updates=3)).plan(problem, 1)
    torch.manual_seed(3)
    assert drawn == torch.rand(1)
    assert first.placement == again.placement


def test_one_policy_serves_any_number_of_types_and_their_order_does_not_matter() -> None:
    problem = small(2, layers=6, types=3)
    turned = replace(problem, types=problem.types[::-1])
    torch.manual_seed(0)
    policy = LayerPolicy()
    with torch.no_grad():
        scores, stay = policy.of(features(problem))
        scores_turned, stay_turned = policy.of(features(turned))
        assert torch.allclose(scores, scores_turned.flip(1), atol=1e-6)
        assert torch.allclose(stay, stay_turned.flip(1), atol=1e-6)
        assert policy.of(features(small(2, layers=6, types=2)))[0].shape == (6, 2)


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


@pytest.mark.parametrize("seed", range(6))
def test_an_answer_to_an_unseen_problem_keeps_every_limit_and_is_close_above_the_optimum(seed: int) -> None:
    problem = (ctr, mixed)[seed % 2](np.random.default_rng([seed, 77]), 10, 4)
    best = Exact().plan(problem).placement
    planned = RlLstm().plan(problem, seed)
    tables, stages = Tables.of(problem), planned.placement.stages
    assert planned.bound is None
    assert best.cost * (1 - 1e-8) <= planned.placement.cost <= 1.25 * best.cost
    assert planned.placement.throughput >= problem.floor * (1 - 1e-8)
    assert tables.within_units(stages)
    assert tables.judge(stages) == planned.placement
    assert sorted(layer for stage in stages for layer in stage.layers) == list(range(10))


def test_the_trained_policy_alone_beats_an_untrained_one() -> None:
    """Without the changes that follow, on problems of which neither saw one."""
    torch.manual_seed(0)
    alone, untrained = Answering(draws=0, rounds=0), LayerPolicy()
    costs, of_untrained = [], []
    for seed in range(12):
        problem = ctr(np.random.default_rng([seed, 78]), 12, 4)
        costs.append(RlLstm(answering=alone).plan(problem).placement.cost)
        of_untrained.append(RlLstm(untrained, alone).plan(problem).placement.cost)
    assert np.mean(np.log(costs)) < np.mean(np.log(of_untrained)) - 0.01


@pytest.mark.parametrize("seed", range(6))
def test_an_answer_is_never_dearer_than_the_cheapest_single_type(seed: int) -> None:
    problem = small(seed, layers=4, types=3)
    tables = Tables.of(problem)
    alone = [placement.cost for kind in range(3) if (placement := tables.provision([kind] * 4))]
    if alone:
        torch.manual_seed(seed)
        planned = RlLstm(LayerPolicy(), Answering(draws=2, rounds=0)).plan(problem)
        assert planned.placement.cost <= min(alone) * (1 + 1e-9)


def test_a_graph_far_from_the_family_is_answered_too() -> None:
    problem = small(2, layers=6, types=3, graph=True)
    best = Exact().plan(problem).placement
    assert best.cost * (1 - 1e-8) <= RlLstm().plan(problem).placement.cost <= 1.5 * best.cost


def test_a_floor_out_of_reach_is_refused() -> None:
    problem = replace(small(1, layers=3, types=2), floor=1e12)
    with pytest.raises(NoPlacement, match="rl_lstm found no placement"):
        RlLstm(LayerPolicy()).plan(problem)


def test_a_search_of_a_measured_cost_may_begin_with_a_trained_policy_which_stays_as_it_is() -> None:
    """The cost has no form: nothing but asking tells it."""
    problem = ctr(np.random.default_rng(9), 8, 4)
    tables, shipped = Tables.of(problem), policy_files.shipped()
    before = {name: tensor.clone() for name, tensor in shipped.state_dict().items()}

    def asked_first(policy: LayerPolicy | None) -> float:
        asked: list[float] = []

        def cost(types: Sequence[int]) -> float:
            placement = tables.provision(types)
            asked.append(float("inf") if placement is None else placement.cost)
            return asked[-1]

        search_by(cost, problem, np.random.default_rng(0), Training(updates=2, rollouts=16), policy)
        return float(np.median(asked))

    assert asked_first(shipped) < asked_first(None)
    assert all(torch.equal(tensor, before[name]) for name, tensor in shipped.state_dict().items())


def test_the_likeliest_choice_is_the_most_probable_of_all() -> None:
    generator = torch.Generator().manual_seed(3)
    scores, stay = torch.randn((5, 3), generator=generator), torch.randn((5, 3), generator=generator)
    every = torch.cartesian_prod(*[torch.arange(3)] * 5)
    logs, _ = log_chances(scores[None], stay[None], every[None])
    assert logs.exp().sum().item() == pytest.approx(1.0, abs=1e-5)
    assert likeliest(scores, stay).tolist() == every[logs[0].argmax()].tolist()


def test_draws_come_as_often_as_their_probability_says() -> None:
    generator = torch.Generator().manual_seed(4)
    scores, stay = torch.randn((1, 3, 2), generator=generator), torch.randn((1, 3, 2), generator=generator)
    choices = drawn(scores, stay, 6000, generator)
    every = torch.cartesian_prod(*[torch.arange(2)] * 3)
    logs, _ = log_chances(scores, stay, every[None])
    for choice, log in zip(every, logs[0], strict=True):
        share = (choices[0] == choice).all(dim=1).float().mean().item()
        assert share == pytest.approx(log.exp().item(), abs=0.03)
