"""The exchanges as their papers write them, in one process: what real ranks are compared with."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor, nn

RANK = 4


def minmax_uint8(values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(codes, scale, lower) of float32 values."""
    greatest, least = values.max(), values.min()
    scale = 255 / (greatest - least + 1e-7)
    upper = torch.round(greatest * scale)
    lower = upper - 255
    codes = torch.minimum(torch.round(values * scale), upper) - lower
    return codes.clamp(0, 255).to(torch.uint8), scale, lower


def decoded(codes: Tensor, scale: Tensor, lower: Tensor) -> Tensor:
    return (codes.to(torch.float32) + lower) / scale


def in_bytes(values: Tensor) -> Tensor:
    return decoded(*minmax_uint8(values))


def half_sum(parts: list[Tensor], dtype: torch.dtype) -> Tensor:
    total = torch.zeros_like(parts[0])
    for part in parts:
        total = total + part.to(dtype).float()
    return total.to(dtype).float()


def bytegrad_sum(parts: list[Tensor]) -> Tensor:
    """parts: a flat bucket of each rank."""
    world, size = len(parts), parts[0].numel()
    chunk = -(-size // world)
    sums = []
    for owner in range(world):
        total = torch.zeros_like(parts[0][owner * chunk : (owner + 1) * chunk])
        if total.numel() == 0:
            continue
        for rank, part in enumerate(parts):
            mine = part[owner * chunk : (owner + 1) * chunk]
            total = total + (mine if rank == owner else in_bytes(mine))
        sums.append(in_bytes(total))
    return torch.cat(sums)


class PowerSgd:
    """Of all ranks: algorithm 1 of the paper, with each rank's error its own."""

    def __init__(self) -> None:
        self.factors: dict[str, Tensor] = {}
        self.errors: dict[tuple[str, int], Tensor] = {}

    def sum(self, name: str, gradients: list[Tensor]) -> Tensor:
        """gradients: of one parameter, by rank."""
        first = gradients[0]
        if first.dim() < 2 or 2 * RANK * (first.shape[0] + first[0].numel()) > first.numel():
            return sum(gradients[1:], first.clone())
        matrices = [g.reshape(g.shape[0], -1) + self.errors.get((name, r), 0) for r, g in enumerate(gradients)]
        if name not in self.factors:
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            self.factors[name] = torch.randn(matrices[0].shape[1], RANK, generator=generator)
        basis = torch.linalg.qr(sum(m @ self.factors[name] for m in matrices)).Q
        for rank, matrix in enumerate(matrices):
            self.errors[name, rank] = matrix - basis @ (basis.T @ matrix)
        self.factors[name] = sum(m.T @ basis for m in matrices)
        return (basis @ self.factors[name].T).view_as(first)


class LocalSgd:
    """Of all ranks. All that average weights have these: before and after a step of every rank, and after settling."""

    def __init__(self, models: list[nn.Module], interval: int) -> None:
        self.models, self.interval, self.steps = models, interval, 0

    def before_step(self) -> None:
        return

    def stepped(self) -> None:
        self.steps += 1
        if self.steps % self.interval == 0:
            average([list(model.parameters()) for model in self.models])

    def settled(self) -> None:
        self.steps = 0


@torch.no_grad()
def average(by_rank: list[list[Tensor]]) -> None:
    """Every tensor becomes the mean over ranks, summed in their order."""
    for same in zip(*by_rank, strict=True):
        mean = sum(same[1:], same[0].clone()) / len(same)
        for tensor in same:
            tensor.copy_(mean)


def settle(models: list[nn.Module], optimizers: list[torch.optim.Optimizer]) -> None:
    """The exact average of weights and moments."""
    average([list(model.parameters()) for model in models])
    moments = [
        [optimizer.state[p][key] for p in model.parameters() for key in sorted(optimizer.state[p])]
        for model, optimizer in zip(models, optimizers, strict=True)
    ]
    average(moments)


AVERAGING = {"local_sgd": LocalSgd}
