"""Sums of gradients that travel in two bytes a value.

Each rank sums a chunk of the bucket in single precision, in the order of ranks, and sends the sum in two bytes again.
What an element becomes depends on its values alone, not on where in its bucket it lies: a resumed run gives the bits of
an undisturbed one at the same number of ranks, as the exact sum does.

fp16 (10 bits of fraction) loses what is below 6e-8 and makes infinity of what is above 65,504; bf16 has the range of
single precision and 7 bits of fraction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from elastic_core.comm.hooked import HookedAlgorithm
from elastic_core.comm.piecewise import host_memory, sum_in_order
from elastic_core.comm.traffic import Traffic, swapped_chunks


class _HalfSum(HookedAlgorithm):
    """gloo; gradients may be on a CUDA device. Subclasses name the dtype."""

    dtype: ClassVar[torch.dtype]

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        super().__init__(group)
        self._scratch: dict[int, tuple[Tensor, Tensor]] = {}  # by the size of a chunk

    @classmethod
    def traffic(cls, shapes: Sequence[torch.Size], world: int) -> Traffic:
        return swapped_chunks(2 * sum(shape.numel() for shape in shapes), world)

    @classmethod
    def rehearse(cls, values: Tensor) -> None:
        values.copy_(values.to(cls.dtype))

    def reduce(self, buffer: Tensor) -> Tensor:
        chunk = -(-buffer.numel() // self._world)
        halves, received = self._buffers(chunk, buffer.device)
        halves.view(-1)[: buffer.numel()].copy_(buffer)
        peers = [peer for peer in range(self._world) if peer != self._rank]
        self.swap({peer: halves[peer] for peer in peers}, {peer: received[peer] for peer in peers})
        received[self._rank].copy_(halves[self._rank])
        own = halves[self._rank].copy_(sum_in_order(received.float()))
        self.swap(dict.fromkeys(peers, own), {peer: halves[peer] for peer in peers})
        return buffer.copy_(halves.view(-1)[: buffer.numel()])

    def _buffers(self, chunk: int, device: torch.device) -> tuple[Tensor, Tensor]:
        if chunk not in self._scratch:
            halves, received = (host_memory((self._world, chunk), self.dtype, device) for _ in range(2))
            self._scratch[chunk] = (halves.zero_(), received)
        return self._scratch[chunk]


class Fp16Sum(_HalfSum):
    name: ClassVar[str] = "fp16"
    dtype: ClassVar[torch.dtype] = torch.float16


class Bf16Sum(_HalfSum):
    name: ClassVar[str] = "bf16"
    dtype: ClassVar[torch.dtype] = torch.bfloat16
