"""`rl_lstm`: HeterPS's planner, a policy trained by REINFORCE on the problem itself; the best choice that it drew.

The search sees costs only, so that it also serves where a cost is measured and has no form (`search_by`). A policy
trained over a family of problems beforehand is not shipped.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch

from elastic_core.placement.learnt.layer_policy import LayerPolicy, features
from elastic_core.placement.learnt.reinforce import Cost, Training, reinforce
from elastic_core.placement.placement_problem import PlacementProblem
from elastic_core.placement.planners.planner import BestOf, Found, Planner
from elastic_core.placement.stage_costs import Tables


class RlLstm(Planner):
    name: ClassVar[str] = "rl_lstm"
    summary: ClassVar[str] = "a policy over the layers, trained by REINFORCE on the problem's costs"

    def __init__(self, training: Training | None = None) -> None:
        self._training = training or Training()

    def search(self, tables: Tables, rng: np.random.Generator) -> Found:
        best = BestOf(tables)
        search_by(best.cost, tables.problem, rng, self._training)
        return best.found(self.name)


def search_by(cost: Cost, problem: PlacementProblem, rng: np.random.Generator, training: Training) -> None:
    """Asks `cost` of choices that get better. The caller's random state and threads of torch are left as they are: the
    tensors are so small that threads wait for each other most of the time."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        _train(cost, problem, rng, training)
    finally:
        torch.set_num_threads(threads)


def _train(cost: Cost, problem: PlacementProblem, rng: np.random.Generator, training: Training) -> None:
    seed = int(rng.integers(2**31))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy = LayerPolicy()
    generator = torch.Generator().manual_seed(seed)
    reinforce(policy, features(problem), cost, generator, training)
