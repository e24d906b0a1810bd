"""A policy over choices of types: LSTMs over the layers, a softmax over the types at each (after HeterPS, section 5).

HeterPS's: an LSTM over the layers, their features (index, kind, input size, weight size, communication time), a softmax
a layer. Ours: the output has no fixed width; every (layer, type) is scored by what the layer needs on that type at the
cycle time that the floor asks for, so that one policy serves any number of types, in any order, also types that it
never saw. A bonus for staying on the type of the layer before makes stages.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite

import numpy as np
import torch
from torch import Tensor, nn

from elastic_core.placement.placement_problem import PlacementProblem
from elastic_core.placement.stretches import Floats

KINDS = ("embedding", "dense", "attention", "normalisation", "interaction")
LAYER_FEATURES = 6 + len(KINDS)
TYPE_FEATURES = 15
WIDTH = 16
_TINY = 1e-9
_NEARLY = 0.05  # of a cycle, that is left at least beside what no further units shorten


@dataclass(frozen=True, slots=True)
class Features:
    """`layers` (n, LAYER_FEATURES), `types` (n, types, TYPE_FEATURES); layers in the order of the chains."""

    order: tuple[int, ...]
    layers: Tensor
    types: Tensor


def features(problem: PlacementProblem) -> Features:
    order = tuple(layer for chain in problem.chains for layer in chain)
    layers, kinds = [problem.layers[index] for index in order], problem.types
    times = np.asarray([[(on.compute_seconds, on.exchange_seconds, on.alpha, on.beta)
                         for on in (layer.on[kind.name] for kind in kinds)] for layer in layers])  # fmt: skip
    compute, exchange, alpha, beta = (times[:, :, column] for column in range(4))
    weights = np.asarray([layer.weight_bytes for layer in layers])
    prices = np.asarray([kind.price for kind in kinds])
    most = np.asarray([float(kind.most_units) for kind in kinds])
    memory = np.asarray([min(kind.memory_bytes, 1e15) for kind in kinds])
    links = np.asarray([kind.link_bytes_per_second for kind in kinds])
    entering, leaving = np.zeros(len(order)), np.zeros(len(order))
    for source, target in problem.all_edges:
        entering[target] += problem.layers[source].activation_bytes
        leaving[source] += problem.layers[source].activation_bytes
    entering, leaving = entering[list(order)], leaving[list(order)]

    cycle = problem.most_cycle if isfinite(problem.most_cycle) else float(compute.sum(axis=0).min())
    serial, exchange_serial = compute * (1.0 - alpha) / cycle, exchange * (1.0 - beta) / cycle
    shared, exchange_shared = compute * alpha / cycle, exchange * beta / cycle
    border = 2.0 * (entering + leaving)[:, None] / links[None, :] / cycle
    needed = np.maximum(_units(serial, shared), _units(exchange_serial, exchange_shared))
    money = needed * prices
    whole = np.maximum(_units(serial.sum(axis=0), shared.sum(axis=0)),
                       _units(exchange_serial.sum(axis=0), exchange_shared.sum(axis=0)))  # fmt: skip
    shape = np.ones_like(compute)
    types = np.stack((
        _log(needed), _log(money) - _log(money).min(axis=1, keepdims=True), np.log1p(20.0 * serial),
        np.log1p(20.0 * exchange_serial), np.tanh(_log(exchange_shared + 1e-6) - _log(shared)),
        np.minimum(needed / most, 4.0), np.minimum(weights[:, None] / memory, 4.0),
        shape * [float(kind.is_cpu) for kind in kinds], shape * [float(kind.shards_weights) for kind in kinds],
        shape * (np.log(prices) - np.log(prices).mean()) / 2.0, np.log1p(20.0 * border), shape * np.log(most) / 5.0,
        shape * np.minimum(_log(whole * prices) - _log(whole * prices).min(), 4.0) / 2.0,
        shape * np.minimum(whole / most, 4.0), shape * np.minimum(serial.sum(axis=0), 4.0),
    ), axis=2)  # fmt: skip
    least = money.min(axis=1)
    of_layers = np.stack((
        np.arange(len(order)) / len(order), np.log1p(entering) / 25.0, np.log1p(weights) / 25.0,
        np.log1p(1e9 * exchange.mean(axis=1)) / 25.0, _log(least / least.sum()), np.full(len(order), len(order) / 32.0),
    ), axis=1)  # fmt: skip
    hot = np.asarray([[float(layer.kind == kind) for kind in KINDS] for layer in layers])
    return Features(order, _tensor(np.concatenate((of_layers, hot), axis=1)), _tensor(types))


def _units(serial: Floats, shared: Floats) -> Floats:
    """Units, if they could be divided, for one cycle time of 1."""
    needed: Floats = shared / np.maximum(1.0 - serial, _NEARLY)
    return needed


def _log(values: Floats) -> Floats:
    """To about -1 to 1 for sizes over five orders around 1."""
    logs: Floats = np.clip(np.log(np.maximum(values, 1e-9)) / 3.0, -5.0, 5.0)
    return logs


def _tensor(values: Floats) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32))


class LayerPolicy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.along = nn.LSTM(LAYER_FEATURES + TYPE_FEATURES, WIDTH, bidirectional=True)
        self.across = nn.LSTM(6 * WIDTH, WIDTH, bidirectional=True)
        self.score = nn.Sequential(nn.Linear(2 * WIDTH + TYPE_FEATURES, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 2))

    def forward(self, layers: Tensor, types: Tensor) -> tuple[Tensor, Tensor]:
        """Of `layers` (problems, n, LAYER_FEATURES) and `types` (problems, n, types, TYPE_FEATURES): the score of every
        (layer, type), and the bonus of each for the type of the layer before; both (problems, n, types)."""
        kinds = types.shape[2]
        both = torch.cat((layers[:, :, None, :].expand(-1, -1, kinds, -1), types), dim=3)
        hidden = self._run(self.along, both)  # every type by itself
        of_all = torch.cat((hidden.mean(dim=2), hidden.amax(dim=2)), dim=2)
        seen = torch.cat((hidden, of_all[:, :, None, :].expand(-1, -1, kinds, -1)), dim=3)
        hidden = self._run(self.across, seen)  # beside the others
        scores = self.score(torch.cat((hidden, types), dim=3))
        return scores[..., 0], scores[..., 1]

    @staticmethod
    def _run(lstm: nn.LSTM, given: Tensor) -> Tensor:
        """Along the layers, every (problem, type) a sequence."""
        problems, n, kinds, width = given.shape
        out, _ = lstm(given.permute(1, 0, 2, 3).reshape(n, problems * kinds, width))
        shaped: Tensor = out.reshape(n, problems, kinds, -1).permute(1, 0, 2, 3)
        return shaped

    def of(self, given: Features) -> tuple[Tensor, Tensor]:
        """`forward` of one problem: scores and bonus (n, types)."""
        scores, stay = self(given.layers[None], given.types[None])
        return scores[0], stay[0]

    def draw(self, given: Features, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        """Choices (count, n), the log probability (count,) of each, and the mean entropy of a layer's choice."""
        scores, stay = (part[None] for part in self.of(given))
        choices = drawn(scores.detach(), stay.detach(), count, generator)
        logs, entropy = log_chances(scores, stay, choices)
        return choices[0], logs[0], entropy


def drawn(scores: Tensor, stay: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """`count` choices (problems, count, n) of each problem, layer after layer. Of detached scores."""
    problems, n, kinds = scores.shape
    uniform = torch.rand((n, problems, count, kinds), generator=generator)
    noise = -(-uniform.clamp_min(1e-12).log()).clamp_min(1e-12).log()  # Gumbel: its largest sum is a draw
    index = torch.arange(kinds)
    before = torch.full((problems, count), -1)
    chosen = []
    for layer in range(n):
        same = (before[:, :, None] == index).float()
        before = (scores[:, layer, None, :] + stay[:, layer, None, :] * same + noise[layer]).argmax(dim=2)
        chosen.append(before)
    return torch.stack(chosen, dim=2)


def log_chances(scores: Tensor, stay: Tensor, choices: Tensor) -> tuple[Tensor, Tensor]:
    """Of `choices` (problems, count, n): log probabilities (problems, count), and the mean entropy of a layer's."""
    kinds = scores.shape[2]
    before = torch.cat((torch.full_like(choices[:, :, :1], -1), choices[:, :, :-1]), dim=2)
    same = (before[..., None] == torch.arange(kinds)).float()
    chances = torch.log_softmax(scores[:, None] + stay[:, None] * same, dim=3)
    logs = chances.gather(3, choices[..., None]).squeeze(3).sum(dim=2)
    return logs, -(chances.exp() * chances).sum(dim=3).mean()


def likeliest(scores: Tensor, stay: Tensor) -> Tensor:
    """The choice (n,) of highest probability of one problem's scores and bonus (n, types): Viterbi's path."""
    same = torch.eye(scores.shape[1])
    steps = torch.log_softmax(scores[1:, None, :] + stay[1:, None, :] * same, dim=2)  # (layer, type before, type)
    total = torch.log_softmax(scores[0], dim=0)
    origins = []
    for step in steps:
        total, origin = (total[:, None] + step).max(dim=0)
        origins.append(origin.tolist())
    path = [int(total.argmax())]
    for origin in reversed(origins):
        path.append(origin[path[-1]])
    return torch.tensor(path[::-1])


def log_costs(costs: Tensor) -> Tensor:
    """Logarithms, of which what meets no floor (inf) has that of ten times the worst that does."""
    seen = costs[costs < inf]
    worst = 10.0 * seen.max() if len(seen) else torch.tensor(1.0)
    return torch.where(costs < inf, costs, worst).clamp_min(_TINY).log()
