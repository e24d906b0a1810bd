"""The same small training by real ranks, and replayed for all ranks in one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from elastic_core.comm.algorithms import averaging_class
from elastic_core.comm.averaging.weight_averaging import WeightAveraging
from tests.comm import plain

CPU = torch.device("cpu")


def net() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(40, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def gradients(model: nn.Module, step: int, rank: int) -> None:
    """Of the mean loss over a rank's own samples, in two micro-batches."""
    model.zero_grad(set_to_none=True)
    for micro in range(2):
        x = torch.randn(8, 40, generator=torch.Generator().manual_seed(1000 * step + 10 * micro + rank))
        ((model(x) - x[:, :1]).square().mean() / 2).backward()


def algorithm(name: str, interval: int = 8) -> WeightAveraging:
    kind = averaging_class(name)
    return kind(dist.new_group() if kind.overlaps else None, interval)


def trained(
    name: str, rank: int, steps: int, interval: int, settles: tuple[int, ...]
) -> tuple[list[dict[str, Tensor]], WeightAveraging]:
    """Weights after each step. `settles`: after which steps ranks are settled."""
    model = net()
    optimizer, averaging = optimizer_of(model), algorithm(name, interval)
    averaging.attach(model, optimizer)
    weights = []
    for step in range(1, steps + 1):
        gradients(model, step, rank)
        optimizer.step()
        if step in settles:
            averaging.settle()
        weights.append({key: value.clone() for key, value in model.state_dict().items()})
    return weights, averaging


def replayed(
    exchange: Callable[[list[nn.Module]], plain.LocalSgd], world: int, steps: int, settles: tuple[int, ...]
) -> list[list[dict[str, Tensor]]]:
    """Weights of all ranks after each step."""
    models = [net() for _ in range(world)]
    optimizers = [optimizer_of(model) for model in models]
    averaging = exchange(models)
    weights = []
    for step in range(1, steps + 1):
        for rank, model in enumerate(models):
            gradients(model, step, rank)
        averaging.before_step()
        for optimizer in optimizers:
            optimizer.step()
        averaging.stepped()
        if step in settles:
            plain.settle(models, optimizers)
            averaging.settled()
        weights.append([{key: value.clone() for key, value in model.state_dict().items()} for model in models])
    return weights


def compare_with_replay(rank: int, world: int, name: str, folder: str) -> None:
    """Real ranks step as the plain algorithm does, bit for bit, and are alike where they have settled."""
    steps, interval, settles = 11, 3, (7, 8, 11)
    mine, averaging = trained(name, rank, steps, interval, settles)
    want = replayed(lambda models: plain.AVERAGING[name](models, interval), world, steps, settles)
    for step, (got, by_rank) in enumerate(zip(mine, want, strict=True), 1):
        for key, value in got.items():
            assert torch.equal(value, by_rank[rank][key]), (step, key, float((value - by_rank[rank][key]).abs().max()))
    torch.save(mine, Path(folder) / f"rank{rank}")
    dist.barrier()
    first = torch.load(Path(folder) / "rank0")
    for step in settles:
        assert all(torch.equal(value, first[step - 1][key]) for key, value in mine[step - 1].items()), step
    averaging.close()
