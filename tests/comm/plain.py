"""The lossy exchanges as their papers write them, in one process: what real ranks are compared with."""

from __future__ import annotations

import math
import zlib

import torch
from torch import Tensor

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


def signs(values: Tensor) -> Tensor:
    """values: flat. What 1-bit messages of them say, row by row of 4,096."""
    sent = []
    for row in values.split(4096):
        whole = torch.nn.functional.pad(row, (0, 4096 - row.numel()))
        sent.append(torch.copysign(whole.abs().sum() / row.numel(), row))
    return torch.cat(sent)


def in_bytes_by_blocks(values: Tensor) -> Tensor:
    return torch.cat([in_bytes(block) for block in values.split(65_536)])


class Momenta:
    """Sums of flat vectors of all ranks in chunks of whole blocks of 65,536, with each rank's errors its own."""

    def __init__(self, name: str) -> None:
        self.sent = {"onebit_adam": signs, "qadam": in_bytes_by_blocks}[name]
        self.keeps_errors = name == "onebit_adam"
        self.errors: dict[tuple[str, int, int], Tensor] = {}

    def sum(self, parts: list[Tensor]) -> Tensor:
        world, size = len(parts), parts[0].numel()
        if world == 1:
            return parts[0]
        chunk = math.ceil(math.ceil(size / 65_536) / world) * 65_536
        sums = []
        for owner, first in enumerate(range(0, size, chunk)):
            total = parts[owner][first : first + chunk] + self.errors.get(("server", owner, owner), 0)
            for rank, part in enumerate(parts):
                if rank != owner:
                    total = total + self.compressed(("worker", rank, owner), part[first : first + chunk])
            sums.append(self.compressed(("server", owner, owner), total, with_error=True))
        return torch.cat(sums)

    def compressed(self, key: tuple[str, int, int], values: Tensor, with_error: bool = False) -> Tensor:
        values = values if with_error else values + self.errors.get(key, 0)
        sent = self.sent(values)
        if self.keeps_errors:
            self.errors[key] = values - sent
        return sent


class FrozenAdam:
    """Steps all ranks' model after the warm-up. `decoupled`: AdamW's decay, else Adam's."""

    def __init__(self, name: str, optimizer: torch.optim.Adam, decoupled: bool) -> None:
        self.momenta, self.decoupled = Momenta(name), decoupled
        self.groups = optimizer.param_groups
        self.step_of, self.m, self.d = {}, {}, {}
        owned = [(group, parameter) for group in self.groups for parameter in group["params"]]
        corrected = {}
        for group, p in owned:
            state = optimizer.state[p]
            self.step_of[p], self.m[p] = float(state["step"]), state["exp_avg"].reshape(-1)
            corrected[p] = state["exp_avg_sq"].reshape(-1) / (1 - group["betas"][1] ** self.step_of[p])
        for group, p in owned:
            v = torch.where(corrected[p] == 0, corrected[p].max(), corrected[p])
            self.d[p] = v.sqrt() + group["eps"]

    def step(self, gradients: list[dict[Tensor, Tensor]]) -> None:
        """By rank, of each parameter: weighted, so that their sum is the gradient."""
        world = len(gradients)
        parts = [
            torch.cat([self.part(g, p, of[p], world) for g in self.groups for p in g["params"]]) for of in gradients
        ]
        summed, first = self.momenta.sum(parts), 0
        for group in self.groups:
            for p in group["params"]:
                u = summed[first : first + p.numel()]
                first += p.numel()
                self.step_of[p] += 1
                rate = group["lr"] / (1 - group["betas"][0] ** self.step_of[p])
                with torch.no_grad():
                    if self.decoupled:
                        p.mul_(1 - group["lr"] * group["weight_decay"])
                    p.add_(u.view_as(p), alpha=-rate)
                self.m[p] = u * self.d[p]

    def part(self, group: dict, p: Tensor, gradient: Tensor, world: int) -> Tensor:
        beta = group["betas"][0]
        momentum = torch.add(self.m[p] * (beta / world), gradient.reshape(-1), alpha=1 - beta)
        if not self.decoupled:
            momentum = momentum.add(p.detach().reshape(-1), alpha=(1 - beta) * group["weight_decay"] / world)
        return momentum / self.d[p]
