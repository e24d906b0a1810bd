"""Averages with peers: who meets whom, what is preserved, and what of it each knows of the others."""

from __future__ import annotations

import itertools

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from elastic_core.comm.averaging.decentralized import peer_of
from elastic_core.comm.averaging.low_precision import LowPrecisionDecentralized
from tests.comm import ranks
from tests.comm.averaging.training import algorithm, gradients, net, optimizer_of


@given(st.integers(1, 40), st.integers(0, 10**6))
def test_a_step_s_pairs_are_mutual_and_at_most_one_rank_of_an_odd_world_rests(world: int, step: int) -> None:
    peers = [peer_of(rank, step, world) for rank in range(world)]
    assert [peers[peer] for peer in peers] == list(range(world))
    assert sum(peer == rank for rank, peer in enumerate(peers)) == world % 2


@pytest.mark.parametrize("world", [2, 3, 4, 5, 6, 9])
def test_in_as_many_steps_as_ranks_everybody_is_met_by_whom_the_schedule_says(world: int) -> None:
    met = {frozenset((rank, peer_of(rank, step, world))) for rank in range(world) for step in range(world)}
    pairs = {frozenset(pair) for pair in itertools.combinations(range(world), 2) if world % 2 or sum(pair) % 2}
    assert {pair for pair in met if len(pair) == 2} == pairs


def comes_together(rank: int, world: int, name: str) -> None:
    """From weights that are apart, by steps without gradients."""
    model = nn.Linear(200, 5)
    optimizer, averaging = torch.optim.SGD(model.parameters(), lr=1.0), algorithm(name)
    averaging.attach(model, optimizer)

    def step(gradient: torch.Tensor | None) -> torch.Tensor:
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter) if gradient is None else gradient.expand_as(parameter).clone()
        optimizer.step()
        return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])

    began = step(None)
    own = step(torch.randn(1, generator=torch.Generator().manual_seed(rank)))
    spread = [distance(own)]
    for _ in range(40):
        spread.append(distance(step(None)))
    mean = began - sum(torch.randn(1, generator=torch.Generator().manual_seed(r)) for r in range(world)) / world
    assert spread[0] > 0.1
    assert spread[-1] < 0.02 * spread[0], spread
    torch.testing.assert_close(step(None), mean, rtol=0, atol=0.02)
    averaging.settle()
    averaging.close()


def distance(weights: torch.Tensor) -> float:
    """The greatest from any rank's to the first's."""
    first = weights.clone()
    dist.broadcast(first, 0)
    greatest = (weights - first).abs().max()
    dist.all_reduce(greatest, dist.ReduceOp.MAX)
    return float(greatest)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("world", [3, 4])
@pytest.mark.parametrize("name", ["decentralized", "decentralized_all", "low_precision_decentralized"])
def test_without_gradients_ranks_come_together_at_the_mean(tmp_path, name, world):
    ranks.run(comes_together, tmp_path, world, name)


def replicas(rank: int, world: int) -> None:
    model = net()
    optimizer, averaging = optimizer_of(model), algorithm("low_precision_decentralized")
    assert isinstance(averaging, LowPrecisionDecentralized)
    averaging.attach(model, optimizer)
    for step in range(1, 7):
        gradients(model, step, rank)
        optimizer.step()
        weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
        by_rank = torch.empty(world, weights.numel())
        dist.all_gather_single(by_rank.view(-1), weights)
        assert torch.equal(averaging._own, weights)
        assert set(averaging._theirs) == {(rank - 1) % world, (rank + 1) % world}
        for neighbour, replica in averaging._theirs.items():
            assert torch.equal(replica, by_rank[neighbour]), (step, neighbour)
        assert not torch.equal(by_rank[0], by_rank[1]), "ranks differ between averages"
    averaging.close()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("world", [2, 3, 4])
def test_what_a_rank_keeps_of_its_neighbours_in_the_ring_is_what_they_hold_bit_for_bit(tmp_path, world):
    ranks.run(replicas, tmp_path, world)


def gradients_meanwhile(rank: int, world: int) -> None:
    """The exchange goes on while gradients are computed: of the weights before it."""
    model = nn.Linear(3, 1, bias=False)
    optimizer, averaging = torch.optim.SGD(model.parameters(), lr=0.1), algorithm("decentralized")
    averaging.attach(model, optimizer)
    model.weight.grad = torch.full((1, 3), float(rank))
    before = model.weight.detach().clone()
    optimizer.step()
    assert torch.equal(model.weight, before - 0.1 * rank), "nothing is waited for after a step"
    model.weight.grad = torch.zeros(1, 3)
    optimizer.step()
    torch.testing.assert_close(model.weight.detach(), before - 0.1 * 0.5)
    averaging.close()


def test_the_peer_s_weights_are_waited_for_before_the_next_step_only(tmp_path):
    ranks.run(gradients_meanwhile, tmp_path, 2)
