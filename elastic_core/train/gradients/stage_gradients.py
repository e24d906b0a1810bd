"""Gradients of one rank's stage of a placed job: summed over the stage's ranks, rows of embeddings at their keepers.

The same promise as `train.gradients.gradients`: after a step's last micro-batch every rank's part of the gradient is
that of the mean loss over the whole global batch. Dense layers are summed in the order of the stage's ranks
(`bucketed_sum`), rows as `embedding_rows` says. The gradient noise is not estimated: nobody has a replica's gradient.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from elastic_core.comm.algorithm import Exchange
from elastic_core.train.data.batches import MicroBatch
from elastic_core.train.gradients.bucketed_sum import BucketedSum
from elastic_core.train.gradients.gradients import LocalGradients, sqr_sum
from elastic_core.train.gradients.late_updates import LateUpdates
from elastic_core.train.parallel.group import Group, exchanging
from elastic_core.train.placed.stage_part import StagePart
from elastic_core.train.placed.stage_places import StagePlaces


class StageGradients:
    """`wrapped` is this rank's stage: no training code may call it."""

    def __init__(self, part: StagePart, optimizer: Optimizer, group: Group, places: StagePlaces) -> None:
        self.wrapped: nn.Module = part.model
        self.comm: Exchange | None = None  # keeps nothing from step to step
        self.of_whole_batch = True
        self.measure_norms = False  # set at each step, and of no use here
        self._group, self._first = group, places.data == 0
        self._embeddings = tuple(part.embeddings.values())
        kept = {id(embedding.weight) for embedding in self._embeddings}
        self._dense = [p for p in part.model.parameters() if p.requires_grad and id(p) not in kept]
        self._sum = BucketedSum(places.data_group()) if places.own[1] > 1 else None
        self._losses: list[Tensor] = []
        self._max_norm: float | None = None  # to which the last step was clipped, if it was asked for
        self._dense_sqr = 0.0  # then: |g|^2 of its dense layers
        self._late = LateUpdates(self._embeddings, optimizer, places) if part.late_updates else None

    def expect(self, micro: MicroBatch) -> None:
        raise NotImplementedError("a stage takes whole steps")

    def backward(self, loss: Tensor, micro: MicroBatch) -> None:
        raise NotImplementedError("a stage takes whole steps")

    def add_losses(self, weighted: Sequence[Tensor]) -> None:
        """Of a step's micro-batches, as far as this rank knows them."""
        self._losses += weighted

    def finish(self) -> LocalGradients:
        """After the step's last backward: exchange, hand out what was measured, be ready for the next step."""
        started = time.perf_counter()
        with exchanging():
            if self._late is not None:
                self._late.push()
            else:
                for embedding in self._embeddings:
                    embedding.rows.push()
            if self._sum is not None and self._dense:
                self._sum.reduce(self._dense_gradients())
        losses, self._losses = self._losses, []
        return LocalGradients(
            loss=float(torch.stack([loss.double() for loss in losses]).sum()) if losses else 0.0,
            part=None,
            micro_parts=(),
            wait_seconds=time.perf_counter() - started,
        )

    def sqr_norm(self) -> float:
        """|g|^2 of the whole exchanged gradient. Collective."""
        rows, dense = self._row_gradients(), self._dense_gradients() if self._first else []
        norms = torch._foreach_norm(rows + dense) if rows or dense else []
        gathered = self._group.gather_vectors([sqr_sum(norms), sqr_sum(norms[len(rows) :])])
        self._dense_sqr = sum(of_dense for _, of_dense in gathered)
        return sum(sqr for sqr, _ in gathered)

    def clip(self, max_norm: float, sqr_norm: float) -> None:
        self._max_norm = max_norm
        _scale(self._row_gradients() + self._dense_gradients(), max_norm, sqr_norm)

    def settle(self) -> None:
        """As of `Gradients`: no update is on its way any more."""
        if self._late is not None:
            with exchanging():
                self._late.apply(self._clip_late_rows)

    def close(self) -> None:
        if self._late is not None:
            self._late.close()

    def _clip_late_rows(self) -> None:
        """As a step clips: by the norm of the whole gradient of the step that they are of. Collective."""
        if self._max_norm is None:
            return
        rows = self._row_gradients()
        own = sqr_sum(torch._foreach_norm(rows)) if rows else 0.0
        of_rows = sum(row[0] for row in self._group.gather_vectors([own]))
        _scale(rows, self._max_norm, of_rows + self._dense_sqr)

    def _dense_gradients(self) -> list[Tensor]:
        """Of every parameter, so that all ranks exchange alike whatever their samples used."""
        for parameter in self._dense:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        return [parameter.grad for parameter in self._dense if parameter.grad is not None]

    def _row_gradients(self) -> list[Tensor]:
        """Of the rows that this rank keeps, without those that the batch did not use."""
        grads = [embedding.weight.grad for embedding in self._embeddings]
        return [grad._values() for grad in grads if grad is not None]


def _scale(grads: list[Tensor], max_norm: float, sqr_norm: float) -> None:
    """To at most `max_norm` of the whole gradient, of whose norm that is the square."""
    factor = max_norm / (sqr_norm**0.5 + 1e-6)
    if factor < 1.0 and grads:
        torch._foreach_mul_(grads, factor)
