"""Carrying out a plan: every rank fetches its own pieces, in parallel, with no coordinator (Tenplex, section 5).

A piece goes straight into the memory of all ranks of the host that need it (they share that memory), tile by tile:
beside the shards no more than one tile is in memory. Pieces come from the device's own old memory, from peers' old
memory (`state.reshard.peers`) or from the store, where a tile is read once. `relay` pieces are fetched when all ranks
have done `first`, from the new memory of the rank that read them of the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from elastic_core.crashing import crash_here
from elastic_core.domain import Slot
from elastic_core.errors import InfrastructureError
from elastic_core.state.format.read_plan import Destination
from elastic_core.state.layout.boxes import TILE_BYTES, Box, tiles
from elastic_core.state.layout.dtypes import dtype_of
from elastic_core.state.layout.layout import TensorMeta
from elastic_core.state.reshard.change_plan import Plan
from elastic_core.state.reshard.pieces import Link, Piece

_PULLS = 4  # at once, of a quarter of a tile each


@dataclass(frozen=True, slots=True)
class Part:
    """A box of a tensor in the memory of one device."""

    box: Box
    tensor: Tensor

    def view(self, box: Box) -> Tensor:
        """The memory of a box within this one."""
        return self.tensor[box.slices(self.box.start)]


Memory = Mapping[str, Sequence[Part]]  # what one device has of each tensor


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


FillFromStore = Callable[[Sequence[Destination]], int]


def find(memory: Memory, name: str, box: Box) -> Tensor:
    """The memory of a box, which one part has to hold whole."""
    for part in memory.get(name, ()):
        if part.box.intersect(box) == box:
            return part.view(box)
    raise InfrastructureError(f"This memory does not hold {box} of {name}: the plan is of another state.")


def allocate(boxes: Mapping[str, Box], metas: Mapping[str, TensorMeta]) -> dict[str, tuple[Part]]:
    """Uninitialised memory of this process for a rank's boxes."""
    return {n: (Part(box, torch.empty(box.shape, dtype=dtype_of(metas[n].dtype))),) for n, box in boxes.items()}


@dataclass(slots=True)
class Received:
    """Bytes that reached memory, by the link over which they came, and bytes read from the store (whole tiles)."""

    by_link: dict[Link, int] = field(default_factory=lambda: dict.fromkeys(Link, 0))
    store_bytes: int = 0

    def add(self, other: Received) -> None:
        for link, size in other.by_link.items():
            self.by_link[link] += size
        self.store_bytes += other.store_bytes


class Transformer:
    """What one rank does of a plan. `new` is the memory of every rank of its host, by rank, its own among them.

    `sources` are the devices that its pieces name; `fill_from_store` reads the checkpoint of the same state, None where
    the plan takes nothing from it.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        new: Mapping[int, Memory],
        sources: Mapping[Slot, Source],
        fill_from_store: FillFromStore | None = None,
    ) -> None:
        self._pieces = list(plan.pieces_of(rank))
        self._slot = plan.target.slots[rank]
        self._new = new
        self._sources = sources
        self._fill = fill_from_store

    def first(self) -> Received:
        """Fetch all but what is passed on. Memory of the sources must not change before every rank is through."""
        read = [piece for piece in self._pieces if piece.link is Link.STORE]
        pulled = [piece for piece in self._pieces if piece.link is not Link.STORE and not piece.relay]
        received = self._pull(pulled)
        received.add(self._read(read))
        return received

    def relays(self, sources: Mapping[Slot, Source] | None = None) -> Received:
        """Fetch what is passed on, once every rank has done `first`, from the new memory of the slots."""
        return self._pull([piece for piece in self._pieces if piece.relay], sources)

    def _pull(self, pieces: Sequence[Piece], sources: Mapping[Slot, Source] | None = None) -> Received:
        known = self._sources if sources is None else sources
        received = Received()
        with ThreadPoolExecutor(_PULLS, thread_name_prefix="pull") as pool:
            for link, num_bytes, copies in pool.map(
                lambda job: self._pull_tile(job[0], job[1], known), _in_tiles(pieces)
            ):
                received.by_link[link] += num_bytes
                received.by_link[Link.HOST] += num_bytes * copies
        return received

    def _pull_tile(self, piece: Piece, box: Box, sources: Mapping[Slot, Source]) -> tuple[Link, int, int]:
        assert piece.source is not None
        source = sources.get(piece.source)
        if source is None:
            raise InfrastructureError(f"Nobody gave the memory of {piece.source}, which holds {box} of {piece.tensor}.")
        first, *others = (find(self._new[rank], piece.tensor, box) for rank in piece.targets)
        source.read(piece.tensor, box, first)
        for other in others:
            other.copy_(first)
        crash_here("transfer.piece-fetched")
        return piece.link, first.nbytes, len(others)

    def _read(self, pieces: Sequence[Piece]) -> Received:
        received = Received()
        if not pieces:
            return received
        if self._fill is None:
            raise InfrastructureError(f"{pieces[0].box} of {pieces[0].tensor} is in no memory, and there is no store.")
        places: list[Destination] = []
        for piece in pieces:
            views = [find(self._new[rank], piece.tensor, piece.box) for rank in piece.targets]
            places.extend(Destination(piece.tensor, piece.box, view) for view in views)
            received.by_link[Link.STORE] += views[0].nbytes
            received.by_link[Link.HOST] += views[0].nbytes * (len(views) - 1)
        received.store_bytes = self._fill(places)
        return received


def _in_tiles(pieces: Iterable[Piece]) -> Iterator[tuple[Piece, Box]]:
    """Pieces cut so small that those that are pulled at once make up one tile."""
    for piece in pieces:
        for box in tiles(piece.box, piece.num_bytes // piece.box.volume, TILE_BYTES // _PULLS):
            yield piece, box
