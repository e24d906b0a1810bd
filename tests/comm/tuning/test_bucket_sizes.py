"""The size of buckets that a job exchanges at once: the best few by prediction are tried, the fastest is kept."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from elastic_core.comm.algorithms import bucket_mib, create
from elastic_core.comm.allreduce import OrderedAllReduce
from elastic_core.comm.tuning.auto_exchange import (
    MOST_STEPS,
    SIZES_BESIDE,
    AutoExchange,
)
from elastic_core.comm.tuning.step_cost import BUCKET_BYTES
from elastic_core.comm.tuning.trial import TIMED_STEPS, WARM_STEPS
from tests.comm import ranks

CPU = torch.device("cpu")
MIB = 1 << 20
LAYERS = 8  # of a MiB each
A_TRIAL = WARM_STEPS + TIMED_STEPS


class Sized:
    """A model trained until the choice, told that a step with buckets of each size takes so long."""

    def __init__(self, seconds: Mapping[int, float]) -> None:
        torch.manual_seed(0)
        layers = [nn.Linear(512, 512, bias=False) for _ in range(LAYERS)]
        self.model = DistributedDataParallel(
            nn.Sequential(*layers), gradient_as_bucket_view=True, bucket_cap_mb=bucket_mib("auto")
        )
        exchange = create("auto", CPU, among=("allreduce", "fp16"))
        assert isinstance(exchange, AutoExchange)
        exchange.attach(self.model)
        self.exchange, self.sizes, self.steps = exchange, [BUCKET_BYTES], 0
        while not exchange.chosen:
            self.step()
            took = seconds[exchange._current.bucket_bytes] + (1.0 if exchange.in_force == "fp16" else 0.0)
            if exchange.stepped(took, 0.9 * took) and exchange.in_force == "allreduce":
                self.sizes.append(exchange._current.bucket_bytes)
            self.steps += 1

    def step(self) -> list[Tensor]:
        self.model.zero_grad(set_to_none=True)
        x = torch.randn(4, 512, generator=torch.Generator().manual_seed(dist.get_rank()))
        self.model(x).sum().backward()
        self.exchange.take_wait_seconds()
        return [parameter.grad.clone() for parameter in self.model.parameters()]

    def exchanges(self) -> int:
        """In a step, as they are now."""
        exact, counted = OrderedAllReduce._exchange, []
        OrderedAllReduce._exchange = lambda algorithm, items: (counted.append(items), exact(algorithm, items))[1]
        try:
            self.step()
        finally:
            OrderedAllReduce._exchange = exact
        return len(counted)


def kept(rank: int, world: int) -> None:
    told = {BUCKET_BYTES: 1.0, 4 * MIB: 0.7, MIB: 0.5}
    sized = Sized(told if rank == 0 else dict.fromkeys(told, 1.0))  # rank 1 is not asked
    passes = [size for size in sized.sizes if size != BUCKET_BYTES]
    assert len(set(passes)) >= 1, "a size was tried"
    assert set(sized.sizes) == {BUCKET_BYTES, 4 * MIB, MIB}, "of those that cut the model otherwise"
    assert sized.sizes[-1] == MIB
    assert sized.steps <= MOST_STEPS == A_TRIAL * (3 + SIZES_BESIDE)
    figures = {figures.algorithm: figures for figures in sized.exchange.tried}["allreduce"]
    assert (figures.bucket_bytes, figures.size_trials, figures.measured_seconds) == (MIB, 2, 0.5)
    assert sized.exchanges() == LAYERS
    sized.exchange.close()


def test_the_fastest_size_is_kept_on_every_rank(tmp_path):
    ranks.run(kept, tmp_path, 2)


def not_worth_it(rank: int, world: int) -> None:
    sized = Sized({BUCKET_BYTES: 1.0, 4 * MIB: 0.97, MIB: 0.96})
    assert sized.sizes[-1] == BUCKET_BYTES
    assert sized.exchanges() == 2, "a small one first, as DDP has it, and the rest"
    got = sized.step()
    sized.model.zero_grad(set_to_none=True)
    sized.exchange.close()
    torch.manual_seed(0)
    alone = nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(LAYERS)))
    for other in range(world):
        alone(torch.randn(4, 512, generator=torch.Generator().manual_seed(other))).sum().backward()
    for gradient, parameter in zip(got, alone.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-4, atol=1e-6)


def test_ddps_own_size_stays_where_no_other_saves_a_twentieth(tmp_path):
    ranks.run(not_worth_it, tmp_path, 2)


class Mixed(nn.Module):
    """Layers of two types, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        dtypes = (torch.float32, torch.float64, torch.float32, torch.float32)
        self.layers = nn.ModuleList([nn.Linear(60, 60, dtype=dtype) for dtype in dtypes])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x.to(layer.weight.dtype)))
        return x


def together(rank: int, world: int) -> None:
    found = []
    for size in (None, 20_000, 100 * MIB):
        torch.manual_seed(1)
        model = DistributedDataParallel(Mixed(), gradient_as_bucket_view=True, bucket_cap_mb=0.002)
        exchange = OrderedAllReduce()
        exchange.bucket_bytes = size
        exchange.attach(model)
        model(torch.randn(4, 60, generator=torch.Generator().manual_seed(rank))).sum().backward()
        exchange.close()
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


def test_gradients_of_two_types_are_put_together_and_come_back_where_they_were(tmp_path):
    ranks.run(together, tmp_path, 3)


def large_alone(rank: int, world: int) -> None:
    """Layers of 4 MiB with biases of 4 KiB, put together to 2 MiB."""
    taken: list[list[int]] = []
    exact = OrderedAllReduce._exchange
    OrderedAllReduce._exchange = lambda algorithm, items: (
        taken.append([item.bucket.buffer.nbytes for item in items]),
        exact(algorithm, items),
    )[1]
    found = []
    for size in (None, 2 * MIB):
        torch.manual_seed(1)
        layers = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(3)))
        model = DistributedDataParallel(layers, gradient_as_bucket_view=True, bucket_cap_mb=0.001)
        exchange = OrderedAllReduce()
        exchange.bucket_bytes = size
        exchange.attach(model)
        for _ in range(2):  # DDP lays its buckets out after the first
            taken.clear()
            model.zero_grad(set_to_none=True)
            model(torch.randn(4, 1024, generator=torch.Generator().manual_seed(rank))).sum().backward()
        exchange.close()
        found.append([parameter.grad.clone() for parameter in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(found[0], found[1], strict=True))
    assert all(len(sizes) == 1 for sizes in taken if max(sizes) >= 4 * MIB), "a large one is never copied"
    assert sum(map(sum, taken)) == sum(parameter.numel() * 4 for parameter in model.parameters())


def test_a_bucket_that_is_large_enough_is_exchanged_where_it_is(tmp_path):
    ranks.run(large_alone, tmp_path, 2)
