"""However a batch is split, the gradient is that of the mean loss over the whole batch."""

from __future__ import annotations

import gc
import json
import time
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from elastic_core.comm.algorithm import Exchange
from elastic_core.comm.algorithms import NAMES, averages
from elastic_core.comm.hooked import HookedAlgorithm
from elastic_core.domain import AUTO
from elastic_core.host.rundir import RunDir
from elastic_core.state.order.sample_order import batch_indices
from elastic_core.train.data.batches import DataPlan, Reader, plan_step
from elastic_core.train.data.fixed_parts import part_size
from elastic_core.train.gradients.gradients import Gradients
from elastic_core.train.parallel.group import Group
from tests.train import forked
from tests.train.tasks import data, network

ROWS = 64
COUNTS = (1, 2, 3, 4)  # of workers
EXCHANGES = (AUTO, *(name for name in NAMES if not averages(name)))  # of gradients


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


@pytest.mark.sampled(3)
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


def one_measured_step(folder: str, rank: int, world: int, batch: int, max_local: int | None) -> int:
    group = Group.form(RunDir(Path(folder)), rank, world, torch.device("cpu"))
    torch.manual_seed(3)
    model = network(dropout=0.0)
    gradients = Gradients(model, group, "allreduce", fixed_parts=True)
    reader = Reader(data(ROWS), None, group.device)
    found = []
    for step in range(3):  # DDP lays out its buckets anew after the first
        plan = DataPlan(5, ROWS, 10**6, max_local)
        for micro in plan_step(plan, step * batch, batch, rank, world, fixed_parts=COUNTS).micro:
            gradients.expect(micro)
            x, y = reader.read(micro.indices)
            gradients.backward(nn.functional.mse_loss(gradients.wrapped(x), y), micro)
        local = gradients.finish()
        assert local.part is None
        assert local.micro_parts == ()
        found.append([sum(column) for column in zip(*group.gather_vectors(local.fixed_parts), strict=True)])
        found[-1].append(gradients.sqr_norm())
        model.zero_grad(set_to_none=True)
    if rank == 0:
        torch.save(found, f"{folder}/out")
    gradients.close()
    group.close()
    return 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("world", "max_local"), [(1, None), (1, 3), (2, None), (3, None), (3, 2), (4, None)])
def test_norms_of_the_fixed_parts_are_those_of_their_own_mean_gradients(tmp_path, world, max_local):
    batch = 30
    processes = [
        forked.start(one_measured_step, str(tmp_path), rank, world, batch, max_local, log=tmp_path / f"log{rank}")
        for rank in range(world)
    ]
    assert forked.join(processes) == [0] * world, [path.read_text() for path in tmp_path.glob("log*")]
    found = torch.load(tmp_path / "out")

    size = part_size(batch, COUNTS)
    for step in range(3):
        rows = batch_indices(5, ROWS, step * batch, batch)
        for measured, part in zip(found[step], (rows[:size], rows[-size:], rows), strict=True):
            torch.manual_seed(3)
            model = network(dropout=0.0)
            x, y = (tensor[torch.from_numpy(part)] for tensor in data(ROWS).tensors)
            nn.functional.mse_loss(model(x), y).backward()
            assert measured == pytest.approx(
                sum(float(p.grad.double().square().sum()) for p in model.parameters()), rel=1e-4
            )


class _Branches(nn.Module):
    """Each rank uses another branch at each step."""

    def __init__(self) -> None:
        super().__init__()
        self.common = nn.Linear(12, 160)
        self.branches = nn.ModuleList(nn.Linear(160, 160) for _ in range(3))

    def forward(self, x: torch.Tensor, which: int) -> torch.Tensor:
        return self.branches[which % 3](self.common(x)).mean(1, keepdim=True)


def steps_with_unused_parameters(folder: str, rank: int, world: int) -> int:
    group = Group.form(RunDir(Path(folder)), rank, world, torch.device("cpu"))
    torch.manual_seed(3)
    gradients = Gradients(_Branches(), group, "allreduce", find_unused_parameters=True)
    reader, plan = Reader(data(ROWS), None, group.device), DataPlan(5, ROWS, 10_000, None)
    for step in range(30):
        for micro in plan_step(plan, 30 * step, 30, rank, world).micro:
            gradients.expect(micro)
            x, y = reader.read(micro.indices)
            gradients.backward(nn.functional.mse_loss(gradients.wrapped(x, rank + step), y), micro)
        gradients.finish()
        norms = group.gather_vectors([gradients.sqr_norm()])
        assert norms[0][0] > 0
        assert norms == [norms[0]] * world, step
        for parameter in gradients.parameters:
            parameter.grad = None
    gradients.close()
    group.close()
    return 0


def test_what_ddp_exchanges_of_unused_parameters_does_not_meet_the_gradients(tmp_path):
    processes = [
        forked.start(steps_with_unused_parameters, str(tmp_path), rank, 3, log=tmp_path / f"log{rank}")
        for rank in range(3)
    ]
    assert forked.join(processes, 30.0) == [0, 0, 0], [path.read_text() for path in tmp_path.glob("log*")]


class _Shared(torch.autograd.Function):
    """A user's layer whose backward is collective, as that of SyncBatchNorm is."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor) -> torch.Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.clone()
        dist.all_reduce(gradient)
        return gradient


class _Collective(nn.Module):
    """Two buckets of gradients, and a collective of its own between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 600), nn.Linear(600, 600)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(_Shared.apply(self.first(x))).square().mean()


def steps_with_a_collective_of_the_models(folder: str, rank: int, world: int, comm: str) -> int:
    """The last rank's exchange thread is always behind, so that its model's collective comes first there."""
    if rank == world - 1:
        HookedAlgorithm._await = lambda *_: time.sleep(0.1)
    group = Group.form(RunDir(Path(folder)), rank, world, torch.device("cpu"))
    torch.manual_seed(3)
    model = _Collective()
    optimizer = torch.optim.Adam(model.parameters())
    gradients = Gradients(model, group, comm, optimizer=optimizer)
    for step in range(3):
        micro = plan_step(DataPlan(5, ROWS, 10_000, None), 8 * step, 8, rank, world).micro[0]
        gradients.expect(micro)
        gradients.backward(gradients.wrapped(torch.full((4, 8), 1.0 + step)), micro)
        gradients.finish()
        optimizer.step()
        optimizer.zero_grad()
    weights = group.gather_vectors([float(model.first.weight.double().sum())])
    assert weights[0] == weights[1]
    gradients.close()
    group.close()
    return 0


@pytest.mark.parametrize("comm", ["allreduce", "powersgd", "onebit_adam"])
def test_collectives_of_the_model_itself_do_not_meet_those_of_the_exchange(tmp_path, comm):
    processes = [
        forked.start(steps_with_a_collective_of_the_models, str(tmp_path), rank, 2, comm, log=tmp_path / f"log{rank}")
        for rank in range(2)
    ]
    assert forked.join(processes, 30.0) == [0, 0], [path.read_text() for path in tmp_path.glob("log*")]


def a_step_of_momenta(folder: str, rank: int, world: int) -> int:
    """The second step's gradients: the variance is frozen after the first."""
    group = Group.form(RunDir(Path(folder)), rank, world, torch.device("cpu"))
    torch.manual_seed(3)
    model = network(dropout=0.0)
    optimizer = torch.optim.Adam(model.parameters())
    gradients = Gradients(model, group, "onebit_adam", optimizer=optimizer, warmup_steps=1)
    reader, plan = Reader(data(ROWS), None, group.device), DataPlan(5, ROWS, 10_000, None)
    for step in range(2):
        optimizer.zero_grad()
        for micro in plan_step(plan, 30 * step, 30, rank, world).micro:
            gradients.expect(micro)
            x, y = reader.read(micro.indices)
            gradients.backward(nn.functional.mse_loss(gradients.wrapped(x), y), micro)
        local = gradients.finish()
        if step == 0:
            assert local.part is not None
            optimizer.step()
    assert local.part is None, "what is exchanged is no gradient, and tells no noise"
    own = sum(float(parameter.grad.double().square().sum()) for parameter in model.parameters())
    assert gradients.sqr_norm() == pytest.approx(world**2 * own)
    assert group.gather_vectors([own])[0] != group.gather_vectors([own])[1], "each rank has its own"
    gradients.clip(0.5, gradients.sqr_norm())
    assert gradients.sqr_norm() == pytest.approx(0.25, rel=1e-3)
    optimizer.step()
    assert gradients.comm.take_wait_seconds() > 0
    gradients.close()
    group.close()
    return 0


def test_where_the_step_exchanges_each_rank_clips_its_own_gradient_as_if_all_had_it(tmp_path):
    processes = [
        forked.start(a_step_of_momenta, str(tmp_path), rank, 2, log=tmp_path / f"log{rank}") for rank in range(2)
    ]
    assert forked.join(processes) == [0, 0], [path.read_text() for path in tmp_path.glob("log*")]


def closed_one_after_another(folder: str, rank: int, world: int) -> int:
    group = Group.form(RunDir(Path(folder)), rank, world, torch.device("cpu"))
    left = [name for name in EXCHANGES if of_closed_gradients(name, group) is not None]
    (Path(folder) / f"left{rank}").write_text(json.dumps(left))
    group.close()
    return 0


def of_closed_gradients(name: str, group: Group) -> Exchange | None:
    """What an exchange has left of itself after two steps: DDP's buckets live as long as it does."""
    model = network(dropout=0.0)
    optimizer = torch.optim.Adam(model.parameters())
    gradients = Gradients(model, group, name, optimizer=optimizer)
    reader = Reader(data(ROWS), None, group.device)
    for step in range(2):
        for micro in plan_step(DataPlan(5, ROWS, 999, None), step * 30, 30, group.rank, group.world).micro:
            gradients.expect(micro)
            x, y = reader.read(micro.indices)
            gradients.backward(nn.functional.mse_loss(gradients.wrapped(x), y), micro)
        gradients.finish()
        optimizer.step()
        optimizer.zero_grad()
    assert gradients.comm is not None
    gradients.close()
    exchange = weakref.ref(gradients.comm)
    del gradients, model, optimizer
    until_gone(exchange)
    return exchange()


def until_gone(exchange: weakref.ref[Exchange], seconds: float = 10.0) -> None:
    """Or until it is clear that it stays: the backend's thread has told of its last sum before it lets go of it."""
    deadline = time.monotonic() + seconds
    gc.collect()
    while exchange() is not None and time.monotonic() < deadline:
        time.sleep(0.01)
        gc.collect()


def test_of_closed_gradients_nothing_is_left(tmp_path):
    """DDP's reducer holds what exchanges its buckets where Python's collector does not look."""
    processes = [
        forked.start(closed_one_after_another, str(tmp_path), rank, 2, log=tmp_path / f"log{rank}") for rank in (0, 1)
    ]
    assert forked.join(processes) == [0, 0], [path.read_text() for path in tmp_path.glob("log*")]
    assert [json.loads((tmp_path / f"left{rank}").read_text()) for rank in (0, 1)] == [[], []]
