"""Gradients that stay with their rank: in the mean over ranks every sample weighs the same."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from elastic_core.host.rundir import RunDir
from elastic_core.state.order.sample_order import batch_indices
from elastic_core.train.data.batches import DataPlan, Reader, plan_step
from elastic_core.train.gradients.local_steps import LocalSteps
from elastic_core.train.parallel.group import Group
from tests.train import forked
from tests.train.tasks import data, network

ROWS = 64


class WithUnused(nn.Module):
    """A part that no sample uses, and one that does not learn."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused, self.frozen = network(dropout=0.0), nn.Linear(3, 3), nn.Linear(3, 3)
        self.frozen.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.used(x)
        return out


def local_gradients(folder: str, rank: int, world: int, batch: int, max_local: int | None, total: int) -> int:
    group = Group.form(RunDir(Path(folder)), rank, world, torch.device("cpu"))
    torch.manual_seed(3)
    model = WithUnused()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    gradients = LocalSteps(model, optimizer, group, "local_sgd", 1)
    gradients.measure_norms = gradients.of_whole_batch
    assert gradients.of_whole_batch == (world == 1)
    reader = Reader(data(ROWS), None, group.device)
    for micro in plan_step(DataPlan(5, ROWS, total, max_local), 0, batch, rank, world).micro:
        gradients.expect(micro)
        x, y = reader.read(micro.indices)
        gradients.backward(nn.functional.mse_loss(gradients.wrapped(x), y), micro)
    local = gradients.finish()
    assert local.part is None
    assert bool(local.micro_parts) == (world == 1 and max_local is not None)
    assert all(parameter.grad is not None for parameter in gradients.parameters)
    assert not model.unused.weight.grad.any()
    assert model.frozen.weight.grad is None
    torch.save([p.grad for p in model.used.parameters()], f"{folder}/gradients{rank}")
    optimizer.step()  # averages
    torch.save([p.detach() for p in model.used.parameters()], f"{folder}/weights{rank}")
    losses = group.gather_vectors([local.loss])
    torch.save(sum(row[0] for row in losses), f"{folder}/loss")
    gradients.close()
    group.close()
    return 0


@pytest.mark.parametrize(
    ("world", "batch", "max_local", "total"),
    [(1, 30, 7, 999), (2, 30, None, 999), (3, 31, 4, 999), (4, 16, None, 3)],  # the last: one rank has nothing
)
def test_the_mean_of_the_ranks_steps_is_the_step_of_the_whole_batch(tmp_path, world, batch, max_local, total):
    processes = [
        forked.start(local_gradients, str(tmp_path), rank, world, batch, max_local, total, log=tmp_path / f"log{rank}")
        for rank in range(world)
    ]
    assert forked.join(processes) == [0] * world, [path.read_text() for path in tmp_path.glob("log*")]
    torch.manual_seed(3)
    model = WithUnused().used
    rows = torch.from_numpy(batch_indices(5, ROWS, 0, min(batch, total)))
    x, y = (tensor[rows] for tensor in data(ROWS).tensors)
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    assert torch.load(tmp_path / "loss") == pytest.approx(loss.item(), rel=1e-5)
    by_rank = [torch.load(tmp_path / f"gradients{rank}") for rank in range(world)]
    for parameter, *mine in zip(model.parameters(), *by_rank, strict=True):
        torch.testing.assert_close(sum(mine) / world, parameter.grad, rtol=2e-4, atol=1e-6)
    if total < world:
        assert not any(gradient.any() for gradient in by_rank[-1]), "a rank without a share steps with zeros"
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    for rank in range(world):
        for got, want in zip(torch.load(tmp_path / f"weights{rank}"), model.parameters(), strict=True):
            torch.testing.assert_close(got, want.detach(), rtol=2e-4, atol=1e-6)
