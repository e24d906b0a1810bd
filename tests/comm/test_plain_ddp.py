"""The exchanges in plain torch: the page's example as it stands, and the mean over ranks as under DDP itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from elastic_core.comm import attach
from elastic_core.comm.algorithms import NAMES, averages, create, leaves_layers_out, steps_weights
from elastic_core.errors import UserError
from tests.comm import ranks
from tests.effort import sample

PROJECT = Path(__file__).parents[2]
OF_GRADIENTS = [name for name in NAMES if not averages(name)]
PAGE = PROJECT / "docs" / "guide" / "exchanges.md"


@pytest.mark.nightly
@pytest.mark.parametrize("name", sample(["onebit_adam", "bytegrad"], "bytegrad"))
def test_the_example_of_the_guide_runs_under_torchrun(tmp_path, name):
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "train.py").write_text(example.replace('"onebit_adam"', f'"{name}"'))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "train.py"]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    first, second = (torch.load(tmp_path / f"checkpoint-{rank}.pt") for rank in range(2))
    assert all(torch.equal(value, second["model"][key]) for key, value in first["model"].items())
    assert bool(first["exchange"]) == (name == "onebit_adam")
    x = torch.randn(500, 16, generator=torch.Generator().manual_seed(1))
    model = nn.Sequential(nn.Linear(16, 256), nn.Tanh(), nn.Linear(256, 1))
    model.load_state_dict(first["model"])
    assert float(nn.functional.mse_loss(model(x), x[:, :1]).detach()) < 0.2


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.even, self.odd = nn.Linear(20, 300), nn.Linear(300, 1), nn.Linear(300, 1)

    def forward(self, x: Tensor, odd: bool) -> Tensor:
        out: Tensor = (self.odd if odd else self.even)(torch.tanh(self.first(x)))
        return out


def trained(name: str, how: str, steps: int) -> dict[str, Tensor]:
    """By DDP itself, with an exchange attached, or by its sum of losses over the number of ranks. Accumulated, and of
    two branches a rank uses one."""
    torch.manual_seed(4)
    model = DistributedDataParallel(Branches(), find_unused_parameters=True)
    of_momenta = steps_weights(name)
    adam = torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=0.3)  # without decay any factor is the same to it
    optimizer = adam if of_momenta else torch.optim.SGD(model.parameters(), lr=0.003)
    exchange = None
    if how == "attached":
        exchange = attach(model, optimizer, name, warmup_steps=4)
    elif how == "sum":
        exchange = create(name, torch.device("cpu"), dist.new_group(), warmup_steps=4)
        exchange.attach(model)
        exchange.follow(optimizer)
    rank, share = dist.get_rank(), 1 / dist.get_world_size() if how == "sum" else 1.0
    for step in range(steps):
        for micro in range(2):
            x = torch.randn(32, 20, generator=torch.Generator().manual_seed(100 * step + 10 * micro + rank))
            with model.no_sync() if micro == 0 else nullcontext():
                (share * (model(x, odd=rank == 1) - x[:, :1]).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
    if exchange is not None:
        exchange.close()
    return {key: value.clone() for key, value in model.module.state_dict().items()}


def distance(some: dict[str, Tensor], others: dict[str, Tensor]) -> float:
    """Of whole models: of a parameter with one element a few signs tell little."""
    return sum(float((value - others[key]).square().sum()) for key, value in some.items()) ** 0.5


def as_ddp(rank: int, world: int, name: str) -> None:
    start = trained(name, "ddp", 0)
    for steps in (4, 12):
        want, got = trained(name, "ddp", steps), trained(name, "attached", steps)
        exact = name == "allreduce" or (steps_weights(name) and steps == 4)
        if exact:
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-6)
        apart, moved = distance(got, want), distance(want, start)
        assert moved > 0
        assert apart < (0.4 if steps_weights(name) else 0.1) * moved, (steps, apart, moved)


@pytest.mark.parametrize("name", [name for name in OF_GRADIENTS if not leaves_layers_out(name)])
def test_ranks_learn_from_the_mean_of_their_gradients_as_under_ddp_itself(tmp_path, name):
    """Of the sum SGD would be twice as far, and beside it Adam's decay half as large."""
    ranks.run(as_ddp, tmp_path, 2, name)


def as_the_sum(rank: int, world: int, name: str) -> None:
    mean, summed = trained(name, "attached", 12), trained(name, "sum", 12)
    assert all(torch.equal(value, summed[key]) for key, value in mean.items())


@pytest.mark.parametrize("name", OF_GRADIENTS)
def test_the_mean_is_the_sum_of_shares_bit_for_bit(tmp_path, name):
    """Of two ranks: halves are exact. The sum is what other tests replay."""
    ranks.run(as_the_sum, tmp_path, 2, name)


def what_cannot_be(rank: int, world: int) -> None:
    plain = nn.Linear(3, 3)
    with pytest.raises(UserError, match="the model is a Linear: wrap it first"):
        attach(plain, torch.optim.Adam(plain.parameters()), "qadam")
    model = DistributedDataParallel(plain)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(UserError, match="warmup_steps is 0; allowed is 1 and more"):
        attach(model, optimizer, "qadam", warmup_steps=0)
    with pytest.raises(UserError, match="no communication algorithm 'ring'"):
        attach(model, optimizer, "ring")
    with pytest.raises(UserError, match=r"'local_sgd' averages weights, .* attach LocalSgd of"):
        attach(model, optimizer, "local_sgd")
    with pytest.raises(
        UserError, match=r"'auto' chooses by the times of steps, .* Name one of allreduce, fp16, bf16, "
    ):
        attach(model, optimizer, "auto")
    with pytest.raises(UserError, match="the optimizer is SGD; allowed are"):
        attach(model, optimizer, "qadam")


def test_what_cannot_be_attached_is_refused_in_words(tmp_path):
    ranks.run(what_cannot_be, tmp_path, 2)
