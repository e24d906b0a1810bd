"""REINFORCE over choices of types (Williams 1992; HeterPS, section 5): -log cost is the reward.

A moving average of the reward is the baseline; a bonus for entropy decays. A cost is any function of the types of the
layers: the model of `stage_costs`, or what a run measured. Promises no optimum; the caller keeps the best it was asked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from elastic_core.placement.learnt.layer_policy import Features, LayerPolicy, log_costs

Cost = Callable[[Sequence[int]], float]  # of the type of every layer, by index; inf where it cannot be


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    updates: int = 60
    rollouts: int = 24
    learning_rate: float = 1e-2
    average: float = 0.9  # what the baseline keeps of itself at an update
    entropy: float = 0.05
    entropy_decay: float = 0.96


def reinforce(policy: LayerPolicy, given: Features, cost: Cost, generator: torch.Generator, training: Training) -> None:
    """Trains the policy on one problem, in place."""
    optimizer = torch.optim.Adam(policy.parameters(), lr=training.learning_rate)
    baseline: torch.Tensor | None = None
    weight = training.entropy
    for _ in range(training.updates):
        choices, logs, entropy = policy.draw(given, training.rollouts, generator)
        rewards = -log_costs(torch.tensor([cost(by_layer(given, choice)) for choice in choices.tolist()]))
        mean = rewards.mean()
        baseline = mean if baseline is None else training.average * baseline + (1.0 - training.average) * mean
        loss = -((rewards - baseline) * logs).mean() - weight * entropy
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        weight *= training.entropy_decay


def by_layer(given: Features, choice: Sequence[int]) -> list[int]:
    """From the order of the chains to the layers' own."""
    types = [0] * len(choice)
    for layer, kind in zip(given.order, choice, strict=True):
        types[layer] = kind
    return types
