"""The exchanges as their papers write them, in one process: what real ranks are compared with."""

from __future__ import annotations

import math
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


class DiLoCo(LocalSgd):
    """The outer optimizer is torch's."""

    def __init__(self, models: list[nn.Module], interval: int) -> None:
        super().__init__(models, interval)
        self.parameters = [list(model.parameters()) for model in models]
        self.anchors = [nn.Parameter(parameter.detach().clone()) for parameter in self.parameters[0]]
        self.outer = [torch.optim.SGD([anchor], lr=0.7, momentum=0.9, nesterov=True) for anchor in self.anchors]
        count, total, before = min(4, interval), sum(anchor.numel() for anchor in self.anchors), 0
        self.fragment_of = []
        for anchor in self.anchors:
            self.fragment_of.append(int((before + anchor.numel() / 2) / total * count))
            before += anchor.numel()

    def stepped(self) -> None:
        self.steps += 1
        used = sorted(set(self.fragment_of))
        for turn, fragment in enumerate(used, 1):
            if self.steps % self.interval == turn * self.interval // len(used) % self.interval:
                self.outer_step([i for i, of in enumerate(self.fragment_of) if of == fragment])

    @torch.no_grad()
    def outer_step(self, members: list[int]) -> None:
        flat = [torch.cat([(self.anchors[i] - own[i]).flatten() for i in members]) for own in self.parameters]
        mean = (bytegrad_sum(flat) if len(flat) > 1 else flat[0]) / len(flat)
        for i, part in zip(members, mean.split([self.anchors[i].numel() for i in members]), strict=True):
            self.anchors[i].grad = part.view_as(self.anchors[i])
            self.outer[i].step()
            for own in self.parameters:
                own[i].copy_(self.anchors[i])

    def settled(self) -> None:
        return


class Decentralized(LocalSgd):
    """`sent`: what each rank's weights were when it sent them."""

    sent: list[Tensor] = []  # noqa: RUF012 - replaced, never changed

    @torch.no_grad()
    def before_step(self) -> None:
        for rank, (model, own) in enumerate(zip(self.models, self.sent, strict=False)):
            add(model, self.difference(rank, own))

    def difference(self, rank: int, own: Tensor) -> Tensor:
        """Pairs are those whose ranks add up to 1, 3, 5, ... at one step after another, counted in rings."""
        pair = (2 * (self.steps - 1) + 1 - rank) % len(self.models)
        return (self.sent[pair] - own) / 2

    def stepped(self) -> None:
        self.steps += 1
        self.sent = [flat(model) for model in self.models]

    def settled(self) -> None:
        self.steps, self.sent = 0, []


class DecentralizedAll(Decentralized):
    def difference(self, rank: int, own: Tensor) -> Tensor:
        return sum(self.sent[1:], self.sent[0]) / len(self.sent) - own


class LowPrecision(LocalSgd):
    """`held`: every rank's X."""

    def __init__(self, models: list[nn.Module], interval: int) -> None:
        super().__init__(models, interval)
        self.settled()

    def settled(self) -> None:
        self.held = [flat(model) for model in self.models]

    @torch.no_grad()
    def stepped(self) -> None:
        world, sizes = len(self.models), [parameter.numel() for parameter in self.models[0].parameters()]
        sent = []
        for rank, model in enumerate(self.models):
            z = flat(model).add(self.held[rank], alpha=-5 / 3)
            for neighbour in sorted({(rank - 1) % world, (rank + 1) % world}):
                z = z.add(self.held[neighbour], alpha=1 / 3 if world > 2 else 2 / 3)
            sent.append(torch.cat([in_bytes(part) for part in z.split(sizes)]))
        self.held = [held + moved for held, moved in zip(self.held, sent, strict=True)]
        for model, held in zip(self.models, self.held, strict=True):
            for parameter, part in zip(model.parameters(), held.split(sizes), strict=True):
                parameter.copy_(part.view_as(parameter))


def flat(model: nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def add(model: nn.Module, difference: Tensor) -> None:
    sizes = [parameter.numel() for parameter in model.parameters()]
    for parameter, part in zip(model.parameters(), difference.split(sizes), strict=True):
        parameter += part.view_as(parameter)


AVERAGING = {
    "local_sgd": LocalSgd,
    "diloco": DiLoCo,
    "decentralized": Decentralized,
    "decentralized_all": DecentralizedAll,
    "low_precision_decentralized": LowPrecision,
}


def depths(world: int, sizes: list[int]) -> list[int]:
    """Of every layer, from the first to the last: how many of the ranks have gradients of it at any step."""
    depths, total, behind = [], sum(sizes), 0
    for size in reversed(sizes):
        middle = (behind + size / 2) / total if behind else 0.0  # the last is everybody's
        depths.insert(0, world - min(world - 1, math.floor(middle * world)))
        behind += size
    return depths


def partial_mean(parts: list[Tensor], step: int, depth: int) -> Tensor:
    """parts: gradients of one parameter by rank, weighted. Rank r is the (r + step)-th to stop, the last nowhere."""
    world = len(parts)
    computed = [part for rank, part in enumerate(parts) if (rank + step) % world >= world - depth]
    return sum(computed[1:], computed[0].clone()) * (world / len(computed))
