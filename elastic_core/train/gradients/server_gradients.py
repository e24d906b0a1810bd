"""Gradients of a job with parameter servers: workers push theirs, servers sum them and step, workers pull.

The same promise as `train.gradients.gradients`: after a step's last micro-batch the servers' gradients are those of the
mean loss over the whole global batch; and workers begin the next step with what servers have made of it. Norms of the
workers' own gradients say what the gradient noise is, as of replicas.
"""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from elastic_core.comm.algorithm import Exchange
from elastic_core.train.data.batches import MicroBatch
from elastic_core.train.gradients.gradients import LocalGradients, sqr_sum
from elastic_core.train.gradients.noise import Part
from elastic_core.train.parallel.group import Group, exchanging
from elastic_core.train.servers.push_pull import ServerSide, WorkerSide
from elastic_core.train.servers.server_parts import ServerPart, WorkerPart
from elastic_core.train.servers.server_places import ServerPlaces


class ServerGradients:
    """`wrapped` is the model that a worker's training code calls; on a server nothing does."""

    def __init__(self, part: WorkerPart | ServerPart, optimizer: Optimizer, group: Group, places: ServerPlaces) -> None:
        self.wrapped: nn.Module = part.model
        self.comm: Exchange | None = None  # keeps nothing from step to step
        self.of_whole_batch = True
        self.measure_norms = False  # set at each step
        self._group, self._serves = group, isinstance(part, ServerPart)
        trained = set(part.kept.trained)
        own = {name: value for name, value in part.model.named_parameters() if name in trained}
        self._parameters = list(own.values())
        self._side: WorkerSide | ServerSide
        self._side = (ServerSide if isinstance(part, ServerPart) else WorkerSide)(own, part.kept, places)
        self._losses: list[Tensor] = []
        self._micro: list[MicroBatch] = []
        self._pulling = 0.0  # seconds, after the step before
        optimizer.register_step_post_hook(self._pull)

    def expect(self, micro: MicroBatch) -> None:
        """Nothing is exchanged before the step's last backward."""

    def backward(self, loss: Tensor, micro: MicroBatch) -> None:
        weighted = loss * micro.weight
        weighted.backward()  # type: ignore[no-untyped-call]
        self._losses.append(weighted.detach())
        self._micro.append(micro)

    def finish(self) -> LocalGradients:
        """After the step's last backward: push, hand out what was measured. Raises `ExchangeBroken`."""
        part = None if self._serves else self._own_part()
        started = time.perf_counter()
        with exchanging():
            self._side.push()
        losses, self._losses, self._micro = self._losses, [], []
        return LocalGradients(
            loss=float(torch.stack([loss.double() for loss in losses]).sum()) if losses else 0.0,
            part=part,
            micro_parts=(),
            # The pull that follows this step is counted with the next one, which it is as long as.
            wait_seconds=time.perf_counter() - started + self._pulling,
        )

    def sqr_norm(self) -> float:
        """|g|^2 of the whole gradient, each element of which one server keeps. Collective."""
        grads = self._gradients()
        sqr = sqr_sum(torch._foreach_norm(grads)) if grads else 0.0
        return sum(row[0] for row in self._group.gather_vectors([sqr]))

    def clip(self, max_norm: float, sqr_norm: float) -> None:
        """As of `Gradients`, on the servers."""
        factor, grads = max_norm / (sqr_norm**0.5 + 1e-6), self._gradients()
        if factor < 1.0 and grads:
            torch._foreach_mul_(grads, factor)

    def settle(self) -> None:
        """The servers' parameters are the model, and the workers have pulled them."""

    def close(self) -> None:
        """Nothing runs beside training."""

    def _pull(self, *_: Any) -> None:
        """After the optimizer's step, on every rank."""
        started = time.perf_counter()
        self._side.pull()
        self._pulling = time.perf_counter() - started

    def _own_part(self) -> Part:
        """Of this worker's gradient, as of a mean over its samples."""
        samples, weight = sum(micro.num_samples for micro in self._micro), sum(micro.weight for micro in self._micro)
        if not self.measure_norms or weight <= 0:
            return Part(samples, 0.0)
        grads = self._gradients()
        return Part(samples, sqr_sum(torch._foreach_norm(grads)) / weight**2 if grads else 0.0)

    def _gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self._parameters if parameter.grad is not None]
