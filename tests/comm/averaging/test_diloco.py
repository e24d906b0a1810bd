"""DiLoCo's outer optimizer: the same on all ranks, for any number of them, from fragments that take turns."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from elastic_core.comm.averaging.diloco import FRAGMENTS, DiLoCo, fragments
from tests.comm import plain, ranks
from tests.comm.averaging.training import algorithm, gradients, net, optimizer_of, replayed, trained


@given(st.lists(st.integers(0, 10**9), max_size=30), st.integers(1, 8))
def test_fragments_hold_every_parameter_once_in_order_and_none_is_empty(sizes: list[int], count: int) -> None:
    names = [str(i) for i in range(len(sizes))]
    found = fragments(dict(zip(names, sizes, strict=True)), count)
    assert [name for fragment in found for name in fragment] == names
    assert len(found) <= count
    assert all(found)
    largest = max(sizes, default=0)
    for fragment in found:
        assert sum(sizes[int(name)] for name in fragment) <= sum(sizes) / count + largest


def one_rank(rank: int, world: int) -> None:
    """Alone it is its outer optimizer over its inner one, without a loss by bytes: as replayed with torch's SGD."""
    group = [dist.new_group([other]) for other in range(world)][rank]
    model = net()
    optimizer, averaging = optimizer_of(model), DiLoCo(group, 3)
    averaging.attach(model, optimizer)
    for step in range(1, 8):
        gradients(model, step, 0)
        optimizer.step()
    (want,) = replayed(lambda models: plain.DiLoCo(models, 3), 1, 7, ())[-1]
    assert all(torch.equal(value, want[key]) for key, value in model.state_dict().items())
    averaging.close()


def test_a_group_of_one_has_its_outer_optimizer_too(tmp_path):
    ranks.run(one_rank, tmp_path, 2)


def fragments_take_turns(rank: int, world: int) -> None:
    """Between turns ranks differ; at its turn a fragment is alike, and the others stay apart."""
    weights, averaging = trained("diloco", rank, 8, 4, ())
    assert isinstance(averaging, DiLoCo)
    assert len(averaging._fragments) in (2, 3, FRAGMENTS)
    turns = [i * 4 // len(averaging._fragments) for i in range(1, len(averaging._fragments) + 1)]
    for step, after in enumerate(weights, 1):
        for turn, names in zip(turns, averaging._fragments, strict=True):
            for name in names:
                first = after[name].clone()
                dist.broadcast(first, 0)
                alike = rank == 0 or torch.equal(first, after[name])
                assert rank == 0 or alike == ((step - turn) % 4 == 0), (step, name)
    averaging.close()


def test_every_fragment_has_its_turn_once_an_interval(tmp_path):
    ranks.run(fragments_take_turns, tmp_path, 2)


def resized(rank: int, world: int) -> None:
    """What two ranks keep goes to three: with anchors and momenta the same, and the interval where it was."""
    pair = dist.new_group([0, 1])
    kept: dict[str, torch.Tensor] = {}
    model = net()
    if rank < 2:
        optimizer, averaging = optimizer_of(model), DiLoCo(pair, 4)
        averaging.attach(model, optimizer)
        for step in range(1, 7):
            gradients(model, step, rank)
            optimizer.step()
        averaging.settle()
        kept = {key: value.clone() for key, value in averaging.state_dict().items()}
        averaging.close()
    after = net()
    optimizer, averaging = optimizer_of(after), algorithm("diloco", 4)
    assert isinstance(averaging, DiLoCo)
    with torch.no_grad():
        for own, settled in zip(after.parameters(), model.parameters(), strict=True):
            own.copy_(settled)
    averaging.attach(after, optimizer)
    shapes = {key: value.shape for key, value in averaging.state_dict().items()}
    state = {key: kept.get(key, torch.zeros(shape)) for key, shape in shapes.items()}
    for key in sorted(state):
        state[key] = state[key].float()
        dist.broadcast(state[key], 0)
    averaging.load_state_dict(state)
    assert int(averaging.state_dict()["steps"]) == 6
    momenta = [value for key, value in averaging.state_dict().items() if key.startswith("momentum/")]
    assert all(bool((value != 0).any()) for value in momenta)
    for step in range(7, 9):
        gradients(after, step, rank)
        optimizer.step()
    last = averaging._fragments[-1]
    for name in last:
        first = dict(after.named_parameters())[name].detach().clone()
        dist.broadcast(first, 0)
        assert torch.equal(first, dict(after.named_parameters())[name].detach()), "its turn is at step 8"
    averaging.close()


def test_the_outer_optimizer_survives_a_resize(tmp_path):
    ranks.run(resized, tmp_path, 3)


def a_bowl(rank: int, world: int) -> None:
    """Each rank's own minimum is elsewhere: the outer optimizer finds that of their mean."""
    model = nn.Linear(50, 1, bias=False)
    optimizer, averaging = torch.optim.SGD(model.parameters(), lr=0.02), algorithm("diloco", 4)
    averaging.attach(model, optimizer)
    targets = [torch.randn(1, 50, generator=torch.Generator().manual_seed(other)) for other in range(world)]
    for _ in range(400):
        model.weight.grad = model.weight.detach() - targets[rank]
        optimizer.step()
    averaging.settle()
    torch.testing.assert_close(model.weight.detach(), sum(targets) / world, rtol=0, atol=0.02)
    averaging.close()


@pytest.mark.parametrize("world", [2, 3])
def test_it_finds_the_minimum_of_all_ranks_losses(tmp_path, world):
    ranks.run(a_bowl, tmp_path, world)
