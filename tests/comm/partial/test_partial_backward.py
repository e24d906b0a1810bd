"""Ranks that propagate back through a part of the layers: gradients are the means over those that computed them, and
what was not computed was neither computed nor sent."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from elastic_core.comm import attach
from elastic_core.comm.algorithms import create
from elastic_core.comm.partial.layer_groups import backward_share, computing, groups_of
from elastic_core.comm.partial.partial_backward import PartialBackward
from elastic_core.comm.tuning.received_bytes import received_bytes
from elastic_core.errors import UserError
from tests.comm import plain, ranks

CPU = torch.device("cpu")
STEPS, MICRO, CUT = 7, 2, 3
WIDTHS = (40, 96, 64, 64, 32, 1)
SIZES = [(inputs + 1) * outputs for inputs, outputs in pairwise(WIDTHS)]


def net() -> nn.Sequential:
    torch.manual_seed(5)
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(WIDTHS):
        layers += [nn.Linear(inputs, outputs), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def loss_of(model: nn.Module, step: int, micro: int, rank: int, world: int) -> Tensor:
    """One micro-batch's share of the mean loss over the global batch of the step."""
    x = torch.randn(8, 40, generator=torch.Generator().manual_seed(1000 * step + 10 * micro + rank))
    return (model(x) - x[:, :1]).square().mean() / (world * MICRO)


class Training:
    """Real DDP with accumulation and small buckets."""

    def __init__(self) -> None:
        self.model = net()
        self.ddp = DistributedDataParallel(
            self.model, gradient_as_bucket_view=True, find_unused_parameters=True, bucket_cap_mb=0.01
        )
        self.exchange = PartialBackward(dist.new_group())
        self.exchange.attach(self.ddp)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)

    def step(self, step: int) -> None:
        for micro in range(MICRO):
            self.ddp.require_backward_grad_sync = micro == MICRO - 1
            loss_of(self.ddp, step, micro, dist.get_rank(), dist.get_world_size()).backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def replayed(world: int) -> dict[str, Tensor]:
    """The same training in one process, every rank's whole gradient computed, and what is not its turn thrown away."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    of_layer = plain.depths(world, SIZES)
    for step in range(STEPS):
        by_rank = []
        for rank in range(world):
            model.zero_grad(set_to_none=True)
            for micro in range(MICRO):
                loss_of(model, step, micro, rank, world).backward()
            by_rank.append([parameter.grad for parameter in model.parameters()])
        for place, parameter in enumerate(model.parameters()):
            parameter.grad = plain.partial_mean([grads[place] for grads in by_rank], step, of_layer[place // 2])
        optimizer.step()
    return model.state_dict()


def as_replayed(rank: int, world: int) -> None:
    training = Training()
    for step in range(STEPS):
        training.step(step)
    assert all(parameter.requires_grad for parameter in training.model.parameters()), "between steps nothing is left"
    training.exchange.close()
    want, before = replayed(world), net().state_dict()
    for name, value in training.model.state_dict().items():
        assert torch.equal(value, want[name]), name
        assert not torch.equal(value, before[name]), "nothing was learnt"


@pytest.mark.nightly
@pytest.mark.parametrize("world", [2, 3, 4])
def test_training_is_as_replayed_in_one_process_to_the_bit(tmp_path, world):
    ranks.run(as_replayed, tmp_path, world)


def resumed(rank: int, world: int) -> None:
    whole, first = Training(), Training()
    for step in range(STEPS):
        whole.step(step)
    for step in range(CUT):
        first.step(step)
    kept = first.exchange.state_dict()
    again, anew = Training(), Training()
    again.exchange.load_state_dict(kept)
    for training in (again, anew):
        training.model.load_state_dict(first.model.state_dict())
        for step in range(CUT, STEPS):
            training.step(step)
    assert all(torch.equal(v, again.model.state_dict()[k]) for k, v in whole.model.state_dict().items())
    assert not all(torch.equal(v, anew.model.state_dict()[k]) for k, v in whole.model.state_dict().items())
    for training in (whole, first, again, anew):
        training.exchange.close()


def test_with_its_turn_a_resumed_run_computes_the_same_bits(tmp_path):
    ranks.run(resumed, tmp_path, 2)


def stops_early(rank: int, world: int) -> None:
    """Which layers' outputs backward reaches, by what autograd calls."""
    training = Training()
    reached: list[int] = []
    layers = [module for module in training.model if isinstance(module, nn.Linear)]
    for place, layer in enumerate(layers):
        layer.register_full_backward_hook(lambda *_, place=place: reached.append(place))
    of_layer = plain.depths(world, SIZES)
    for step in range(2 * world):
        reached.clear()
        training.step(step)
        at = (rank + step) % world
        assert sorted(set(reached)) == [place for place, depth in enumerate(of_layer) if at >= world - depth]
    training.exchange.close()


def test_backward_stops_where_a_ranks_turn_ends(tmp_path):
    ranks.run(stops_early, tmp_path, 3)


def test_every_group_has_its_share_of_the_ranks_and_every_rank_each_depth():
    for world in range(1, 9):
        for turn in range(2 * world):
            assert [len(computing(group, turn, world)) for group in range(world)] == list(range(world, 0, -1))
        whole = [rank for turn in range(world) for rank in computing(world - 1, turn, world)]
        assert sorted(whole) == list(range(world))


@pytest.mark.parametrize("world", [1, 2, 5])
def test_groups_grow_from_the_last_layer_and_a_bias_is_with_its_weights(world):
    shapes = [parameter.shape for parameter in net().parameters()]
    groups = groups_of(shapes, world)
    assert groups == sorted(groups, reverse=True)
    assert groups[-1] == 0
    assert groups[::2] == groups[1::2]
    assert [world - group for group in groups[::2]] == plain.depths(world, SIZES)
    assert 1 / world <= backward_share(shapes, world) <= 1


def alike(count: int, width: int) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(count)))


def sent(rank: int, world: int) -> None:
    """Bytes that the ranks take off the wire in a step, in the mean over them."""
    model = DistributedDataParallel(alike(world, 300), find_unused_parameters=True, gradient_as_bucket_view=True)
    exchange = PartialBackward(dist.new_group())
    exchange.attach(model)
    values = 300 * 300 * world
    for _ in range(2):
        dist.barrier()
        before = received_bytes()
        model(torch.randn(4, 300)).sum().backward()
        received = torch.tensor([float(received_bytes() - before)])
        dist.all_reduce(received)
        exact = 8 * values * (world - 1) / world
        want = exact * (0.75 if world == 2 else 0.75 + 0.25 / world)  # nobody sends what it has not computed
        assert want <= float(received) / world <= 1.03 * want + 2000, (float(received), want)
        declared = exchange.step_traffic([[p.shape for p in reversed(list(model.parameters()))]], world)
        assert declared[0].sent_bytes == pytest.approx(want)
    exchange.close()


@pytest.mark.parametrize("world", [2, 4])
def test_what_was_not_computed_is_not_sent(tmp_path, world):
    ranks.run(sent, tmp_path, world)


def of_plain_torch(rank: int, world: int) -> None:
    """The mean, as under DDP, over those that computed."""
    model = DistributedDataParallel(alike(2, 8), find_unused_parameters=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    exchange = attach(model, optimizer, "partial_backward")
    x = torch.full((1, 8), 1.0 + rank)
    first, last = (layer.weight.detach().clone() for layer in model.module)
    model(x).sum().backward()
    inputs = [(torch.full((1, 8), 1.0 + other) @ first.T).expand(8, 8) for other in range(2)]
    torch.testing.assert_close(model.module[1].weight.grad, (inputs[0] + inputs[1]) / 2)
    torch.testing.assert_close(model.module[0].weight.grad, 2.0 * last.sum(0)[:, None].expand(8, 8))  # rank 1's alone
    exchange.close()


def test_in_plain_torch_it_is_the_mean_over_those_that_computed(tmp_path):
    ranks.run(of_plain_torch, tmp_path, 2)


class Backwards(nn.Module):
    """Registered in another order than called, and its last layer not called at all."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.spare = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.used(x)
        return out


def refused(rank: int, world: int) -> None:
    with pytest.raises(UserError, match="wrap it with find_unused_parameters=True"):
        create("partial_backward", CPU, dist.new_group()).attach(DistributedDataParallel(alike(2, 8)))
    ddp = DistributedDataParallel(Backwards(), find_unused_parameters=True)
    exchange = create("partial_backward", CPU, dist.new_group())
    exchange.attach(ddp)
    if rank == 0:  # which stops first, at the first step
        with pytest.raises(UserError, match="Register layers in the order in which they are called"):
            ddp(torch.ones(1, 8))
    dist.barrier()


def test_a_model_that_it_cannot_cut_is_refused_in_words(tmp_path):
    ranks.run(refused, tmp_path, 2)
