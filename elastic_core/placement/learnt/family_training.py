"""One policy for a family of problems: REINFORCE over many drawn ones, so that unseen ones are answered at once.

Each update draws choices for a stack of problems of one shape and is rewarded by -log cost, beside the cheapest single
type of the problem. The baseline of a choice is the mean of its own problem's: a moving average, which serves one
problem, says nothing of another. The best plan seen of every problem is remembered and its probability raised. Needs no
optimum: costs are all that it is told. Loads torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import torch
from torch import Tensor

from elastic_core.placement.choice_costs import ChoiceCosts, Choices
from elastic_core.placement.learnt.layer_policy import LayerPolicy, drawn, features, log_chances
from elastic_core.placement.learnt.neighbours import neighbours
from elastic_core.placement.placement_problem import PlacementProblem
from elastic_core.placement.problem_families import any_floor
from elastic_core.placement.stage_costs import Tables
from elastic_core.placement.stretches import Floats

WORST = 10.0  # times the single type's cost: what is counted where a choice meets no floor

Family = Callable[[np.random.Generator], PlacementProblem]  # draws problems that have one shape
SHAPES = ((6, 2), (8, 3), (10, 4), (12, 3), (16, 2), (16, 4), (16, 4), (20, 6))  # layers, types


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyTraining:
    """`stacks`: of each family, drawn once and gone through again and again."""

    stacks: int = 10
    problems: int = 16  # a stack
    rollouts: int = 12  # of a problem, at an update
    updates: int = 1600
    learning_rate: float = 4e-3
    entropy: float = 0.03  # falls to 0 with the updates, and so does the learning rate, to a twentieth
    best_seen: float = 0.2  # weight of raising the probability of the best plan seen


@dataclass(slots=True)
class Stack:
    """Problems of one shape; `best`: (problems, n) along the chains, the cheapest choice seen of each."""

    order: tuple[int, ...]
    layers: Tensor
    types: Tensor
    costs: ChoiceCosts
    references: Floats
    best: Choices = field(init=False)
    best_costs: Floats = field(init=False)

    @classmethod
    def of(cls, problems: Sequence[PlacementProblem]) -> Stack:
        given = [features(problem) for problem in problems]
        costs = ChoiceCosts([Tables.of(problem) for problem in problems])
        n, kinds = given[0].types.shape[:2]
        single = np.repeat(np.arange(kinds)[:, None], n, axis=1)
        stack = cls(given[0].order, torch.stack([one.layers for one in given]),
                    torch.stack([one.types for one in given]), costs, np.zeros(0))  # fmt: skip
        alone = stack.asked(np.broadcast_to(single, (len(problems), kinds, n)))
        stack.best = single[alone.argmin(axis=1)]
        stack.best_costs = alone.min(axis=1)
        stack.references = stack.best_costs.copy()
        return stack

    def asked(self, choices: Choices) -> Floats:
        """Costs (problems, count) of choices (problems, count, n) along the chains."""
        problems, count, n = choices.shape
        by_layer = np.empty((problems * count, n), dtype=np.intp)
        by_layer[:, list(self.order)] = choices.reshape(-1, n)
        found: Floats = self.costs(by_layer, np.repeat(np.arange(problems), count)).reshape(problems, count)
        return found

    def relative(self, costs: Floats) -> Floats:
        """To the cheapest single type, or the cheapest choice seen where no single type will do; at most `WORST`."""
        against = np.where(np.isfinite(self.references), self.references, self.best_costs)[:, None]
        met = np.isfinite(costs)
        found: Floats = np.minimum(np.where(met, costs, WORST) / np.where(met, against, 1.0), WORST)
        return found

    def remember(self, choices: Choices, costs: Floats) -> None:
        at = costs.argmin(axis=1)
        rows = np.arange(len(at))
        better = costs[rows, at] < self.best_costs
        self.best[better] = choices[rows, at][better]
        self.best_costs[better] = costs[rows, at][better]


def drawn_families() -> list[Family]:
    """Models and types of `problem_families`, of several sizes: what the package's policy is trained on."""
    return [partial(any_floor, layers=layers, types=types) for layers, types in SHAPES]


def train(
    families: Sequence[Family], training: FamilyTraining, seed: int, progress: Callable[[int, float], None]
) -> LayerPolicy:
    """A policy, a function of its arguments alone. `progress`: told after an update its number, from 1, and the mean
    log of a drawn choice's cost over the cheapest single type's."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors so small that threads wait for each other
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            policy = LayerPolicy()
        stacks = list(_stacks(families, training, np.random.default_rng(seed)))
        _train(policy, stacks, training, torch.Generator().manual_seed(seed), progress)
    finally:
        torch.set_num_threads(threads)
    return policy


def _stacks(families: Sequence[Family], training: FamilyTraining, rng: np.random.Generator) -> Iterator[Stack]:
    for _ in range(training.stacks):
        for family in families:
            yield Stack.of([family(rng) for _ in range(training.problems)])


def _train(policy: LayerPolicy, stacks: Sequence[Stack], training: FamilyTraining, generator: torch.Generator,
           progress: Callable[[int, float], None]) -> None:  # fmt: skip
    optimizer = torch.optim.Adam(policy.parameters(), lr=training.learning_rate)
    for update in range(training.updates):
        left = 1.0 - update / training.updates
        optimizer.param_groups[0]["lr"] = training.learning_rate * max(left, 0.05)
        stack = stacks[update % len(stacks)]
        scores, stay = policy(stack.layers, stack.types)
        choices = drawn(scores.detach(), stay.detach(), training.rollouts, generator)
        costs = stack.asked(choices.numpy())
        stack.remember(choices.numpy(), costs)
        if update // len(stacks) % 2:  # at every second round
            _improve_best(stack)
        ratios = np.log(stack.relative(costs))
        rewards = -torch.from_numpy(ratios).float()
        logs, entropy = log_chances(scores, stay, torch.cat((choices, torch.from_numpy(stack.best)[:, None]), dim=1))
        advantage = rewards - rewards.mean(dim=1, keepdim=True)
        loss = -(advantage * logs[:, :-1]).mean() - training.entropy * left * entropy
        loss = loss - training.best_seen * logs[:, -1].mean() / logs.shape[1]
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        progress(update + 1, float(ratios.mean()))


def _improve_best(stack: Stack) -> None:
    """Each best plan seen, by one round of changes of one stage, layer or border."""
    changes = [neighbours(best, stack.types.shape[2]) for best in stack.best]
    of = np.repeat(np.arange(len(changes)), [len(some) for some in changes])
    every = np.concatenate(changes)
    by_layer = np.empty_like(every)
    by_layer[:, list(stack.order)] = every
    costs = stack.costs(by_layer, of)
    for number in range(len(changes)):
        mine = np.flatnonzero(of == number)
        at = mine[costs[mine].argmin()]
        if costs[at] < stack.best_costs[number]:
            stack.best[number], stack.best_costs[number] = every[at], costs[at]
