"""What all exchanges of weights promise: they step as their papers' algorithms do, and settle on one model."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.distributed as dist
from torch import nn

from elastic_core.comm.algorithms import averaging_class
from elastic_core.comm.averaging.ordered_mean import average
from elastic_core.comm.tuning.received_bytes import received_bytes
from elastic_core.errors import UserError
from tests.comm import plain, ranks
from tests.comm.averaging.training import algorithm, compare_with_replay, gradients, net, optimizer_of, trained

REPLAYED = tuple(plain.AVERAGING)
ALL = (*REPLAYED, "async_average")


@pytest.mark.sampled(4)
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("name", REPLAYED)
def test_training_is_as_replayed_in_one_process(tmp_path, name, world):
    ranks.run(compare_with_replay, tmp_path, world, name, str(tmp_path))


def settles(rank: int, world: int, name: str) -> None:
    model = net()
    optimizer, averaging = optimizer_of(model), algorithm(name, 3)
    averaging.attach(model, optimizer)
    for step in range(1, 6):
        gradients(model, step, rank)
        optimizer.step()
    assert averaging.take_wait_seconds() > 0
    averaging.settle()
    assert averaging.take_wait_seconds() == 0.0, "it is in no step"
    moments = [value for state in optimizer.state.values() for value in state.values()]
    assert len(moments) == 3 * 6, "Adam's, of six parameters"
    for tensor in (*model.parameters(), *moments, *averaging.state_dict().values()):
        first = tensor.detach().clone()
        dist.broadcast(first, 0)
        assert torch.equal(first, tensor.detach())
    before = [parameter.detach().clone() for parameter in model.parameters()]
    received = received_bytes()
    averaging.settle()
    dist.barrier()
    assert received_bytes() - received < 4096, "nothing is exchanged where ranks are alike"
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    averaging.close()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ALL)
def test_settled_ranks_hold_the_same_weights_and_moments(tmp_path, name):
    ranks.run(settles, tmp_path, 3, name)


def goes_on(rank: int, world: int, name: str) -> None:
    """Settled after step 4 and taken up by others: as by those who went on."""
    model = net()
    optimizer, averaging = optimizer_of(model), algorithm(name, 3)
    averaging.attach(model, optimizer)
    for step in range(1, 5):
        gradients(model, step, rank)
        optimizer.step()
    averaging.settle()
    other = net()
    other.load_state_dict(model.state_dict())
    optimizer_of_other, anew = optimizer_of(other), algorithm(name, 3)
    optimizer_of_other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    kept = {key: value.clone() for key, value in averaging.state_dict().items()}
    for step in range(5, 12):
        gradients(model, step, rank)
        optimizer.step()
    averaging.settle()
    anew.attach(other, optimizer_of_other)
    anew.load_state_dict(kept)
    for step in range(5, 12):
        gradients(other, step, rank)
        optimizer_of_other.step()
    anew.settle()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    averaging.close()
    anew.close()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", REPLAYED)
def test_taken_up_where_it_settled_training_goes_on_as_if_never_stopped(tmp_path, name):
    ranks.run(goes_on, tmp_path, 2, name)


def begins_alike(rank: int, world: int) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.fill_(rank + 1)
    averaging = algorithm("local_sgd")
    averaging.attach(model, optimizer_of(model))
    assert all(bool((tensor == 1).all()) for tensor in model.state_dict().values())
    averaging.close()


def test_ranks_begin_with_the_weights_and_buffers_of_the_first(tmp_path):
    ranks.run(begins_alike, tmp_path, 2)


def means(rank: int, world: int) -> None:
    def of(rank: int, size: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.randn(size, generator=torch.Generator().manual_seed(100 * rank + size)).to(dtype)

    layout = [(1, torch.float32), (5, torch.bfloat16), (300_001, torch.float32), (7, torch.float64), (0, torch.float32)]
    mine = [of(rank, size, dtype) for size, dtype in layout]
    average(mine, None)
    for tensor, (size, dtype) in zip(mine, layout, strict=True):
        by_rank = [of(other, size, dtype) for other in range(world)]
        wide = [part.to(torch.promote_types(dtype, torch.float32)) for part in by_rank]
        assert torch.equal(tensor, (sum(wide[1:], wide[0]) / world).to(dtype)), (size, dtype)


@pytest.mark.parametrize("world", [2, 3])
def test_the_mean_is_summed_in_the_order_of_ranks_wherever_an_element_lies(tmp_path, world):
    ranks.run(means, tmp_path, world)


def keeps_other_state(rank: int, world: int) -> None:
    model = net()
    optimizer, averaging = optimizer_of(model), algorithm("local_sgd")
    averaging.attach(model, optimizer)
    gradients(model, 1, rank)
    if rank == 1:
        next(model.parameters()).grad = None
    optimizer.step()
    with pytest.raises(UserError, match=r"ranks keep different tensors \(\[18, 15\] of them, by rank\)"):
        averaging.settle()


def test_optimizers_that_keep_different_state_are_refused_and_nobody_waits(tmp_path):
    ranks.run(keeps_other_state, tmp_path, 2)


def not_finite(rank: int, world: int, name: str) -> None:
    model = net()
    optimizer, averaging = optimizer_of(model), algorithm(name, 2)
    averaging.attach(model, optimizer)
    for step in range(1, 8):
        gradients(model, step, rank)
        if rank == 1 and step == 3:
            for parameter in model.parameters():
                parameter.grad[:] = torch.nan
        optimizer.step()
    averaging.settle()
    assert all(bool(parameter.isnan().all()) for parameter in model.parameters())
    averaging.close()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ALL)
def test_weights_that_are_not_finite_reach_every_rank(tmp_path, name):
    ranks.run(not_finite, tmp_path, 2, name)


def alone(rank: int, world: int, name: str) -> None:
    """A group of one averages with nobody."""
    groups = [dist.new_group([other]) for other in range(world)]
    model, plain_model = net(), net()
    optimizer, plain_optimizer = optimizer_of(model), optimizer_of(plain_model)
    averaging = averaging_class(name)(groups[rank], 2)
    averaging.attach(model, optimizer)
    for step in range(1, 6):
        for trained_model, steps in ((model, optimizer), (plain_model, plain_optimizer)):
            gradients(trained_model, step, rank)
            steps.step()
    averaging.settle()
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), plain_model.parameters(), strict=True))
    averaging.close()


@pytest.mark.parametrize("name", sorted({*ALL} - {"diloco"}))
def test_a_group_of_one_trains_as_without_averaging(tmp_path, name):
    ranks.run(alone, tmp_path, 2, name)


def interval_of_one(rank: int, world: int) -> None:
    model, exact = net(), net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    optimizer_of_exact = torch.optim.SGD(exact.parameters(), lr=0.05, momentum=0.9)
    averaging = algorithm("local_sgd", 1)
    averaging.attach(model, optimizer)
    for step in range(1, 9):
        gradients(model, step, rank)
        optimizer.step()
        gradients(exact, step, rank)
        for parameter in exact.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
        optimizer_of_exact.step()
    for a, b in zip(model.parameters(), exact.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    averaging.close()


def test_averaged_at_every_step_sgd_with_momentum_is_the_exact_sum_of_gradients(tmp_path):
    ranks.run(interval_of_one, tmp_path, 3)


SENT = {  # bytes that each of 2 and of 4 ranks takes off the wire for a million values
    "local_sgd": (4.0e6, 6.0e6),
    "diloco": (1.0e6, 1.5e6),
    "decentralized": (16.0e6, 16.0e6),  # at each of the four steps
    "decentralized_all": (16.0e6, 24.0e6),
    "low_precision_decentralized": (4.0e6, 8.0e6),
    "async_average": (4.0e6, 6.0e6),
}


def bytes_on_the_wire(rank: int, world: int) -> None:
    for name, of_world in SENT.items():
        model = nn.Linear(1000, 1000, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        averaging = algorithm(name, 4)
        averaging.attach(model, optimizer)
        model.weight.grad = torch.randn(1000, 1000)
        dist.barrier()
        before = received_bytes()
        for _ in range(4):
            optimizer.step()
        averaging.close()
        received = received_bytes() - before
        want = of_world[0 if world == 2 else 1]
        assert want <= received <= 1.02 * want, (name, received)
        dist.barrier()


@pytest.mark.parametrize("world", [2, 4])
def test_bytes_on_the_wire_in_an_interval_of_four_steps_are_those_of_the_algorithm(tmp_path, world):
    ranks.run(bytes_on_the_wire, tmp_path, world)


def test_a_step_between_averages_is_the_rank_s_own(tmp_path):
    ranks.run(apart, tmp_path, 2)


def apart(rank: int, world: int) -> None:
    weights, averaging = trained("local_sgd", rank, 2, 2, ())
    for step, alike in ((0, False), (1, True)):
        first = weights[step]["0.weight"].clone()
        dist.broadcast(first, 0)
        assert rank == 0 or torch.equal(first, weights[step]["0.weight"]) == alike
    averaging.close()
