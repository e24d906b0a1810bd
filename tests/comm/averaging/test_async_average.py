"""Averages beside training: they change no mean over ranks, and ranks agree on where they stop and go on."""

from __future__ import annotations

import time

import pytest
import torch
import torch.distributed as dist
from torch import nn

from elastic_core.comm.averaging.async_average import AsyncAverage
from tests.comm import ranks
from tests.comm.averaging.training import algorithm

SIZE = 1000


class Drifting:
    """Weights that each rank moves by a gradient of its own, always the same."""

    def __init__(self, rank: int, interval: int) -> None:
        self.model = nn.Linear(SIZE, 1, bias=False)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        averaging = algorithm("async_average", interval)
        assert isinstance(averaging, AsyncAverage)
        self.averaging, self.rank = averaging, rank
        averaging.attach(self.model, self.optimizer)

    @property
    def weights(self) -> torch.Tensor:
        return self.model.weight.detach().clone()

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.model.weight.grad = gradient(self.rank)
            self.optimizer.step()


def gradient(rank: int) -> torch.Tensor:
    return torch.randn(1, SIZE, generator=torch.Generator().manual_seed(rank))


def keeps_the_mean(rank: int, world: int) -> None:
    drifting = Drifting(rank, 2)
    began, mean = drifting.weights, sum(gradient(other) for other in range(world)) / world
    taken = 0
    for stretch in (1, 2, 7, 20, 3, 40):
        for _ in range(stretch):
            drifting.steps(1)
            time.sleep(0.001 * rank)  # ranks are not in step: rounds begin and are refused in any order
        taken += stretch
        drifting.averaging.settle()
        torch.testing.assert_close(drifting.weights, began - 0.01 * taken * mean, rtol=1e-4, atol=1e-5)
        first = drifting.weights
        dist.broadcast(first, 0)
        assert torch.equal(first, drifting.weights), "settled ranks agree"
    drifting.steps(5)
    drifting.averaging.close()  # with a round under way


@pytest.mark.nightly
def test_the_mean_over_ranks_is_that_of_their_own_steps_however_rounds_fall(tmp_path):
    ranks.run(keeps_the_mean, tmp_path, 3)


def waits_for_nobody(rank: int, world: int) -> None:
    drifting = Drifting(rank, 1)
    began, drift = drifting.weights, 0.01 * gradient(rank)
    if rank == 0:
        drifting.steps(3)  # its first round needs the other rank, which has not begun
        assert drifting.averaging._thread.under_way
        torch.testing.assert_close(drifting.weights, began - 3 * drift)
    dist.barrier()
    if rank == 1:
        drifting.steps(1)
    while not drifting.averaging._thread.done:
        time.sleep(0.001)
    before = drifting.weights
    torch.testing.assert_close(before, began - (3 if rank == 0 else 1) * drift)
    dist.barrier()
    drifting.steps(1)
    apart = 0.01 * (gradient(1 - rank) - gradient(rank)) / 2  # of the copies after one step each
    torch.testing.assert_close(drifting.weights, before - drift - apart)
    drifting.averaging.settle()
    drifting.averaging.close()


def test_training_goes_on_during_a_round_and_gets_its_difference_between_steps(tmp_path):
    ranks.run(waits_for_nobody, tmp_path, 2)


def refused_early(rank: int, world: int) -> None:
    """Rank 1 settles before rank 0, which has a round under way and takes further steps."""
    drifting = Drifting(rank, 1)
    if rank == 1:
        drifting.averaging.settle()  # nothing yet: no step was taken
        drifting.steps(1)
        drifting.averaging.settle()
    else:
        drifting.steps(1)
        for _ in range(5):
            time.sleep(0.02)
            drifting.steps(1)
        drifting.averaging.settle()
    first = drifting.weights
    dist.broadcast(first, 0)
    assert torch.equal(first, drifting.weights)
    drifting.steps(3)
    drifting.averaging.settle()
    drifting.averaging.close()


def test_who_hears_of_a_refusal_before_it_settles_begins_no_round_of_its_own(tmp_path):
    ranks.run(refused_early, tmp_path, 2)
