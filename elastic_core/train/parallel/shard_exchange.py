"""FSDP2's gradient exchange as this runtime wants it: summed in the order of ranks, and measured on the way.

The input of a reduce-scatter is this rank's whole gradient of one FSDP group, laid out as one row a rank, in which
each parameter takes as many columns as its largest shard has elements: the norms that the noise scale needs are
taken there. The order of the sum is that of `comm.allreduce`, so sharded and replicated training give equal bits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.fsdp._fully_shard._fsdp_api import ReduceScatter

from elastic_core.comm.piecewise import sum_in_order


@dataclass(frozen=True, slots=True)
class Column:
    """One parameter of the group: its whole size along dim 0, elements of a row of it, and whether its norm counts
    here (a parameter that every tensor-parallel rank holds whole counts on the first)."""

    rows: int
    row_elements: int
    counts: bool

    def width(self, world: int) -> int:
        return math.ceil(self.rows / world) * self.row_elements


class ExchangedShards(ReduceScatter):
    """Of one FSDP module. `take_sqr_norm` is None after a step whose gradients it could not tell apart."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._columns = tuple(columns)
        self.measures = True
        self._sqr: list[Tensor] | None = []
        self._seconds = 0.0

    def allocate(self, size: Sequence[Any], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: dist.ProcessGroup, op: Any, async_op: bool = False
    ) -> dist.Work | None:
        if self.measures:
            self._measure(input_tensor, dist.get_world_size(group))
        if input_tensor.device.type != "cpu":
            work: dist.Work | None = dist.reduce_scatter_single(
                output_tensor, input_tensor, group=group, op=op, async_op=async_op
            )
            return work
        started = time.perf_counter()
        received = torch.empty_like(input_tensor)
        dist.all_to_all_single(received, input_tensor, group=group)
        output_tensor.copy_(sum_in_order(received.view(dist.get_world_size(group), -1)))
        self._seconds += time.perf_counter() - started
        return None

    def take_sqr_norm(self) -> float | None:
        sqr, self._sqr = self._sqr, []
        return None if sqr is None else float(torch.stack(sqr).sum()) if sqr else 0.0

    def take_seconds(self) -> float:
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _measure(self, whole: Tensor, world: int) -> None:
        if self._sqr is None:
            return
        if all(column.counts for column in self._columns):
            self._sqr.append(_sqr(whole))
            return
        widths = [column.width(world) for column in self._columns]
        if sum(widths) * world != whole.numel():  # some parameter has no gradient
            self._sqr = None
            return
        parts = torch.split(whole.view(world, -1), widths, dim=1)
        self._sqr += [_sqr(part) for part, column in zip(parts, self._columns, strict=True) if column.counts]


def _sqr(tensor: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(tensor, dtype=torch.float64)
    return norm.square()
