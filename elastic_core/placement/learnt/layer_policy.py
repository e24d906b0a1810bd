"""A policy over choices of types: an LSTM over the layers, a softmax over the types at each (HeterPS, section 5).

HeterPS's features of a layer: index, kind, input size, weight size, communication time. Its output has one unit a type;
here the types are scored one by one, by what the layer takes on each, so that one policy serves any number of types and
types that it never saw. A learnt bonus for staying on the type of the layer before makes stages.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor, nn

from elastic_core.placement.placement_problem import PlacementProblem

KINDS = ("embedding", "dense", "attention", "normalisation", "interaction")
LAYER_FEATURES = 4 + len(KINDS)
TYPE_FEATURES = 6
WIDTH = 32
_TINY = 1e-9


@dataclass(frozen=True, slots=True)
class Features:
    """`layers` (n, LAYER_FEATURES), `types` (n, types, TYPE_FEATURES); layers in the order of the chains."""

    order: tuple[int, ...]
    layers: Tensor
    types: Tensor


def features(problem: PlacementProblem) -> Features:
    order = tuple(layer for chain in problem.chains for layer in chain)
    entering = [0.0] * len(problem.layers)
    for source, target in problem.all_edges:
        entering[target] += problem.layers[source].activation_bytes
    rows, columns = [], []
    for place, index in enumerate(order):
        layer = problem.layers[index]
        times = [layer.on[kind.name] for kind in problem.types]
        exchange = sum(time.exchange_seconds for time in times) / len(times)
        compute = torch.tensor([time.compute_seconds for time in times]).log()
        money = compute + torch.tensor([kind.price for kind in problem.types]).log()
        rows.append([place / len(order), *_logs(entering[index], layer.weight_bytes), *_logs(1e9 * exchange),
                     *(float(layer.kind == kind) for kind in KINDS)])  # fmt: skip
        columns.append(torch.stack((
            compute - compute.min(), money - money.min(),
            torch.tensor([*_logs(*(1e9 * time.exchange_seconds for time in times))]),
            torch.tensor([time.alpha for time in times]),
            torch.tensor([*_logs(*(kind.most_units for kind in problem.types))]),
            torch.tensor([float(min(kind.memory_bytes, 1e15) < layer.weight_bytes) for kind in problem.types]),
        ), dim=1))  # fmt: skip
    return Features(order, torch.tensor(rows), torch.stack(columns))


def _logs(*values: float) -> list[float]:
    """Of sizes over twelve orders, to about 0 to 1."""
    return [float(torch.log1p(torch.tensor(value))) / 25.0 for value in values]


class LayerPolicy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.along = nn.LSTM(LAYER_FEATURES + 2 * TYPE_FEATURES, WIDTH, bidirectional=True)
        self.score = nn.Sequential(nn.Linear(2 * WIDTH + TYPE_FEATURES, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
        self.stay = nn.Linear(2 * WIDTH, 1)

    def forward(self, given: Features) -> tuple[Tensor, Tensor]:
        """Scores (n, types) and the bonus (n,) of a layer for the type of the layer before it."""
        over_types = torch.cat((given.types.mean(dim=1), given.types.amin(dim=1)), dim=1)
        hidden, _ = self.along(torch.cat((given.layers, over_types), dim=1))
        wide = hidden[:, None, :].expand(-1, given.types.shape[1], -1)
        return self.score(torch.cat((wide, given.types), dim=2)).squeeze(2), self.stay(hidden).squeeze(1)

    def draw(self, given: Features, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Choices (count, n), the log probability (count,) of each, and the mean entropy of a layer's choice."""
        scores, stay = self(given)
        before = torch.full((count,), -1)
        kinds = torch.arange(scores.shape[1])
        drawn, logs, entropy = [], torch.zeros(count), torch.zeros(())
        for layer in range(len(scores)):
            same = (before[:, None] == kinds[None, :]).float()
            chance = torch.log_softmax(scores[layer] + stay[layer] * same, dim=1)
            before = torch.multinomial(chance.detach().exp(), 1, generator=generator).squeeze(1)
            logs = logs + chance.gather(1, before[:, None]).squeeze(1)
            entropy = entropy - (chance.exp() * chance).sum(dim=1).mean()
            drawn.append(before)
        return torch.stack(drawn, dim=1), logs, entropy / len(scores)


def log_costs(costs: Tensor) -> Tensor:
    """Logarithms, of which what meets no floor (inf) has that of ten times the worst that does."""
    seen = costs[costs < inf]
    worst = 10.0 * seen.max() if len(seen) else torch.tensor(1.0)
    return torch.where(costs < inf, costs, worst).clamp_min(_TINY).log()
