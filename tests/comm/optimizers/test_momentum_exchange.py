"""Exchanges of momenta between real ranks: warm-up, freeze and steps are those of their papers, on every rank alike."""

from __future__ import annotations

import time
from copy import deepcopy
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from elastic_core.comm.algorithms import create
from elastic_core.comm.optimizers.onebit_adam import OneBitAdam
from elastic_core.comm.tuning.received_bytes import received_bytes
from elastic_core.errors import UserError
from elastic_core.train.checkpoint.training_state import rank_tensors, restore_rank
from tests.comm import plain, ranks

CPU = torch.device("cpu")
NAMES = ("onebit_adam", "qadam")
WARMUP, STEPS, MICRO = 3, 9, 2


class Net(nn.Module):
    """300,000 parameters, five blocks of them; of two branches a rank may use one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(40, 512)
        self.middle = nn.Linear(512, 512)
        self.odd = nn.Linear(512, 33)
        self.last = nn.Linear(512, 1)

    def forward(self, x: Tensor, odd: bool = True) -> Tensor:
        x = torch.tanh(self.middle(torch.tanh(self.first(x))))
        out: Tensor = self.last(x)
        return out + self.odd(x).mean(1, keepdim=True) if odd else out


def net() -> Net:
    torch.manual_seed(5)
    return Net()


def adam_of(model: nn.Module, kind: type[torch.optim.Adam]) -> torch.optim.Adam:
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    rest = [parameter for parameter in model.parameters() if parameter.dim() <= 1]
    groups = [{"params": matrices, "lr": 2e-3, "weight_decay": 0.05}, {"params": rest, "betas": (0.8, 0.99)}]
    return kind(groups, lr=1e-3, weight_decay=0.0)


def loss_of(model: nn.Module, step: int, micro: int, rank: int, world: int, unused: bool) -> Tensor:
    """One micro-batch's share of the mean loss over the global batch of the step."""
    x = torch.randn(8, 40, generator=torch.Generator().manual_seed(1000 * step + 10 * micro + rank))
    out = model(x, odd=not unused or (rank % 2 == 1 and micro == MICRO - 1))
    loss: Tensor = (out - x[:, :1]).square().mean() / (world * MICRO)
    return loss


class Training:
    """Accumulation on one rank, under real DDP if there are others. `unused`: every other rank leaves a branch out."""

    def __init__(self, name: str, kind: type[torch.optim.Adam] = torch.optim.AdamW, unused: bool = False) -> None:
        self.model, self.unused, self.taken = net(), unused, 0
        self.rank, self.world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        # DDP itself exchanges which parameters were used, at the same time.
        self.algorithm = create(name, CPU, dist.new_group() if unused else None, warmup_steps=WARMUP)
        self.called: nn.Module = self.model
        if self.world > 1:
            self.called = DistributedDataParallel(
                self.model, gradient_as_bucket_view=True, find_unused_parameters=unused, bucket_cap_mb=0.01
            )
            self.algorithm.attach(self.called)
        self.optimizer = adam_of(self.model, kind)
        self.algorithm.follow(self.optimizer)

    def backward(self) -> None:
        for micro in range(MICRO):
            self.called.require_backward_grad_sync = micro == MICRO - 1
            loss_of(self.called, self.taken, micro, self.rank, self.world, self.unused).backward()

    def steps(self, count: int) -> Training:
        for _ in range(count):
            self.backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.taken += 1
        return self

    def weights(self) -> dict[str, Tensor]:
        return {name: value.clone() for name, value in self.model.state_dict().items()}

    def moments(self) -> list[Tensor]:
        states = [self.optimizer.state[parameter] for parameter in self.model.parameters()]
        return [state[key].clone() for state in states for key in ("step", "exp_avg", "exp_avg_sq")]


def equal(some: dict[str, Tensor], others: dict[str, Tensor]) -> bool:
    return all(torch.equal(value, others[name]) for name, value in some.items())


def alike_on_all_ranks(weights: dict[str, Tensor]) -> bool:
    for value in weights.values() if dist.is_initialized() else ():
        first = value.clone()
        dist.broadcast(first, 0)
        if not torch.equal(first, value):
            return False
    return True


def replayed(name: str, kind: type[torch.optim.Adam], world: int, unused: bool) -> dict[str, Tensor]:
    """The same training in one process."""
    model = net()
    optimizer, frozen = adam_of(model, kind), None
    for step in range(STEPS):
        by_rank = [gradients_of(model, step, rank, world, unused) for rank in range(world)]
        if step == WARMUP:
            frozen = plain.FrozenAdam(name, optimizer, decoupled=kind is torch.optim.AdamW)
        if frozen is None:
            for parameter in model.parameters():
                parameter.grad = sum((of[parameter] for of in by_rank[1:]), by_rank[0][parameter])
            optimizer.step()
        else:
            frozen.step(by_rank)
    return model.state_dict()


def gradients_of(model: nn.Module, step: int, rank: int, world: int, unused: bool) -> dict[Tensor, Tensor]:
    model.zero_grad(set_to_none=True)
    for micro in range(MICRO):
        loss_of(model, step, micro, rank, world, unused).backward()
    return {p: torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()}


def train_and_compare(rank: int, world: int, name: str, kind: type[torch.optim.Adam], unused: bool) -> None:
    got = Training(name, kind, unused).steps(STEPS).weights()
    assert alike_on_all_ranks(got), "replicas differ"
    if rank == 0:
        want, before = replayed(name, kind, world, unused), net().state_dict()
        for key, value in got.items():
            assert torch.equal(value, want[key]), key
        assert not any(torch.equal(value, before[key]) for key, value in got.items()), "nothing was learnt"


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("world", "kind", "unused"),
    [(1, torch.optim.AdamW, False), (2, torch.optim.AdamW, False), (2, torch.optim.Adam, False),
     (4, torch.optim.AdamW, True)],
)  # fmt: skip
@pytest.mark.parametrize("name", NAMES)
def test_training_is_as_replayed_in_one_process_bit_for_bit(tmp_path, name, world, kind, unused):
    ranks.run(train_and_compare, tmp_path, world, name, kind, unused)


def frozen_pair(name: str) -> Training:
    """Two steps after the freeze."""
    return Training(name).steps(WARMUP + 2)


def mixed_dtypes(rank: int, world: int, name: str) -> None:
    torch.manual_seed(rank)
    model = nn.Sequential(
        nn.Linear(30, 40, dtype=torch.float64), nn.Linear(40, 50), nn.Linear(50, 2, dtype=torch.bfloat16)
    )
    for layer, other in pairwise(model):
        layer.register_forward_hook(lambda _m, _in, out, other=other: out.to(other.weight.dtype))
    model[1].weight.data = model[1].weight.data.t().contiguous().t()  # lies otherwise in memory
    ddp = DistributedDataParallel(model)
    algorithm = create(name, CPU, warmup_steps=4)
    algorithm.attach(ddp)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    algorithm.follow(optimizer)
    losses = []
    for step in range(40):
        x = torch.randn(16, 30, dtype=torch.float64, generator=torch.Generator().manual_seed(100 * step + rank))
        loss = (ddp(x).float() - x[:, :2].float()).square().mean() / world
        losses.append(float(loss))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert alike_on_all_ranks(dict(model.named_parameters())), "replicas differ"
    assert sum(losses[-5:]) < 0.5 * sum(losses[:5])
    assert [optimizer.state[p]["exp_avg"].dtype for p in model.parameters()] == [p.dtype for p in model.parameters()]


@pytest.mark.parametrize("name", NAMES)
def test_parameters_of_any_dtype_and_order_in_memory_learn_alike(tmp_path, name):
    ranks.run(mixed_dtypes, tmp_path, 2, name)


def only_waiting_counts(rank: int, world: int, name: str) -> None:
    training = frozen_pair(name)
    training.algorithm.take_wait_seconds()
    training.backward()
    if rank == world - 1:
        time.sleep(0.5)
    started = time.perf_counter()
    training.optimizer.step()
    seconds, waited = time.perf_counter() - started, training.algorithm.take_wait_seconds()
    assert waited < seconds, "coding and Adam's arithmetic are no waiting"
    assert world == 1 or rank == world - 1 or waited > 0.4, "for a rank that comes late"
    assert world > 1 or waited == 0.0


@pytest.mark.parametrize("world", [1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_only_the_waiting_for_others_counts_as_such(tmp_path, name, world):
    ranks.run(only_waiting_counts, tmp_path, world, name)


SENT = {"onebit_adam": (3.2e6, 4.8e6), "qadam": (25.2e6, 37.8e6)}  # taken off the wire by each of 2 and of 4 ranks


def bytes_on_the_wire(rank: int, world: int, name: str) -> None:
    size = 25_200_000
    weight = nn.Parameter(torch.zeros(size))
    algorithm = create(name, CPU, warmup_steps=1)
    optimizer = torch.optim.Adam([weight])
    algorithm.follow(optimizer)
    weight.grad = torch.ones(size)
    optimizer.step()
    dist.barrier()
    before = received_bytes()
    optimizer.step()
    received = received_bytes() - before
    want = SENT[name][0 if world == 2 else 1]
    assert 0.98 * want <= received <= 1.02 * want, received
    dist.barrier()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("name", NAMES)
def test_bytes_on_the_wire_are_those_of_the_algorithm(tmp_path, name, world):
    """25.2 M parameters, of which the exact sum takes 101 MB on 2 ranks."""
    ranks.run(bytes_on_the_wire, tmp_path, world, name)


def passes_over(rank: int, world: int, name: str) -> None:
    training = frozen_pair(name)
    weights, moments = training.weights(), training.moments()
    training.backward()
    if rank == world - 1:
        next(training.model.parameters()).grad[3, 4] = torch.inf
    training.optimizer.step()
    assert equal(training.weights(), weights)
    assert all(torch.equal(a, b) for a, b in zip(training.moments(), moments, strict=True))
    assert training.algorithm.state_dict() == {}
    training.optimizer.zero_grad()
    assert not equal(training.steps(2).weights(), weights)
    assert all(value.isfinite().all() for value in training.weights().values())
    assert alike_on_all_ranks(training.weights())


@pytest.mark.sampled(2)
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_a_step_that_is_not_finite_on_one_rank_is_passed_over_by_all(tmp_path, name, world):
    ranks.run(passes_over, tmp_path, world, name)


def nothing_is_lost(rank: int, world: int) -> None:
    """With momenta that are the gradients (beta1 = 0), in steps of one size."""
    size = 150_000
    weight, lr = nn.Parameter(torch.zeros(size)), 1.0
    model = nn.ParameterDict({"w": weight})
    model.forward = lambda: model["w"].sum()
    algorithm = OneBitAdam(warmup_steps=1)
    algorithm.attach(DistributedDataParallel(model))
    optimizer = torch.optim.Adam([weight], lr=lr, betas=(0.0, 0.5), eps=0.0)
    algorithm.follow(optimizer)
    weight.grad = torch.ones(size)
    optimizer.step()
    start, given = weight.detach().clone(), torch.zeros(size)
    for step in range(6):
        weight.grad = torch.randn(size, generator=torch.Generator().manual_seed(10 * step + rank))
        given += weight.grad
        optimizer.step()
    left = algorithm.state_dict()["error/w"].clone()
    for whole in given, left:
        dist.all_reduce(whole)
    torch.testing.assert_close(start - weight.detach() + left, given, rtol=1e-4, atol=1e-3)
    assert float(left.norm()) > 0.1 * float(given.norm()), "so much is compressed"


def test_what_messages_left_out_is_kept_and_comes_later(tmp_path):
    """Error feedback: all steps + errors of all ranks = sum of all gradients, over the root of the frozen variance."""
    ranks.run(nothing_is_lost, tmp_path, 3)


def goes_on(rank: int, world: int, name: str) -> None:
    undisturbed, cut = Training(name).steps(STEPS), frozen_pair(name)
    saved = rank_tensors(rank, cut.algorithm)
    assert {key.split("/")[0] for key in saved} == ({"rng", "comm"} if name == "onebit_adam" else {"rng"})
    saved = {key: value.clone() for key, value in saved.items()}
    resumed, flushed = Training(name), Training(name)
    for after, same in ((resumed, True), (flushed, False)):
        after.model.load_state_dict(cut.model.state_dict())
        after.optimizer.load_state_dict(deepcopy(cut.optimizer.state_dict()))
        after.taken = cut.taken
        assert restore_rank(saved, same, rank, after.algorithm) == same
        after.steps(STEPS - cut.taken)
    assert equal(resumed.weights(), undisturbed.weights())
    assert equal(flushed.weights(), undisturbed.weights()) == (name == "qadam"), "errors count, where there are any"
    assert alike_on_all_ranks(flushed.weights())


@pytest.mark.parametrize("name", NAMES)
def test_with_its_state_it_goes_on_as_if_never_stopped_and_without_its_errors_begin_anew(tmp_path, name):
    ranks.run(goes_on, tmp_path, 2, name)


def refuses_others_errors(rank: int, world: int) -> None:
    own = frozen_pair("onebit_adam").algorithm.state_dict()
    other = Training("onebit_adam").algorithm
    for state in ({**own, "place": torch.tensor([rank, 5])}, {"place": own["place"]}):
        with pytest.raises(
            ValueError, match=f"takes, as rank {rank} of 2, its own errors of .*first.bias.* begin anew"
        ):
            other.load_state_dict(state)
    with pytest.raises(ValueError, match="qadam keeps no state"):
        Training("qadam").algorithm.load_state_dict(own)


def test_errors_of_another_rank_or_model_are_refused(tmp_path):
    ranks.run(refuses_others_errors, tmp_path, 2)


def first_seen_late(rank: int, world: int) -> None:
    """A row of a table that has its first gradient after the freeze, and a parameter that has."""
    table, late = nn.Embedding(20, 8), nn.Linear(8, 8)
    model = nn.ModuleDict({"table": table, "late": late})
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)
    algorithm = OneBitAdam(warmup_steps=3)
    algorithm.follow(optimizer)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for step in range(30):
        x = table(torch.tensor([1, 2, 3, 19] if step >= 5 else [1, 2, 3]))
        optimizer.zero_grad()
        (late(x) if step >= 5 else x).square().mean().backward()
        optimizer.step()
    moved = {name: (value - before[name]).abs().max() for name, value in model.state_dict().items()}
    assert all(0.001 < distance < 0.01 * 30 * 3 for distance in moved.values()), moved


def test_what_had_no_gradient_before_the_freeze_makes_no_great_steps(tmp_path):
    ranks.run(first_seen_late, tmp_path, 2)


def refused(optimizer: torch.optim.Optimizer, *said: str) -> None:
    with pytest.raises(UserError) as error:
        create("onebit_adam", CPU).follow(optimizer)
    assert all(words in str(error.value) for words in said), error.value


class _Own(torch.optim.Adam):
    """Whose step may be any."""


def test_other_optimizers_are_refused_and_what_is_allowed_is_said():
    for kind in (torch.optim.SGD, torch.optim.NAdam, _Own):
        refused(
            kind(net().parameters(), lr=0.1), kind.__name__, "torch.optim.Adam and torch.optim.AdamW", "comm.algorithm"
        )
    refused(torch.optim.AdamW(net().parameters(), amsgrad=True), "has amsgrad set", "allowed is AdamW without")


def half_a_model(rank: int, world: int) -> None:
    model = net()
    algorithm = create("onebit_adam", CPU)
    algorithm.attach(DistributedDataParallel(model))
    with pytest.raises(UserError, match=r"parameters \['last.weight', 'last.bias'\] are not in it, and 1 of"):
        algorithm.follow(torch.optim.Adam([*list(model.parameters())[:-2], nn.Parameter(torch.ones(3))]))


def test_parameters_that_nobody_would_exchange_are_refused(tmp_path):
    ranks.run(half_a_model, tmp_path, 2)


def test_a_closure_is_refused_once_the_exchange_is_in_the_step():
    weight = nn.Parameter(torch.ones(3))
    optimizer = torch.optim.Adam([weight])
    create("qadam", CPU, warmup_steps=1).follow(optimizer)
    for _ in range(2):
        weight.grad = torch.ones(3)
        optimizer.step()
    assert torch.equal(weight.grad, torch.ones(3)), "gradients are there after the step"
    with pytest.raises(UserError, match="without a closure"):
        optimizer.step(lambda: weight.sum())
