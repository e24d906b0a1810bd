"""Micro-batches that weigh by what their loss is a mean over, where samples have different numbers of it: tokens.

The mean over a batch's tokens is no mean of its samples' means. A micro-batch that holds t of the T tokens of the whole
batch weighs t/T, so the weighted sum of the mean gradients is the gradient of the mean over the batch's tokens, however
the batch is cut. T takes a message of all ranks before the step's first forward pass, and all of the step's
micro-batches on this rank read ahead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from elastic_core.domain import Allocation
from elastic_core.errors import UserError
from elastic_core.train.data.batches import MicroBatch

CountItems = Callable[[Any], int | None]
Gather = Callable[[Sequence[float]], list[list[float]]]


class ItemWeights:
    def __init__(self, count: CountItems, allocation: Allocation, gather: Gather) -> None:
        """`count`: items of a batch, None where its loss is a mean over samples. `gather`: every rank's
        vector, by rank. Raises `UserError` for an allocation whose steps have no micro-batches of their own."""
        layout = allocation.layout
        if allocation.stages or layout.pipeline > 1:
            raise UserError(
                "session.prepare(count_items=...) is for models that every replica runs whole; this job has a "
                "pipeline or placed layers. Leave it out, or those out of the spec."
            )
        self._count, self._gather = count, gather
        self._ranks = layout.model_size  # of a replica, which read the same

    def of_step(self, read: Iterable[tuple[MicroBatch, Any]]) -> list[tuple[MicroBatch, Any]]:
        """One step's micro-batches on this rank with their samples, weighed by items. They weigh by samples as before
        where any rank's are not counted, or nobody has an item. Parameter servers have none. Collective."""
        step = list(read)
        counts = [self._count(batch) if micro.weight > 0 else 0 for micro, batch in step]
        known = [count for count in counts if count is not None]
        own = float(sum(known)) if len(known) == len(counts) else float("nan")
        total = sum(row[0] for row in self._gather([own])) / self._ranks
        if not total > 0:
            return step
        weighed = zip(step, known, strict=True)
        return [(replace(micro, weight=count / total), batch) for (micro, batch), count in weighed]
