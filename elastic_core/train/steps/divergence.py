"""Notices that a job diverges under an exchange that is not exact, on every rank at the same step.

An exchange is what replicas do with gradients or weights, and what stages of a pipeline send each other.

    the loss was not finite at two steps in a row (one bad step is passed over by some exchanges, and forgotten by all)
    weights that are about to be saved are not finite, so that no such checkpoint is committed
    the mean loss of ten steps is above an exact run's limit (`domain.exact_run`) where they began

Then it raises `Diverged`: the processes end without a commit, and the ledger has the job go on from its last one by the
exact sum, between stages too. A job under the exact sum is never touched, whatever its loss; nor is one rank that
exchanges nothing. Losses are agreed upon by all ranks. Weights that are saved are alike on all, or each rank has a part
of them: then the one whose part is not finite ends alone, and takes the others with it before they could commit.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from math import isfinite

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from elastic_core.domain import AUTO, EXACT
from elastic_core.host.exits import Diverged
from elastic_core.protocol.process_groups import LaunchOrder
from elastic_core.spec.parts.job_comm import MOMENTA, STAGE_RATIO, STEPS_ALONE

WINDOW = 10  # steps, whose mean loss is compared: one step's is noise
_NOT_FINITE = 2  # steps in a row


class DivergenceGuard:
    """Of one group of ranks, under one allocation's algorithm."""

    def __init__(self, order: LaunchOrder, world: int) -> None:
        comm = order.allocation.comm
        shrinks = order.spec.comm.shrinks_stages(order.allocation.layout)
        exchanges = comm != EXACT and (world > 1 or comm in STEPS_ALONE)
        self._guards = order.spec.comm.guard and (exchanges or shrinks)
        begins_exact = comm == AUTO or comm in MOMENTA
        self._used = STAGE_RATIO if shrinks else EXACT if begins_exact else comm  # the last that is not exact
        self._latest: deque[float] = deque(maxlen=WINDOW)
        self._before: deque[int] = deque(maxlen=WINDOW)  # samples that the job had read before each of them
        restored = order.restore.candidates
        self._samples = restored[0].samples if restored else 0
        self._known = order.exact_loss
        self._is_first = not restored  # the job's own first steps are seen here

    def stepped(self, loss: float, step: int, samples: int, algorithm: str) -> None:
        """After each step, with the loss that all ranks agreed upon. Raises `Diverged`."""
        if not self._guards:
            return
        if algorithm != EXACT:
            self._used = algorithm
        self._latest.append(loss)
        self._before.append(self._samples)
        self._samples = samples
        if self._is_first and self._known.first is None and len(self._latest) == WINDOW:
            self._known = replace(self._known, first=sum(self._latest) / WINDOW)  # one batch's says too little
        if self._used != EXACT:
            self._weigh(step)

    def _weigh(self, step: int) -> None:
        latest = list(self._latest)
        if len(latest) >= _NOT_FINITE and not any(isfinite(loss) for loss in latest[-_NOT_FINITE:]):
            raise self._diverged(f"the losses of steps {step - _NOT_FINITE + 1} to {step} are not finite")
        began, mean = self._before[0], sum(latest) / len(latest)
        limit, is_forecast = self._known.limit(began), self._known.is_forecast(began)
        if limit is not None and len(latest) == WINDOW and mean > limit:
            known = f"forecast from {self._known.source}" if is_forecast else "twice that of the job's first steps"
            raise self._diverged(
                f"the mean loss of steps {step - WINDOW + 1} to {step} is {mean:.4g}, and an exact run's is at most "
                f"{limit:.4g} ({known})"
            )

    def check_weights(self, model: nn.Module, step: int) -> None:
        """Before they are saved: those that this rank has. Raises `Diverged`."""
        if not self._guards or self._used == EXACT:
            return
        weights = [_own(parameter.detach()) for parameter in model.parameters() if parameter.is_floating_point()]
        weights = [own for own in weights if own.numel()]
        if weights and not bool(torch.stack(torch._foreach_norm(weights, float("inf"))).isfinite().all()):
            raise self._diverged(f"weights were not finite after step {step}")

    def _diverged(self, what: str) -> Diverged:
        return Diverged(f"{what}, under {self._used}")


def _own(weights: Tensor) -> Tensor:
    """This rank's part, where ranks share them."""
    return weights.to_local() if isinstance(weights, DTensor) else weights
