"""A rank that lives and never joins: the others do not hang, and are told what they waited for."""

from __future__ import annotations

import os
import time
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from elastic_core.comm import attach
from elastic_core.comm.algorithms import averages, averaging_class, create
from elastic_core.comm.silence import RankSilent, explained, in_time
from elastic_core.train.parallel.group import lost_peer
from tests.comm import ranks
from tests.effort import sample

PATIENCE = 3.0


def lives_on() -> None:
    """Until the other must have given up; then ends without a word."""
    time.sleep(2 * PATIENCE + 2)
    os._exit(0)


def waits_in_vain(rank: int, world: int, name: str) -> None:
    """Rank 1 takes one step less than rank 0 expects of it."""
    model = nn.Linear(300, 300)
    group = dist.new_group(backend="gloo", timeout=timedelta(seconds=PATIENCE))
    trained: nn.Module = model
    if averages(name):
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        averaging = averaging_class(name)(group, 1)
        averaging.attach(model, optimizer)
    else:
        trained = DistributedDataParallel(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        exchange = create(name, torch.device("cpu"), group, warmup_steps=1)
        exchange.attach(trained)
        exchange.follow(optimizer)

    def step() -> None:
        trained(torch.randn(4, 300)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(3):  # DDP lays out its buckets after the first, by messages of its own
        step()
    dist.barrier()
    if rank == 1:
        lives_on()
    started = time.monotonic()
    with pytest.raises(RuntimeError, match=f"by {name}: another rank did not take part in time") as raised:
        step()
    assert lost_peer(raised.value), "and so the job's attempt ends as one whose machine failed"
    assert time.monotonic() - started < 2 * PATIENCE + 10
    os._exit(0)


@pytest.mark.parametrize(
    "name", sample(["allreduce", "bytegrad", "onebit_adam", "local_sgd"], "allreduce", "local_sgd")
)
def test_an_exchange_that_a_rank_never_joins_fails_in_time_and_says_so(tmp_path, name):
    ranks.run(waits_in_vain, tmp_path, 2, name)


def attached_waits(rank: int, world: int) -> None:
    model = DistributedDataParallel(nn.Linear(300, 300))
    exchange = attach(model, torch.optim.SGD(model.parameters(), lr=0.1), "bytegrad", patience_seconds=PATIENCE)
    if rank == 1:
        lives_on()
    with pytest.raises(RuntimeError, match="another rank did not take part in time"):
        model(torch.randn(4, 300)).mean().backward()
    assert isinstance(exchange.failure(), RankSilent)
    os._exit(0)


@pytest.mark.nightly
def test_in_plain_torch_it_waits_as_long_as_it_is_told(tmp_path):
    ranks.run(attached_waits, tmp_path, 2)


def test_other_errors_stay_what_they_are():
    other = RuntimeError("Connection closed by peer")
    assert explained(other, "x") is other
    with pytest.raises(KeyError), in_time("x"):
        raise KeyError
