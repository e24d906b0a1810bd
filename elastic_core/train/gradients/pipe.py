"""One optimizer step through a pipeline of stages, by torch.distributed.pipelining.

A task's `loss(model, batch)` needs no second form: the first stage learns the model's inputs by calling it with a
model that only notes what it was called with, the last one computes the loss with a model that gives the pipeline's
output. Micro-batches of one size go through one schedule (1F1B, Narayanan et al. 2021, arXiv 2104.04473; GPipe where
they are fewer than the stages); a ragged rest goes through by itself, since stages exchange tensors of fixed shapes.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from itertools import groupby
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.func import functional_call

from elastic_core.comm.stages.stage_links import probe_stages, ratios
from elastic_core.errors import UserError
from elastic_core.train.data.batches import MicroBatch
from elastic_core.train.parallel.compressed_borders import CompressedBorders
from elastic_core.train.parallel.group import exchanging
from elastic_core.train.parallel.loss_calls import Answer, Loss, called_with
from elastic_core.train.parallel.partitioning import ModelPartition
from elastic_core.train.parallel.places import PIPELINE, Places

Context = Callable[[], AbstractContextManager[Any]]

MICRO_BATCHES = 4  # a stage: the pipeline idles for (stages - 1) / (micro-batches + stages - 1) of a step


def micro_batch_size(share: int, num_stages: int, max_local: int | None) -> int:
    """Samples of a micro-batch, of a replica's share of the batch: enough of them to keep all stages busy."""
    filling = max(1, share // (MICRO_BATCHES * num_stages))
    return filling if max_local is None else min(filling, max_local)


class Pipe:
    """This rank's stage of a pipeline."""

    def __init__(
        self,
        partition: ModelPartition,
        places: Places,
        loss: Loss,
        device: torch.device,
        context: Context,
        stage_ratio: float | None = None,
    ) -> None:
        """`stage_ratio`: by how much activations and their gradients shrink on the slowest link between stages; None:
        they travel as they are. Collective, if it is given."""
        self._partition, self._places = partition, places
        self._loss, self._device, self._context = loss, device, context
        self._schedules: dict[Any, tuple[_Part, Schedule1F1B | ScheduleGPipe]] = {}
        self._stage_ratio = stage_ratio
        self._links = []
        if stage_ratio is not None:
            with exchanging():
                self._links = probe_stages(places.along(PIPELINE).get_group(), places.layout.pipeline)

    def run(self, micros: Sequence[MicroBatch], batches: Sequence[Any]) -> list[Tensor | None]:
        """Forward and backward of a step's micro-batches: their weighted losses, None on ranks that do not know them.

        Gradients are added up in the parameters; shards of them are exchanged. Raises `ExchangeBroken`.
        """
        losses: list[Tensor | None] = []
        work = list(zip(micros, batches, strict=True))
        runs = [list(run) for _, run in groupby(work, key=lambda item: len(item[0].indices))]
        for i, run in enumerate(runs):
            with exchanging():
                losses += self._run(run, final=i == len(runs) - 1)
        return losses

    def _run(self, run: Sequence[tuple[MicroBatch, Any]], *, final: bool) -> list[Tensor | None]:
        """`final`: the step's last run, after which shards are exchanged."""
        with self._context():
            inputs = [called_with(self._loss, batch) for _, batch in run]
        part, schedule = self._schedule(len(run), inputs[0])
        part.exchanges = final
        self._weighted: dict[int, Tensor] = {}
        self._current = run
        if self._places.first_stage:
            schedule.step(*(torch.cat(column) for column in zip(*inputs, strict=True)), return_outputs=False)
        elif self._places.last_stage:
            schedule.step(target=torch.arange(len(run)), losses=[], return_outputs=False)
        else:
            schedule.step(return_outputs=False)
        return [self._weighted.get(i) for i in range(len(run))]

    def _weighted_loss(self, output: Any, target: Tensor) -> Tensor:
        """What the last stage calls for each micro-batch; `target` is its number."""
        i = int(target)
        micro, batch = self._current[i]
        with self._context():
            loss = self._loss(Answer(output), batch)
        weighted = loss * micro.weight
        self._weighted[i] = weighted.detach()
        return weighted

    def _schedule(self, count: int, inputs: tuple[Tensor, ...]) -> tuple[_Part, Schedule1F1B | ScheduleGPipe]:
        key = (count, tuple((tuple(value.shape), value.dtype) for value in inputs))
        if key not in self._schedules:
            stages = self._places.layout.pipeline
            between = shapes_between(self._partition, inputs, self._context, self._device)
            part = _Part(
                self._partition.model,
                self._places.stage,
                stages,
                self._device,
                input_args=between[self._places.stage],
                output_args=between[self._places.stage + 1],
                group=self._places.along(PIPELINE).get_group(),
            )
            part.borders = self._borders(between)
            kind = Schedule1F1B if count >= stages else ScheduleGPipe
            self._schedules[key] = (part, kind(part, count, loss_fn=self._weighted_loss, scale_grads=False))
        return self._schedules[key]

    def _borders(self, between: list[tuple[Tensor, ...]]) -> CompressedBorders | None:
        """`between`: examples of what goes into each stage and out of the last."""
        if self._stage_ratio is None:
            return None
        sizes = [sum(value.numel() * value.element_size() for value in values) for values in between[1:-1]]
        own, by_link = self._places.stage, ratios(self._links, sizes, self._stage_ratio)
        return CompressedBorders(
            before=1.0 if self._places.first_stage else by_link[own - 1],
            after=1.0 if self._places.last_stage else by_link[own],
        )


class _Part(PipelineStage):
    """A stage that exchanges shards after a step's last run only, and may send less than its tensors."""

    exchanges = True
    borders: CompressedBorders | None = None

    def get_fwd_send_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        operations = super().get_fwd_send_ops(fwd_chunk_id)
        return operations if self.borders is None else self.borders.sent(operations, forward=True)

    def get_fwd_recv_ops(self, fwd_chunk_id: int) -> list[dist.P2POp]:
        operations = super().get_fwd_recv_ops(fwd_chunk_id)
        return operations if self.borders is None else self.borders.received(fwd_chunk_id, operations, forward=True)

    def get_bwd_send_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        operations = super().get_bwd_send_ops(bwd_chunk_id)
        return operations if self.borders is None else self.borders.sent(operations, forward=False)

    def get_bwd_recv_ops(self, bwd_chunk_id: int) -> list[dist.P2POp]:
        operations = super().get_bwd_recv_ops(bwd_chunk_id)
        return operations if self.borders is None else self.borders.received(bwd_chunk_id, operations, forward=False)

    def forward_one_chunk(self, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        if self.borders is not None:
            self.borders.use(fwd_chunk_id, forward=True)
        return super().forward_one_chunk(fwd_chunk_id, *args, **kwargs)

    def backward_one_chunk(self, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        if self.borders is not None:
            self.borders.use(bwd_chunk_id, forward=False)
        return super().backward_one_chunk(bwd_chunk_id, *args, **kwargs)

    def perform_reduce_grad(self, grad_scale_factor: int) -> None:
        if self.exchanges:
            super().perform_reduce_grad(grad_scale_factor)


def shapes_between(
    partition: ModelPartition, inputs: tuple[Tensor, ...], context: Context, device: torch.device
) -> list[tuple[Tensor, ...]]:
    """Examples (on no device) of what goes into the first stage, from each to the next, and out of the last.

    Worked out as if on `device`: autocast chooses types by it.
    """
    examples: list[tuple[Tensor, ...]] = []
    with FakeTensorMode(allow_non_fake_inputs=True), context():
        values: Any = tuple(torch.empty(value.shape, dtype=value.dtype, device=device) for value in inputs)
        examples.append(_examples(values))
        for units in partition.stages:
            for name in units:
                unit = partition.skeleton.get_submodule(name)
                values = functional_call(unit, _fakes(unit, device), values)
            examples.append(_examples(values))
    return examples


def _fakes(module: nn.Module, device: torch.device) -> dict[str, Tensor]:
    tensors = itertools.chain(module.named_parameters(), module.named_buffers())
    return {
        name: torch.empty(tensor.shape, dtype=tensor.dtype, device=device, requires_grad=tensor.requires_grad)
        for name, tensor in tensors
    }


def _examples(values: Any) -> tuple[Tensor, ...]:
    given = values if isinstance(values, tuple) else (values,)
    if not all(isinstance(value, Tensor) for value in given):
        raise UserError(f"The units of a pipeline give tensors, or tuples of them, not {type(values).__name__}.")
    return tuple(
        torch.empty_strided(v.shape, v.stride(), dtype=v.dtype, device="meta", requires_grad=v.requires_grad)
        for v in given
    )
