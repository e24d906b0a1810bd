"""What a device holds of a state: boxes of tensors, in memory of this process or behind something that reads them.

`Memory` is what one device has; a `Source` reads from one, from near or far (`state.reshard.peers`). `Received` counts
what reached a rank, by the link over which it came. Nothing here talks to other ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from torch import Tensor

from elastic_core.errors import InfrastructureError
from elastic_core.state.layout.boxes import Box
from elastic_core.state.layout.overlap import HeldBoxes
from elastic_core.state.reshard.pieces import Link


@dataclass(frozen=True, slots=True)
class Part:
    """A box of a tensor in the memory of one device."""

    box: Box
    tensor: Tensor

    def view(self, box: Box) -> Tensor:
        """The memory of a box within this one."""
        return self.tensor[box.slices(self.box.start)]


Memory = Mapping[str, Sequence[Part]]  # what one device has of each tensor


def boxes_of(memory: Memory) -> HeldBoxes:
    """What of each tensor is there."""
    return {name: tuple(part.box for part in parts) for name, parts in memory.items()}


class Source(Protocol):
    """The memory of one device, from near or far."""

    def read(self, name: str, box: Box, out: Tensor) -> None:
        """Fill `out`, of the box's shape. Raises `InfrastructureError` when the source is gone or does not have it."""


class MemorySource:
    """Memory of this process."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory

    def read(self, name: str, box: Box, out: Tensor) -> None:
        out.copy_(find(self._memory, name, box))


def find(memory: Memory, name: str, box: Box) -> Tensor:
    """The memory of a box, which one part has to hold whole."""
    for part in memory.get(name, ()):
        if part.box.intersect(box) == box:
            return part.view(box)
    raise InfrastructureError(f"This memory does not hold {box} of {name}: the plan is of another state.")


@dataclass(slots=True)
class Received:
    """Bytes that reached memory, by the link over which they came, and bytes read from the store (whole tiles)."""

    by_link: dict[Link, int] = field(default_factory=lambda: dict.fromkeys(Link, 0))
    store_bytes: int = 0

    def count(self, link: Link, num_bytes: int, num_targets: int = 1) -> None:
        """So many bytes were fetched; what more than one rank of the host got of it came within the host."""
        self.by_link[link] += num_bytes
        self.by_link[Link.HOST] += num_bytes * (num_targets - 1)

    def add(self, other: Received) -> None:
        for link, size in other.by_link.items():
            self.by_link[link] += size
        self.store_bytes += other.store_bytes
