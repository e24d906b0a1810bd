"""Stages that send each other the greatest values only: gradients are those of a plain re-implementation, and as many
bytes less travel."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from elastic_core.comm.stages import stage_links
from elastic_core.comm.tuning.received_bytes import received_bytes
from elastic_core.domain import Layout
from elastic_core.host.rundir import RunDir
from elastic_core.train.data.batches import MicroBatch
from elastic_core.train.gradients.pipe import Pipe
from elastic_core.train.parallel.group import Group
from elastic_core.train.parallel.partitioning import ModelPartition, skeleton_of
from elastic_core.train.parallel.places import Places
from elastic_core.train.parallel.stages import Stage
from tests.train import forked

CPU = torch.device("cpu")
WIDTH, ROWS, MICRO, STEPS, RATIO = 48, 16, 4, 3, 8.0
STAGES = (("0", "1"), ("2", "3"))


def net() -> nn.Sequential:
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Tanh())


def samples(step: int, micro: int, replica: int) -> Tensor:
    return torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(100 * step + 10 * replica + micro))


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) - x).square().mean()


class Plain:
    """One way over a border: the greatest of all values, sorted, and what was left out before."""

    def __init__(self) -> None:
        self.left: Tensor | float = 0.0

    def __call__(self, values: Tensor) -> Tensor:
        whole = values.detach() + self.left
        count = int(values.numel() * 4 / (RATIO * 8))
        least = whole.abs().flatten().sort(descending=True).values[count - 1]
        sent = torch.where(whole.abs() >= least, whole, torch.zeros_like(whole))
        self.left = whole - sent
        return sent


def replayed(replica: int) -> dict[str, Tensor]:
    """Gradients of a step after the other, added up, in one process."""
    model, forward, back = net(), Plain(), Plain()
    for step in range(STEPS):
        for micro in range(MICRO):
            x = samples(step, micro, replica)
            activations = model[1](model[0](x))
            arrived = forward(activations).requires_grad_()
            ((model[3](model[2](arrived)) - x).square().mean() / MICRO).backward()
            activations.backward(back(arrived.grad))
    return {name: parameter.grad for name, parameter in model.named_parameters()}


def in_stages(folder: str, rank: int, world: int, ratio: float | None) -> int:
    torch.set_num_threads(1)
    stage_links.NO_TIME = 0.0  # any link of this machine is quick
    group = Group.form(RunDir(Path(folder)), rank, world, CPU)
    places = Places(group, Layout(data=world // 2, pipeline=2))
    whole = net()
    skeleton = skeleton_of(whole)
    stage = Stage(whole, STAGES[places.stage], nullcontext)
    partition = ModelPartition(stage, skeleton, STAGES, (), (), (), places.stage)
    pipe = Pipe(partition, places, loss_of, CPU, nullcontext, ratio)
    received = 0
    for step in range(STEPS):
        micros = [MicroBatch(0, np.arange(ROWS), 1 / MICRO, micro == MICRO - 1) for micro in range(MICRO)]
        batches = [samples(step, micro, places.data) for micro in range(MICRO)]
        group.gather_bytes(b"begin")
        before = received_bytes()
        pipe.run(micros, batches)
        received = received_bytes() - before
        group.gather_bytes(b"end")
    want = MICRO * ROWS * WIDTH * 4 / (ratio or 1.0)
    assert want * 0.95 <= received <= want * 1.1 + 1500, (received, want)
    if ratio is not None:
        expected = replayed(places.data)
        for name, parameter in stage.named_parameters():
            torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-7, msg=name)
    group.gather_bytes(b"done")
    group.close()
    return 0


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("ratio", [None, RATIO])
def test_what_travels_between_stages_and_what_is_learnt_from_it(tmp_path, world, ratio):
    processes = [
        forked.start(in_stages, str(tmp_path), rank, world, ratio, log=tmp_path / f"log{rank}") for rank in range(world)
    ]
    codes = forked.join(processes, 240.0)
    assert codes == [0] * world, [path.read_text() for path in sorted(tmp_path.glob("log*"))]
