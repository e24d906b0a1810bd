"""The mean over ranks, in place: summed in the order of ranks, so that all get the same bits, however tensors are laid
out. Single precision at least; half-precision tensors travel as single. 8 N (W - 1) / W bytes from each of W ranks.

Messages are whole chunks of up to 128 MiB of tensors, in pieces (`comm.piecewise`): on slow links few long messages
cost less than many short ones, and it bounds the memory that is taken besides the tensors: twice that. Copies are in
memory of the host, from where gloo sends them; the tensors may be on a CUDA device.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from elastic_core.comm.hierarchy import Hierarchy
from elastic_core.comm.piecewise import in_host_memory, sum_flat
from elastic_core.comm.traffic import Traffic, swapped_chunks

_RUN_BYTES = 128 << 20


def average(tensors: Sequence[Tensor], group: dist.ProcessGroup | None, hierarchy: Hierarchy | None = None) -> None:
    """Floating tensors, alike in number, order, shape and dtype on every rank of `group`. Collective."""
    for run in _runs(tensors):
        flat = flattened(run)
        average_flat(flat, group, hierarchy)
        put_back(flat, run)


def average_flat(flat: Tensor, group: dist.ProcessGroup | None, hierarchy: Hierarchy | None = None) -> None:
    """flat: contiguous, one dimension. `hierarchy`: within nodes first, if there is one."""
    world = dist.get_world_size(group)
    if hierarchy is None:
        sum_flat(flat, group, divisor=world)
    else:
        hierarchy.around(flat, lambda sums: sum_flat(sums, group, hierarchy.leaders, divisor=world))


def traffic_of_average(values: int, world: int, runs: int = 1) -> Traffic:
    """Of so many float32 values, averaged in as many runs."""
    whole = swapped_chunks(4 * values, world)
    return Traffic(whole.sent_bytes, whole.rounds * runs)


def runs_of(values: int) -> int:
    """In which `average` takes so many float32 values, at most."""
    return max(1, -(-4 * values // _RUN_BYTES))


def flattened(tensors: Sequence[Tensor]) -> Tensor:
    """A copy of tensors in memory of the host, one after another, in single precision or the widest of their dtypes."""
    widest = functools.reduce(torch.promote_types, [tensor.dtype for tensor in tensors], torch.float32)
    return in_host_memory(torch.cat([tensor.detach().reshape(-1).to(widest) for tensor in tensors]))


def put_back(flat: Tensor, tensors: Sequence[Tensor]) -> None:
    for tensor, part in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
        tensor.detach().copy_(part.view_as(tensor))


def add_to(tensors: Sequence[Tensor], flat: Tensor) -> None:
    for tensor, part in zip(tensors, torch.split(flat, [tensor.numel() for tensor in tensors]), strict=True):
        tensor.detach().add_(part.to(tensor.device).view_as(tensor))


def _runs(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Of one dtype, in their order, of about `_RUN_BYTES`."""
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        run: list[Tensor] = []
        size = 0
        for tensor in tensors:
            if tensor.dtype != dtype:
                continue
            run.append(tensor)
            size += tensor.numel() * 4
            if size >= _RUN_BYTES:
                yield run
                run, size = [], 0
        if run:
            yield run
