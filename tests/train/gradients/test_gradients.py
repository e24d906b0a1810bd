"""However a batch is split, the gradient is that of the mean loss over the whole batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from elastic_core.host.rundir import RunDir
from elastic_core.state.order.sample_order import batch_indices
from elastic_core.train.data.batches import DataPlan, Reader, plan_step
from elastic_core.train.gradients.gradients import Gradients
from elastic_core.train.parallel.group import Group
from tests.train import forked
from tests.train.tasks import data, network

ROWS = 64


def one_step(folder: str, rank: int, world: int, batch: int, max_local: int | None, total: int) -> int:
    group = Group.form(RunDir(Path(folder)), rank, world, torch.device("cpu"))
    torch.manual_seed(3)
    model = network(dropout=0.0)
    gradients = Gradients(model, group, "allreduce")
    reader = Reader(data(ROWS), None, group.device)
    for micro in plan_step(DataPlan(5, ROWS, total, max_local), 0, batch, rank, world).micro:
        gradients.expect(micro)
        x, y = reader.read(micro.indices)
        gradients.backward(nn.functional.mse_loss(gradients.wrapped(x), y), micro)
    local = gradients.finish()
    losses = group.gather_vectors([local.loss])
    if rank == 0:
        torch.save(
            {"grads": [p.grad for p in model.parameters()], "loss": sum(row[0] for row in losses)}, f"{folder}/out"
        )
    gradients.close()
    group.close()
    return 0


@pytest.mark.parametrize(
    ("world", "batch", "max_local", "total"),
    [
        (1, 30, None, 999),
        (1, 30, 7, 999),  # accumulation, ragged
        (2, 30, None, 999),
        (3, 31, 4, 999),  # ranks with different numbers of micro-batches
        (4, 30, 5, 999),
        (4, 4, None, 999),
        (4, 16, None, 3),  # the job's last batch: one rank has nothing
    ],
)
def test_gradient_and_loss_equal_the_full_batch(tmp_path, world, batch, max_local, total):
    processes = [
        forked.start(one_step, str(tmp_path), rank, world, batch, max_local, total, log=tmp_path / f"log{rank}")
        for rank in range(world)
    ]
    assert forked.join(processes) == [0] * world, [path.read_text() for path in tmp_path.glob("log*")]
    found = torch.load(tmp_path / "out")

    torch.manual_seed(3)
    model = network(dropout=0.0)
    rows = torch.from_numpy(batch_indices(5, ROWS, 0, min(batch, total)))
    x, y = (tensor[rows] for tensor in data(ROWS).tensors)
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    assert found["loss"] == pytest.approx(loss.item(), rel=1e-5)
    for mine, parameter in zip(found["grads"], model.parameters(), strict=True):
        torch.testing.assert_close(mine, parameter.grad, rtol=2e-4, atol=1e-6)
