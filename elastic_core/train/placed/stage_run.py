"""One step of one stage: micro-batches forward and backward in the order of 1F1B, whatever its neighbours' ranks.

1F1B as in Narayanan et al. 2021 (arXiv 2104.04473). A task's `loss(model, batch)` needs no second form, as in a
pipeline (`train.parallel.loss_calls`): the first stage learns the model's inputs from it, the last gives it the output.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from elastic_core.errors import UserError
from elastic_core.train.data.batches import MicroBatch
from elastic_core.train.layouts import Wire
from elastic_core.train.parallel.group import exchanging
from elastic_core.train.parallel.loss_calls import Answer, Loss, called_with
from elastic_core.train.placed.borders import Border
from elastic_core.train.placed.stage_part import StagePart
from elastic_core.train.placed.stage_places import StagePlaces

Read = Callable[[MicroBatch], Any]


class StageRun:
    """This rank's part of every step. `read` gives a micro-batch's samples."""

    def __init__(
        self,
        part: StagePart,
        places: StagePlaces,
        loss: Loss,
        read: Read,
        device: torch.device,
        context: Callable[[], AbstractContextManager[Any]],
        wire: Wire | None = None,
    ) -> None:
        self._part, self._places, self._loss, self._read, self._context = part, places, loss, read, context
        self._embeddings = tuple(part.embeddings.values())
        stage = places.stage
        self._before = None if places.first_stage else Border(places, stage - 1, device, wire, forward=False)
        self._after = None if places.last_stage else Border(places, stage + 1, device, wire, forward=True)
        self._under_way: dict[int, tuple[list[Tensor], list[Tensor]]] = {}  # (inputs, outputs) by micro-batch
        self._sizes: Sequence[int] = ()
        self._micro: Sequence[MicroBatch] = ()

    def run(self, micro: Sequence[MicroBatch], sizes: Sequence[int]) -> list[Tensor]:
        """The weighted losses of this rank's samples, on ranks of the last stage. `sizes`: samples of each micro-batch
        over all ranks. Gradients are added up in the parameters. Raises `ExchangeBroken`."""
        self._micro, self._sizes = micro, sizes
        losses: list[Tensor] = []
        ahead = len(self._places.stages) - 1 - self._places.stage
        with exchanging():
            for number, forward in one_f_one_b(len(micro), ahead):
                if not forward:
                    self._backward(number)
                elif (loss := self._forward(number)) is not None:
                    losses.append(loss)
            for border in (self._before, self._after):
                if border is not None:
                    border.end_step()
        return losses

    def close(self) -> None:
        for border in (self._before, self._after):
            if border is not None:
                border.close()

    def _forward(self, number: int) -> Tensor | None:
        micro = self._micro[number]
        for embedding in self._embeddings:
            embedding.begin_pass()
        if len(micro.indices) == 0:
            for embedding in self._embeddings:
                embedding.sit_out()
            return None
        inputs, batch = self._inputs(number, micro)
        output = self._part.model(*inputs)
        if self._after is not None:
            outputs = _tensors(output)
            self._after.send(number, self._sizes[number], outputs)
            self._under_way[number] = inputs, outputs
            return None
        with self._context():
            loss = self._loss(Answer(output), self._read(micro) if batch is None else batch)
        weighted = loss * micro.weight
        self._under_way[number] = inputs, [weighted]
        return weighted.detach()

    def _inputs(self, number: int, micro: MicroBatch) -> tuple[list[Tensor], Any]:
        """With the batch, where it had to be read for them."""
        if self._before is None:
            batch = self._read(micro)
            with self._context():
                return list(called_with(self._loss, batch)), batch
        inputs = self._before.receive(number, self._sizes[number], len(micro.indices))
        if number + 1 < len(self._micro):
            self._before.ask(number + 1, self._sizes[number + 1], len(self._micro[number + 1].indices))
        return inputs, None

    def _backward(self, number: int) -> None:
        if number not in self._under_way:
            return  # no samples
        inputs, outputs = self._under_way.pop(number)
        outputs = [output for output in outputs if output.requires_grad]
        grads: list[Tensor] | None = None
        if self._after is not None:
            grads = self._after.receive(number, self._sizes[number], len(self._micro[number].indices))
        if outputs:
            torch.autograd.backward(outputs, grads)
        if self._before is not None:
            taken = [value for value in inputs if value.requires_grad]
            back = [torch.zeros_like(value) if value.grad is None else value.grad for value in taken]
            self._before.send(number, self._sizes[number], back)


def one_f_one_b(count: int, ahead: int) -> Iterator[tuple[int, bool]]:
    """(micro-batch, forward?) in the order of a stage with `ahead` stages after it."""
    warm = min(count, ahead)
    yield from ((number, True) for number in range(warm))
    for number in range(warm, count):
        yield number, True
        yield number - warm, False
    yield from ((number, False) for number in range(count - warm, count))


def _tensors(output: Any) -> list[Tensor]:
    values = output if isinstance(output, tuple) else (output,)
    if not all(isinstance(value, Tensor) and value.dim() > 0 for value in values):
        raise UserError(
            f"The layers of a placed job give tensors with one row a sample, or tuples of them; one gives "
            f"{[type(value).__name__ for value in values]}."
        )
    return list(values)
