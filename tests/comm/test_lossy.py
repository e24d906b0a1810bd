"""Lossy exchanges between real ranks: what they give is what their papers' algorithms give, on every rank alike."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from elastic_core.comm.algorithms import create
from elastic_core.comm.bytegrad import ByteGrad
from elastic_core.comm.halves import Bf16Sum, Fp16Sum
from elastic_core.comm.piecewise import PIECE_BYTES, swap
from elastic_core.comm.powersgd import PowerSgd
from elastic_core.comm.tuning.received_bytes import received_bytes
from elastic_core.train.checkpoint.training_state import rank_tensors, restore_rank
from tests.comm import plain, ranks

CPU = torch.device("cpu")
LOSSY = ("fp16", "bf16", "bytegrad", "powersgd")
STEPS, MICRO = 5, 2
SIZES = (1, 2, 3, 5, 1000, PIECE_BYTES // 4 + 1, 300_001)


class Net(nn.Module):
    """Two branches, of which a rank may use one; matrices, vectors, and one of more than two dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(40, 64)
        self.odd = nn.Linear(64, 64)
        self.filters = nn.Conv1d(1, 48, 31, padding=15)
        self.last = nn.Linear(64, 1)

    def forward(self, x: Tensor, odd: bool) -> Tensor:
        x = torch.tanh(self.first(x))
        if odd:
            x = x + torch.tanh(self.odd(x))
        x = x + self.filters(x.unsqueeze(1)).mean(1)
        return self.last(x)


def net() -> Net:
    torch.manual_seed(5)
    return Net()


def loss_of(model: nn.Module, step: int, micro: int, rank: int, world: int, unused: bool) -> Tensor:
    """One micro-batch's share of the mean loss over the global batch of the step."""
    generator = torch.Generator().manual_seed(1000 * step + 10 * micro + rank)
    x = torch.randn(8, 40, generator=generator)
    out = model(x, odd=not unused or (rank % 2 == 1 and micro == MICRO - 1))
    return (out - x[:, :1]).square().mean() / (world * MICRO)


def trained(name: str, rank: int, world: int, unused: bool, folder: str) -> None:
    """Real DDP with accumulation. `unused`: every other rank leaves a branch out. Leaves weights and buckets."""
    model = net()
    ddp = DistributedDataParallel(
        model, gradient_as_bucket_view=True, find_unused_parameters=unused, bucket_cap_mb=0.01
    )
    names = {id(p): name for name, p in model.named_parameters()}
    buckets: list[list[list[str]]] = []
    # DDP itself exchanges which parameters were used, at the same time.
    algorithm = create(name, CPU, dist.new_group() if unused else None)
    algorithm.attach(ddp, lambda bucket: buckets[-1].append([names[id(p)] for p in bucket.parameters()]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(STEPS):
        buckets.append([])
        for micro in range(MICRO):
            ddp.require_backward_grad_sync = micro == MICRO - 1
            loss_of(ddp, step, micro, rank, world, unused).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    algorithm.close()
    torch.save((model.state_dict(), buckets), Path(folder) / f"rank{rank}")


def replayed(name: str, world: int, unused: bool, buckets: list[list[list[str]]]) -> dict[str, Tensor]:
    """The same training in one process. `buckets`: names of parameters by step and bucket, as DDP laid them out."""
    model, power = net(), plain.PowerSgd()
    parameters = dict(model.named_parameters())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(STEPS):
        by_rank = [gradients_of(model, step, rank, world, unused) for rank in range(world)]
        for bucket in buckets[step]:
            if name == "powersgd":
                for parameter in bucket:
                    parameters[parameter].grad = power.sum(parameter, [grads[parameter] for grads in by_rank])
                continue
            flat = [torch.cat([grads[parameter].reshape(-1) for parameter in bucket]) for grads in by_rank]
            if name == "allreduce":
                total = sum(flat[1:], flat[0])
            elif name == "bytegrad":
                total = plain.bytegrad_sum(flat)
            else:
                total = plain.half_sum(flat, {"fp16": torch.float16, "bf16": torch.bfloat16}[name])
            sizes = [parameters[parameter].numel() for parameter in bucket]
            for parameter, part in zip(bucket, total.split(sizes), strict=True):
                parameters[parameter].grad = part.view_as(parameters[parameter]).clone()
        optimizer.step()
    return model.state_dict()


def gradients_of(model: nn.Module, step: int, rank: int, world: int, unused: bool) -> dict[str, Tensor]:
    model.zero_grad(set_to_none=True)
    for micro in range(MICRO):
        loss_of(model, step, micro, rank, world, unused).backward()
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in model.named_parameters()
    }


def train_and_compare(rank: int, world: int, name: str, unused: bool, folder: str) -> None:
    trained(name, rank, world, unused, folder)
    dist.barrier()
    own, buckets = torch.load(Path(folder) / f"rank{rank}")
    first, _ = torch.load(Path(folder) / "rank0")
    assert all(torch.equal(own[key], first[key]) for key in own), "replicas differ"
    if rank == 0:
        assert unused or buckets[0] != buckets[1], "DDP lays its buckets out anew after the first step"
        want = replayed(name, world, unused, buckets)
        for key, value in own.items():
            if name == "powersgd":  # products of matrices are summed in another order
                torch.testing.assert_close(value, want[key], rtol=1e-4, atol=1e-6)
            else:
                assert torch.equal(value, want[key]), key
        before = net().state_dict()
        assert all(not torch.equal(value, before[key]) for key, value in own.items()), "nothing was learnt"


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("world", "unused"), [(2, False), (4, True)])
@pytest.mark.parametrize("name", ["allreduce", *LOSSY])
def test_training_with_accumulation_and_unused_parameters_is_as_replayed_in_one_process(tmp_path, name, world, unused):
    ranks.run(train_and_compare, tmp_path, world, name, unused, str(tmp_path))


def values(rank: int, size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(100 * rank + size))


def flat_sums(rank: int, world: int) -> None:
    for name, want in (
        ("fp16", lambda parts: plain.half_sum(parts, torch.float16)),
        ("bf16", lambda parts: plain.half_sum(parts, torch.bfloat16)),
        ("bytegrad", plain.bytegrad_sum),
    ):
        algorithm = create(name, CPU)
        for size in SIZES:
            expected = want([values(other, size) for other in range(world)])
            for _ in range(2):  # scratch is used again
                assert torch.equal(algorithm.reduce(values(rank, size)), expected), (name, size)
            narrow = algorithm.reduce(values(rank, size).to(torch.bfloat16))
            assert narrow.dtype == torch.bfloat16
            rounded = want([values(other, size).to(torch.bfloat16).float() for other in range(world)])
            assert torch.equal(narrow, rounded.to(torch.bfloat16)), (name, size)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_buckets_of_any_size_and_dtype_are_summed_as_by_the_formulas(tmp_path, world):
    ranks.run(flat_sums, tmp_path, world) if world > 1 else one_rank(tmp_path)


def one_rank(folder: Path) -> None:
    """A group of one: what is left of an algorithm there."""
    ranks.run(alone, folder, 2)


def alone(rank: int, world: int) -> None:
    groups = [dist.new_group([other]) for other in range(world)]
    for name in LOSSY:
        algorithm = create(name, CPU, groups[rank])
        got = algorithm.reduce(values(rank, 1000))
        torch.testing.assert_close(got, values(rank, 1000), rtol=0.01, atol=0.02)


def any_cut(rank: int, world: int) -> None:
    """The same elements, cut into buckets in another way."""
    for algorithm in (Fp16Sum(), Bf16Sum()):
        whole = algorithm.reduce(values(rank, 4000))
        for cut in (1, 333, 3999):
            mine = values(rank, 4000)
            parts = [algorithm.reduce(mine[:cut].clone()), algorithm.reduce(mine[cut:].clone())]
            assert torch.equal(torch.cat(parts), whole), cut


def test_in_two_bytes_a_sum_does_not_depend_on_where_in_a_bucket_an_element_lies(tmp_path):
    ranks.run(any_cut, tmp_path, 3)


def not_finite(rank: int, world: int) -> None:
    for name in LOSSY:
        algorithm = create(name, CPU)
        mine = values(rank, 900)
        if rank == 1:
            mine[:] = torch.nan
        assert algorithm.reduce(mine).isnan().all(), name


def test_a_gradient_that_is_not_finite_reaches_every_rank(tmp_path):
    ranks.run(not_finite, tmp_path, 2)


SENT = {  # bytes that each of 2 and of 4 ranks takes off the wire for a million values
    "allreduce": (4.0e6, 6.0e6),
    "fp16": (2.0e6, 3.0e6),
    "bf16": (2.0e6, 3.0e6),
    "bytegrad": (1.0e6, 1.5e6),
}


def bytes_on_the_wire(rank: int, world: int) -> None:
    for name, of_world in SENT.items():
        algorithm, mine = create(name, CPU), torch.randn(1_000_000)
        dist.barrier()
        before = received_bytes()
        algorithm.reduce(mine)
        received = received_bytes() - before
        want = of_world[0 if world == 2 else 1]
        assert want <= received <= 1.02 * want, (name, received)
        dist.barrier()


@pytest.mark.parametrize("world", [2, 4])
def test_bytes_on_the_wire_are_those_of_the_algorithm(tmp_path, world):
    ranks.run(bytes_on_the_wire, tmp_path, world)


def thin_bytes(rank: int, world: int) -> None:
    model = nn.Linear(1000, 1000, bias=False)
    algorithm = exchanging(model, PowerSgd())
    dist.barrier()
    before = received_bytes()
    algorithm.step(torch.randn(1000, 1000))
    received = received_bytes() - before
    want = 2 * 1000 * 4 * 4  # P and Q of 4 columns
    assert want <= received <= 1.1 * want, received  # of four million
    dist.barrier()


def test_of_a_matrix_two_thin_ones_travel(tmp_path):
    ranks.run(thin_bytes, tmp_path, 2)


class exchanging:
    """One parameter's gradients through an algorithm, without a backward pass of their own."""

    def __init__(self, model: nn.Module, algorithm: PowerSgd) -> None:
        (self.parameter,) = model.parameters()
        self.ddp = DistributedDataParallel(model, broadcast_buffers=False)
        self.algorithm = algorithm
        algorithm.attach(self.ddp)

    def step(self, gradient: Tensor) -> Tensor:
        """The sum over ranks, as the algorithm gives it."""
        self.parameter.grad = None
        eye = torch.eye(self.parameter.shape[1])
        (self.ddp(eye) * gradient.T).sum().backward()
        assert self.parameter.grad is not None
        return self.parameter.grad.clone()


def nothing_is_lost(rank: int, world: int) -> None:
    power = PowerSgd()
    exchange = exchanging(nn.Linear(60, 50, bias=False), power)
    given, got = torch.zeros(50, 60), torch.zeros(50, 60)
    for step in range(6):
        gradient = torch.randn(50, 60, generator=torch.Generator().manual_seed(10 * step + rank))
        given += gradient
        got += exchange.step(gradient)
        left = power.state_dict()["error/weight"].clone()
        for whole in (total := given.clone()), left:
            dist.all_reduce(whole)
        torch.testing.assert_close(got + left, total, rtol=1e-4, atol=1e-3)
        assert float(left.norm()) > 0.1 * float(total.norm()), "so much is compressed"


def test_what_compression_left_out_is_kept_and_comes_later(tmp_path):
    """Error feedback: sum of all outputs + errors of all ranks = sum of all gradients, after every step."""
    ranks.run(nothing_is_lost, tmp_path, 3)


def goes_on(rank: int, world: int) -> None:
    gradients = [torch.randn(50, 60, generator=torch.Generator().manual_seed(10 * s + rank)) for s in range(6)]
    undisturbed = exchanging(nn.Linear(60, 50, bias=False), PowerSgd())
    want = [undisturbed.step(gradient) for gradient in gradients]
    before = exchanging(nn.Linear(60, 50, bias=False), PowerSgd())
    for gradient in gradients[:3]:
        before.step(gradient)
    kept = {key: value.clone() for key, value in before.algorithm.state_dict().items()}
    before.step(gradients[0])  # what follows does not reach back into what was kept
    after, anew = PowerSgd(), PowerSgd()
    after.load_state_dict(kept)
    resumed = exchanging(nn.Linear(60, 50, bias=False), after)
    assert all(torch.equal(resumed.step(g), w) for g, w in zip(gradients[3:], want[3:], strict=True))
    begun_anew = exchanging(nn.Linear(60, 50, bias=False), anew)
    assert not torch.equal(begun_anew.step(gradients[3]), want[3]), "the state counts"


def test_with_its_state_powersgd_goes_on_as_if_never_stopped(tmp_path):
    ranks.run(goes_on, tmp_path, 2)


def through_a_checkpoint(rank: int, world: int) -> None:
    before = exchanging(nn.Linear(60, 50, bias=False), PowerSgd())
    before.step(torch.randn(50, 60))
    saved = rank_tensors(rank, before.algorithm)
    same, other_number = PowerSgd(), PowerSgd()
    assert restore_rank(saved, True, rank, same)
    assert same.state_dict().keys() == {"error/weight", "factor/weight"}
    assert all(torch.equal(value, same.state_dict()[key]) for key, value in before.algorithm.state_dict().items())
    assert not restore_rank(saved, False, rank, other_number)
    assert other_number.state_dict() == {}, "with other ranks errors begin anew"
    assert restore_rank(saved, True, rank, ByteGrad()), "nothing of another algorithm is loaded"


def test_state_goes_through_a_checkpoint_to_as_many_ranks_of_the_same_algorithm(tmp_path):
    ranks.run(through_a_checkpoint, tmp_path, 2)


def recovers(rank: int, world: int) -> None:
    exchange = exchanging(nn.Linear(60, 50, bias=False), PowerSgd())
    exchange.step(torch.randn(50, 60))
    bad = torch.randn(50, 60)
    if rank == 1:
        bad[3, 4] = torch.inf
    assert exchange.step(bad).isnan().all()
    assert exchange.algorithm.state_dict() == {}
    assert exchange.step(torch.randn(50, 60)).isfinite().all()


def test_a_step_that_is_not_finite_does_not_spoil_the_next(tmp_path):
    ranks.run(recovers, tmp_path, 2)


def crossed(rank: int, world: int) -> None:
    size = 3 * PIECE_BYTES + 5
    sends = {peer: torch.full((size,), 10 * rank + peer, dtype=torch.uint8) for peer in range(world) if peer != rank}
    receives = {peer: torch.zeros(size, dtype=torch.uint8) for peer in sends}
    swap(sends, receives, None)
    assert all(bool((received == 10 * peer + rank).all()) for peer, received in receives.items())


def test_long_messages_cross_in_pieces(tmp_path):
    ranks.run(crossed, tmp_path, 3)
