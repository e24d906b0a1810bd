"""Gradients that stay with their rank, for algorithms that average weights (`comm.averaging`).

The runtime weighs a micro-batch of n samples out of a global batch of B with n/B, so that a rank's gradient is its
share of the sum over ranks. A step of its own takes W times that, W being the number of ranks: the mean gradient over
the rank's own samples where shares are even, and in the mean over ranks every sample weighs 1/B where they are not; a
rank without a share steps with zeros. So learning rates, which follow the global batch, stay what they are.

There is no gradient of the whole batch: its noise is not measured, but on one rank, which exchanges nothing; a gradient
is clipped by its own norm on each rank. A parameter that no sample of a rank uses has a gradient of zeros there, so
that optimizers keep the same of it on every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn
from torch.optim import Optimizer

from elastic_core.comm.algorithms import averaging_class
from elastic_core.comm.hierarchy import hierarchy_of
from elastic_core.train.gradients.gradients import Gradients, LocalGradients
from elastic_core.train.parallel.group import Group, exchanging


class LocalSteps(Gradients):
    """To its gradients a rank is alone."""

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, group: Group, comm: str, interval: int, nodes: Sequence[str] = ()
    ) -> None:
        """Collective. `nodes`: of every rank, to average within nodes first."""
        super().__init__(model, Group(device=group.device), comm)
        self._world = group.world
        algorithm = averaging_class(comm)
        own = algorithm.overlaps and group.world > 1
        beside = group.beside("the averaging of weights") if own else None
        self.comm = averaging = algorithm(beside, interval)
        hierarchy = hierarchy_of(nodes, beside)
        if hierarchy is not None:
            averaging.within(hierarchy)
        with exchanging():
            averaging.attach(model, optimizer)

    @property
    def of_whole_batch(self) -> bool:
        return self._world == 1

    def finish(self) -> LocalGradients:
        local = super().finish()
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        if self._world == 1:
            return local
        torch._foreach_mul_([p.grad for p in self.parameters if p.grad is not None], float(self._world))
        return replace(local, micro_parts=())
