"""Exact sum of gradients: what a resize or a crash must not change by a single bit.

A ring sums an element in an order that depends on its position in the bucket, and DDP rebuilds its buckets
after the first step after every start. `OrderedAllReduce` therefore sums every element in the order of ranks,
wherever it lies: ranks swap chunks, each sums its chunk, and sends the sum to all (`piecewise`). Two facts keep that
cheap: for two ranks any order gives the same bits (a + b == b + a), so the backend's own all-reduce does, of several
buckets at once; small buckets are gathered whole, one round trip instead of two. Both give the same bits as the chunks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from elastic_core.comm.algorithm import BucketProbe, GradBucket
from elastic_core.comm.hook import exchange
from elastic_core.comm.hooked import HookedAlgorithm
from elastic_core.comm.piecewise import sum_flat, sum_in_order
from elastic_core.comm.traffic import Traffic

_GATHER_BELOW = 16_384  # elements of a bucket that are gathered whole


class OrderedAllReduce(HookedAlgorithm):
    """gloo. The same bits for any bucket layout at an equal number of ranks. On CUDA devices the backend's own
    all-reduce, as `NcclAllReduce`: it is what other algorithms sum exactly by."""

    name: ClassVar[str] = "allreduce"

    @classmethod
    def traffic(cls, shapes: Sequence[torch.Size], world: int) -> Traffic:
        return traffic_of_sum(sum(shape.numel() for shape in shapes), world)

    def reduce(self, buffer: Tensor) -> Tensor:
        """buffer: flat, any floating dtype; the sum is written into it."""
        if self._among is None and (self._world == 2 or buffer.device.type == "cuda"):
            dist.all_reduce(buffer, group=self._group)
            return buffer
        if self._among is None and buffer.numel() < _GATHER_BELOW:
            return self._gather_whole(buffer)
        return sum_flat(buffer, self._group, self._among)

    def begin(self, buffer: Tensor) -> Future[Tensor] | None:
        """Two ranks: several buckets are under way at once, which a link with latency rewards."""
        if self._world != 2 or self._among is not None or self._hierarchy is not None or buffer.device.type == "cuda":
            return None
        work = dist.all_reduce(buffer, group=self._group, async_op=True)
        begun: Future[Tensor] = work.get_future().then(_first)
        return begun

    def _gather_whole(self, buffer: Tensor) -> Tensor:
        parts = buffer.new_empty(self._world, buffer.numel())
        dist.all_gather_single(parts.view(-1), buffer, group=self._group)
        return buffer.copy_(sum_in_order(parts))


def traffic_of_sum(values: int, world: int) -> Traffic:
    """Of so many float32 values that `OrderedAllReduce` sums at once."""
    if world > 2 and values < _GATHER_BELOW:
        return Traffic(4 * values * (world - 1), world - 1)
    return Traffic(8 * values * (world - 1) / world, 2)


class NcclAllReduce:
    """CUDA: NCCL's own all-reduce on its own stream. Its order of sums may depend on the bucket's layout."""

    name: ClassVar[str] = "allreduce"

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self._probe: BucketProbe | None = None
        self._weight = 1.0
        self._started: torch.cuda.Event | None = None
        self._ended: torch.cuda.Event | None = None

    @property
    def in_force(self) -> str:
        return self.name

    def attach(self, model: DistributedDataParallel, probe: BucketProbe | None = None, weight: float = 1.0) -> None:
        self._probe, self._weight = probe, weight
        model.register_comm_hook(self, exchange)

    def follow(self, optimizer: Optimizer) -> None:  # noqa: ARG002 - it steps by what is exchanged
        return None

    def gradients_are_local(self) -> bool:
        return False

    def of_whole_batch(self) -> bool:
        return True

    def submit(self, bucket: GradBucket) -> Future[Tensor]:
        if self._probe is not None:
            self._probe(bucket)
        if self._weight != 1.0:
            bucket.buffer().mul_(self._weight)
        last = bucket.is_last()
        if last:
            self._started = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            self._started.record()
        work = dist.all_reduce(bucket.buffer(), group=self._group, async_op=True)
        done: Future[Tensor] = work.get_future().then(self._mark_end if last else _first)
        return done

    def _mark_end(self, future: Future[list[Tensor]]) -> Tensor:
        self._ended = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._ended.record()  # on the callback's stream, which waits for the collective
        return future.value()[0]

    def settle(self) -> None:
        return None  # ranks that step by the same gradients are one model

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        if state:
            raise ValueError(f"{self.name} keeps no state, but was given {sorted(state)}.")

    def take_wait_seconds(self) -> float:
        if self._started is None or self._ended is None:
            return 0.0
        self._ended.synchronize()
        seconds: float = self._started.elapsed_time(self._ended) / 1000
        self._started = self._ended = None
        return max(0.0, seconds)

    def failure(self) -> BaseException | None:
        return None  # NCCL's errors are raised by torch where they are met

    def close(self) -> None:
        return None


def _first(future: Future[list[Tensor]]) -> Tensor:
    return future.value()[0]
