"""ByteGrad: sums of gradients that travel in one byte a value (BAGUA, Gan et al., VLDB 2022, section 3.2).

Every rank sends each other one that one's chunk of the bucket in bytes, adds up what it gets for its own chunk in
single precision, in the order of ranks, and sends the sum in bytes to all. Its own part of its own chunk does
not travel and stays as it is.

All ranks decode the same bytes of a sum, so that replicas stay alike bit for bit. A chunk has one scale, so what an
element becomes depends on the others of its chunk: a resumed run, whose buckets DDP lays out anew, is as good as an
undisturbed one but not equal to it in bits. Nothing is kept from step to step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from elastic_core.comm.hooked import HookedAlgorithm
from elastic_core.comm.minmax_uint8 import MinMaxUInt8, message_bytes
from elastic_core.comm.piecewise import chunk_bounds, host_memory
from elastic_core.comm.traffic import Traffic, swapped_chunks


class ByteGrad(HookedAlgorithm):
    """gloo; gradients may be on a CUDA device."""

    name: ClassVar[str] = "bytegrad"

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        super().__init__(group)
        self._codec = MinMaxUInt8()
        self._scratch: dict[int, _Scratch] = {}  # by the size of a bucket

    @classmethod
    def traffic(cls, shapes: Sequence[torch.Size], world: int) -> Traffic:
        return swapped_chunks(message_bytes(sum(shape.numel() for shape in shapes)), world)

    @classmethod
    def rehearse(cls, values: Tensor) -> None:
        codec = MinMaxUInt8()
        message = host_memory((message_bytes(values.numel()),), torch.uint8, values.device)
        codec.encode(values, message)
        codec.decode(message, values)

    def reduce(self, buffer: Tensor) -> Tensor:
        size = buffer.numel()
        if size not in self._scratch:
            self._scratch[size] = _Scratch(size, self._rank, self._world, buffer.device)
        scratch = self._scratch[size]
        values = buffer if buffer.dtype == torch.float32 else buffer.float()
        chunks = [values[first:end] for first, end in chunk_bounds(size, self._world)]
        peers = [peer for peer in range(self._world) if peer != self._rank]
        for peer in peers:
            if chunks[peer].numel():
                self._codec.encode(chunks[peer], scratch.messages[peer])
        self.swap({p: scratch.messages[p] for p in peers}, {p: scratch.received[p] for p in peers})
        own = scratch.messages[self._rank]
        if chunks[self._rank].numel():
            self._codec.encode(self._summed(chunks[self._rank], scratch), own)
        self.swap(dict.fromkeys(peers, own), {p: scratch.messages[p] for p in peers})
        for (first, end), message in zip(chunk_bounds(size, self._world), scratch.messages, strict=True):
            if end > first:
                self._codec.decode(message, buffer[first:end])
        return buffer

    def _summed(self, own: Tensor, scratch: _Scratch) -> Tensor:
        """The sum over ranks of this rank's chunk."""
        total = scratch.total.zero_()
        for rank in range(self._world):
            if rank == self._rank:
                total.add_(own)
            else:
                self._codec.add(scratch.received[rank], total)
        return total


class _Scratch:
    """Messages of a bucket's chunks: `messages` by the rank whose chunk it is, `received` by who sent it of ours."""

    def __init__(self, size: int, rank: int, world: int, device: torch.device) -> None:
        sizes = [end - first for first, end in chunk_bounds(size, world)]
        self.messages = [host_memory((message_bytes(values),), torch.uint8, device) for values in sizes]
        self.received = [host_memory(self.messages[rank].shape, torch.uint8, device) for _ in sizes]
        self.total = torch.empty(sizes[rank], device=device)
