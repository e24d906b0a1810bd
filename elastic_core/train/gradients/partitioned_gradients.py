"""Gradients of a partitioned model: backward over micro-batches or a pipeline, the exchange over replicas, norms.

The same promise as `train.gradients.gradients`: after the last micro-batch every rank's part of the gradient is that of
the mean loss over the whole global batch. Replicas of a part exchange it once a step, in buckets summed in the order of
ranks; FSDP2 exchanges shards as backward goes on. Norms are sums over the parts of a replica's ranks, every element
once.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from elastic_core.comm.algorithm import Exchange
from elastic_core.state.layout.placements import local_of
from elastic_core.train.data.batches import MicroBatch
from elastic_core.train.gradients.bucketed_sum import BucketedSum
from elastic_core.train.gradients.gradients import LocalGradients, sqr_sum
from elastic_core.train.gradients.noise import Part
from elastic_core.train.parallel.group import Group, exchanging
from elastic_core.train.parallel.partitioning import ModelPartition, counts_norm
from elastic_core.train.parallel.places import Places


class PartitionedGradients:
    """`wrapped` is what the training code must call, where there is one stage."""

    def __init__(self, partition: ModelPartition, group: Group, places: Places) -> None:
        self.wrapped: nn.Module = partition.model
        self.parameters = [parameter for parameter in partition.model.parameters() if parameter.requires_grad]
        self.comm: Exchange | None = None  # keeps nothing from step to step
        self.of_whole_batch = True
        self._group, self._places, self._exchanges = group, places, partition.exchanges
        self._fsdp = partition.model if isinstance(partition.model, FSDPModule) else None
        self._reducer = None if places.sharded or places.layout.data == 1 else BucketedSum(places.data_group())
        self._losses: list[Tensor] = []
        self._micro: list[MicroBatch] = []
        self.measure_norms = True

    @property
    def measure_norms(self) -> bool:
        return self._measure_norms

    @measure_norms.setter
    def measure_norms(self, measure: bool) -> None:
        self._measure_norms = measure
        for exchange in self._exchanges:
            exchange.measures = measure

    def expect(self, micro: MicroBatch) -> None:
        """The next forward pass is this micro-batch's: only the step's last backward exchanges gradients."""
        if self._fsdp is not None:
            self._fsdp.set_requires_gradient_sync(micro.last)

    def backward(self, loss: Tensor, micro: MicroBatch) -> None:
        """Raises `ExchangeBroken` when other ranks are gone."""
        weighted = loss * micro.weight
        with exchanging():
            weighted.backward()  # type: ignore[no-untyped-call]
        self.add_micro_batch(micro, weighted.detach())

    def add_micro_batch(self, micro: MicroBatch, weighted: Tensor | None) -> None:
        """The gradients of a micro-batch were added up; its weighted loss, where this rank knows it."""
        self._micro.append(micro)
        if weighted is not None:
            self._losses.append(weighted)

    def finish(self) -> LocalGradients:
        """After the step's last backward: exchange, hand out what was measured, be ready for the next step."""
        wait, sqr = self._exchange()
        samples = sum(micro.num_samples for micro in self._micro)
        weight = sum(micro.weight for micro in self._micro)
        knows = self._places.knows_loss
        local = LocalGradients(
            loss=float(torch.stack([loss.double() for loss in self._losses]).sum()) if knows else 0.0,
            part=Part(samples if knows else 0, sqr / weight**2 if weight > 0 else 0.0),
            micro_parts=(),
            wait_seconds=wait,
        )
        self._losses, self._micro = [], []
        return local

    def sqr_norm(self) -> float:
        """|g|^2 of the whole exchanged gradient. Collective."""
        counted = [parameter for parameter in self._with_gradient() if counts_norm(parameter, self._places)]
        once = self._places.sharded or self._places.data == 0
        sqr = sqr_sum(torch._foreach_norm([local_of(_grad(p)) for p in counted])) if counted and once else 0.0
        return sum(row[0] for row in self._group.gather_vectors([sqr]))

    def clip(self, max_norm: float, sqr_norm: float) -> None:
        factor = max_norm / (sqr_norm**0.5 + 1e-6)
        grads = [local_of(_grad(parameter)) for parameter in self._with_gradient()]
        if factor < 1.0 and grads:
            torch._foreach_mul_(grads, factor)

    def settle(self) -> None:
        """As of `Gradients`: replicas are alike."""

    def close(self) -> None:
        return None

    def _with_gradient(self) -> Iterator[nn.Parameter]:
        return (parameter for parameter in self.parameters if parameter.grad is not None)

    def _exchange(self) -> tuple[float, float]:
        """(seconds waited, |g|^2 of this rank's own part before the exchange as far as it counts here)."""
        if self._exchanges:
            seconds = sum(exchange.take_seconds() for exchange in self._exchanges)
            sqrs = [exchange.take_sqr_norm() for exchange in self._exchanges]
            # A gradient that could not be told apart: no estimate is better than a wrong one.
            return seconds, float("nan") if None in sqrs else sum(sqr for sqr in sqrs if sqr is not None)
        grads = [(p, local_of(_grad(p))) for p in self._with_gradient()]
        sqr = 0.0
        if self.measure_norms and (counted := [grad for p, grad in grads if counts_norm(p, self._places)]):
            sqr = sqr_sum(torch._foreach_norm(counted))
        if self._reducer is None:
            return 0.0, sqr
        started = time.perf_counter()
        with exchanging():
            self._reducer.reduce(self._whole_gradients())
        return time.perf_counter() - started, sqr

    def _whole_gradients(self) -> list[Tensor]:
        """Of every parameter, so that all replicas exchange alike whatever their samples used."""
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return [local_of(_grad(parameter)) for parameter in self.parameters]


def _grad(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad
