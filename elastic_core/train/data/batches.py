"""Which samples a rank reads at a step, and reading them.

A step consumes the job's samples [cursor, cursor + B). They are split over the ranks, a rank's share into
micro-batches that fit it. A micro-batch of n samples weighs n/B, so the weighted sum of the mean gradients is
exactly the gradient of the mean over the batch, however ragged the shares. A rank without a share (only ever in
a last batch smaller than the world) repeats the batch's first sample with weight 0, to take part in the exchange.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset, default_collate

from elastic_core.state.order.block_order import Blocks
from elastic_core.state.order.sample_order import batch_indices, micro_batches, rank_share
from elastic_core.train.data.fixed_parts import part_size, pieces

Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True, slots=True)
class DataPlan:
    """What fixes the data order of a job, and how much of it there is. All in samples."""

    seed: int
    dataset_samples: int
    total_samples: int
    max_local: int | None
    blocks: Blocks | None = None  # of data that is read in blocks

    def batch(self, cursor: int, count: int, offset: int, length: int) -> NDArray[np.int64]:
        """Of the batch of `count` samples at `cursor`, the indices of `length` from the `offset`-th on."""
        if self.blocks is None:
            return batch_indices(self.seed, self.dataset_samples, cursor + offset, length)
        return self.blocks.batch(self.seed, cursor, count)[offset : offset + length]


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatch:
    """`start` is the job's sample that the first index stands for. Weight 0: no share, takes part only."""

    start: int
    indices: NDArray[np.int64]
    weight: float
    last: bool
    part: int | None = None  # of the fixed parts of the batch (`fixed_parts`) the one that it belongs to
    begins_part: bool = False
    ends_part: bool = False

    @property
    def num_samples(self) -> int:
        """Samples that count."""
        return len(self.indices) if self.weight > 0 else 0

    def reads(self, dataset_samples: int) -> list[tuple[int, NDArray[np.int64]]]:
        """(epoch, indices) of the samples that count, in order."""
        parts = []
        done = 0
        while done < self.num_samples:
            epoch, offset = divmod(self.start + done, dataset_samples)
            length = min(self.num_samples - done, dataset_samples - offset)
            parts.append((epoch, self.indices[done : done + length]))
            done += length
        return parts


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One rank's part of one step. `num_samples` is the whole batch's."""

    cursor: int
    num_samples: int
    micro: tuple[MicroBatch, ...]
    part_size: int = 0  # samples of each of the fixed parts, 0 where none are measured


def plan_step(
    plan: DataPlan,
    cursor: int,
    global_batch: int,
    rank: int,
    world: int,
    *,
    alike: bool = False,
    fixed_parts: tuple[int, ...] = (),
) -> StepPlan:
    """A data rank's part of the step that starts at `cursor`; the job's last batch is what is left of the work.

    `alike`: every rank takes as many micro-batches as any other, which some make up with stand-ins: for models whose
    forward pass is an exchange. `fixed_parts`: the numbers of workers that the job may have, where micro-batches are to
    end with the parts that are the same for all of them (not with `alike`). Who reads which samples is the same.
    """
    batch = min(global_batch, plan.total_samples - cursor)
    offset, length = rank_share(batch, rank, world)
    most = max(1, len(micro_batches(rank_share(batch, 0, world)[1], plan.max_local)))  # the first share is the largest
    sizes = micro_batches(length, plan.max_local)
    size = part_size(batch, fixed_parts) if fixed_parts else 0
    num_stand_ins = most - len(sizes) if alike else int(length == 0)
    micro = []
    if num_stand_ins:
        stand_in = plan.batch(cursor, batch, 0, 1)
        lasts = [length == 0 and i == num_stand_ins - 1 for i in range(num_stand_ins)]
        micro = [MicroBatch(cursor, stand_in, 0.0, last) for last in lasts]
    if length == 0:
        return StepPlan(cursor, batch, tuple(micro), size)
    indices = plan.batch(cursor, batch, offset, length)
    done = 0
    for samples, part in pieces(offset, length, batch, size):
        sizes = micro_batches(samples, plan.max_local)
        for i, count in enumerate(sizes):
            begins, ends = i == 0 and part is not None, i == len(sizes) - 1 and part is not None
            own = indices[done : done + count]
            last = done + count == length
            micro.append(MicroBatch(cursor + offset + done, own, count / batch, last, part, begins, ends))
            done += count
    return StepPlan(cursor, batch, tuple(micro), size)


class Reader:
    """Reads samples by index and collates them onto the device."""

    def __init__(self, dataset: Dataset[Any], collate: Collate | None, device: torch.device) -> None:
        self._dataset = dataset
        self._collate = collate or default_collate
        self._device = device
        # Same values as collating one sample at a time, hundreds of times faster.
        self._tensors = dataset.tensors if type(dataset) is TensorDataset and self._collate is default_collate else None

    def read(self, indices: NDArray[np.int64]) -> Any:
        if self._tensors is not None:
            rows = torch.from_numpy(np.ascontiguousarray(indices))
            return to_device([tensor[rows] for tensor in self._tensors], self._device)
        return to_device(self._collate(self._samples(indices.tolist())), self._device)

    def _samples(self, indices: Sequence[int]) -> list[Any]:
        several = getattr(self._dataset, "__getitems__", None)  # torch's protocol for reading many at once
        if several is not None:
            return list(several(list(indices)))
        return [self._dataset[index] for index in indices]


def to_device(value: Any, device: torch.device) -> Any:
    """Tensors within lists, tuples, named tuples and mappings, moved; anything else as it is."""
    if device.type == "cpu":
        return value
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        return {key: to_device(item, device) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(to_device(item, device) for item in value))
    if isinstance(value, (list, tuple)):
        return type(value)(to_device(item, device) for item in value)
    return value
