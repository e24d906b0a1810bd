"""What one rank does of a collective load: its own fetches and its parts of what others of its host fetched.

`state.reshard.collective_load` makes the plan, which is the same on every rank, and has each carry out its rounds.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from elastic_core.crashing import crash_here
from elastic_core.domain import Slot
from elastic_core.errors import InfrastructureError
from elastic_core.host.network.interfaces import LOOPBACK
from elastic_core.state.format.manifest import Manifest
from elastic_core.state.format.read_plan import Destination
from elastic_core.state.format.reading import fill
from elastic_core.state.layout.boxes import Box
from elastic_core.state.layout.dtypes import dtype_of, itemsize
from elastic_core.state.layout.layout import TensorMeta
from elastic_core.state.layout.overlap import HeldBoxes, WantedBoxes
from elastic_core.state.reshard import shared
from elastic_core.state.reshard.exchange import Exchange, run_on_all_ranks
from elastic_core.state.reshard.mapped_files import MappedFiles, Stretch
from elastic_core.state.reshard.memories import Memory, Part, Received, Source
from elastic_core.state.reshard.peers import Address
from elastic_core.state.reshard.pieces import Link, Piece
from elastic_core.state.reshard.rounds import Round, Rounds, TilePart
from elastic_core.state.stores.store import CheckpointStore

READING = "Reading the checkpoint"  # that failed

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadGroup:
    """The ranks of one load; which of them this is. `room`: free bytes of the memory file system `folder`, by rank."""

    rank: int
    slots: Sequence[Slot]
    exchange: Exchange
    room: Sequence[int]
    folder: Path = shared.FOLDER

    @property
    def ranks_on_host(self) -> list[int]:
        """The ranks of this rank's host, this one among them."""
        return [rank for rank, slot in enumerate(self.slots) if slot.node == self.slots[self.rank].node]


@dataclass(frozen=True, slots=True, kw_only=True)
class OldMemories:
    """Memories that hold parts of the state, by slot. They do not change, and outlive the load on every rank, but for
    what they are told to `let_go`.

    `boxes` is the same on every rank. `own` is what this process holds itself, on its own slot; the others are served
    (`state.reshard.peers`) at `addresses`, to those who know the `secret`. `host`: where this rank serves what it
    passes on. `let_go` is told each tensor of `own` as soon as no rank will read it from there any more, this one
    included; from any thread.
    """

    boxes: Mapping[Slot, HeldBoxes] = field(default_factory=dict)
    addresses: Mapping[Slot, Address] = field(default_factory=dict)
    own: Memory = field(default_factory=dict)
    secret: bytes = b""
    host: str = LOOPBACK
    let_go: Callable[[str], object] = lambda _name: None


NOTHING_HELD = OldMemories()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where what no memory holds is read. Raises as `fill`."""

    store: CheckpointStore
    manifest: Manifest

    def fill(self, places: Sequence[Destination], heads: frozenset[str], scratch: Tensor | None) -> int:
        """The bytes read. `heads` and `scratch` as in `state.format.reading.fill`."""
        return fill(self.store, self.manifest, places, heads, scratch)


class RankLoad:
    """One rank's tensors as they fill, round by round."""

    def __init__(
        self,
        group: LoadGroup,
        wanted: WantedBoxes,
        metas: Mapping[str, TensorMeta],
        old: OldMemories,
        checkpoint: Checkpoint | None,
        staging_buffers: Mapping[int, Tensor],
        pool: ThreadPoolExecutor,
        say: Say,
        into: Mapping[str, Tensor],
        mapped: MappedFiles | None,
    ) -> None:
        """`mapped`: the store's pieces come from these files, with the first round."""
        self._group, self._checkpoint, self._say, self._pool = group, checkpoint, say, pool
        self._staging_buffers, self._metas = staging_buffers, metas
        self._lock = threading.Lock()
        self._gone: set[Slot] = set()  # memories that have failed to give something are not asked again
        self._let_go = old.let_go
        self._local: Counter[str] = Counter()  # parts still to come from this rank's own memory, of those let go then
        own, self._old_names = old.own, tuple(old.own)
        kept = {name: _as_wanted(own.get(name, ()), box) for name, box in wanted.items()}
        self._kept = {name for name, part in kept.items() if part is not None}
        served = {part.tensor.untyped_storage().data_ptr() for parts in own.values() for part in parts}
        self.parts = {
            name: kept[name] or _part(box, metas[name], into.get(name), served) for name, box in wanted.items()
        }
        self.received = Received()
        self._mapped = mapped

    def expect(self, pieces: Sequence[Piece], tile_parts: Iterable[TilePart]) -> None:
        """What all ranks fetch, and this one's parts of it: what nobody reads of its old memory is let go here."""
        slot, rank = self._group.slots[self._group.rank], self._group.rank
        own = set(self._old_names)
        own -= {piece.tensor for piece in pieces if piece.source == slot and piece.fetcher != rank and not piece.relay}
        self._local.update(part.tensor for part in tile_parts if part.link is Link.LOCAL and part.tensor in own)
        for name in own - self._local.keys():
            self._let_go(name)
        if self._mapped is not None:
            for piece in pieces:
                if piece.link is Link.STORE and piece.fetcher == rank:
                    self.received.count(Link.STORE, piece.num_bytes, len(piece.targets))

    def run(self, rounds: Rounds, sources: Mapping[Slot, Source], last: bool) -> None:
        """Ends with an exchange: then no rank reads from the sources any more. `last`: nothing is fetched after it."""
        num_rounds = max(len(of_rank) for of_rank in rounds)
        for number in range(num_rounds):
            own = _round(rounds, self._group.rank, number)
            work = partial(self._fetch, own, sources, last and number == num_rounds - 1)
            run_on_all_ranks(self._group.exchange, work, READING)
            for other, staging_buffer in self._staging_buffers.items():
                self._take(_round(rounds, other, number), staging_buffer)

    def _fetch(self, own: Round, sources: Mapping[Slot, Source], last: bool) -> tuple[None, None]:
        """Of a round; nothing to tell of it."""
        if self._mapped is not None:
            self._take_mapped(self._mapped)
            self._mapped = None
        pulls = [tile_part for tile_part in own.tile_parts if tile_part.link is not Link.STORE]
        missing = [part for part in self._pool.map(lambda pull: self._pull(pull, sources), pulls) if part is not None]
        read = [*(tile_part for tile_part in own.tile_parts if tile_part.link is Link.STORE), *missing]
        if read:
            self._read(read, own)
        if last:
            crash_here("transfer.fetched")
        return None, None

    def _take_mapped(self, mapped: MappedFiles) -> None:
        def take(window: Sequence[Stretch]) -> int:
            return mapped.take(window, lambda tensor, box: self.parts[tensor].view(box))

        cores_of_rank = len(os.sched_getaffinity(0)) // len(self._group.ranks_on_host)
        over = self._pool.map if cores_of_rank > 1 else map  # threads that wait for each other cost more than copying
        self.received.store_bytes += sum(over(take, mapped.windows()))

    def _pull(self, pull: TilePart, sources: Mapping[Slot, Source]) -> TilePart | None:
        """Take a part from the memory that has it; gives the part back where it is to come from the store after all."""
        if pull.link is not Link.LOCAL or pull.tensor not in self._kept:
            assert pull.source is not None
            try:
                if pull.source not in self._gone:
                    self._source(pull, sources).read(pull.tensor, pull.box, self._place_of(pull))
            except InfrastructureError as error:
                if self._checkpoint is None:
                    raise
                self._give_up(pull.source, error)
            if pull.source in self._gone:
                return replace(pull, source=None, link=Link.STORE)
        if pull.link is not Link.LOCAL:
            crash_here("transfer.piece-fetched")
        with self._lock:
            self.received.count(pull.link, self._num_bytes(pull), len(pull.targets))
            last = pull.link is Link.LOCAL and self._local[pull.tensor] == 1
            self._local[pull.tensor] -= pull.link is Link.LOCAL
        if last:
            self._let_go(pull.tensor)
        return None

    def _give_up(self, source: Slot, error: InfrastructureError) -> None:
        with self._lock:
            first = source not in self._gone
            self._gone.add(source)
        if first:
            self._say(f"what {source} holds is read from the store instead: {error}")

    @staticmethod
    def _source(pull: TilePart, sources: Mapping[Slot, Source]) -> Source:
        source = sources.get(pull.source) if pull.source is not None else None
        if source is None:
            raise InfrastructureError(
                f"Nobody gave the memory of {pull.source}, which holds {pull.box} of {pull.tensor}."
            )
        return source

    def _read(self, tile_parts: Sequence[TilePart], own: Round) -> None:
        assert self._checkpoint is not None, "without one no piece is of the store"
        places = [
            Destination(part.tensor, part.box, self._place_of(part)) for part in tile_parts if part.staged is None
        ]
        scratch = None
        staging_buffer = self._staging_buffers.get(self._group.rank)
        if staging_buffer is not None and own.end:
            staged = dict.fromkeys(part.staged for part in tile_parts if part.staged is not None)
            places += [Destination(part.tensor, part.box, part.within(staging_buffer)) for part in staged]
            scratch = staging_buffer[own.scratch.start : own.scratch.stop]
        self.received.store_bytes += self._checkpoint.fill(places, own.heads, scratch)
        for part in tile_parts:
            self.received.count(Link.STORE, self._num_bytes(part), len(part.targets))

    def _place_of(self, part: TilePart) -> Tensor:
        """Where a rank puts what it fetches."""
        if part.staged is None:
            return self.parts[part.tensor].view(part.box)
        return part.within(self._staging_buffers[self._group.rank])

    def _num_bytes(self, part: TilePart) -> int:
        return part.box.volume * itemsize(self._metas[part.tensor].dtype)

    def _take(self, theirs: Round, staging_buffer: Tensor) -> None:
        for part in theirs.tile_parts:
            if part.staged is not None and self._group.rank in part.targets:
                self.parts[part.tensor].view(part.box).copy_(part.within(staging_buffer))


def _as_wanted(parts: Sequence[Part], box: Box) -> Part | None:
    return next((part for part in parts if part.box == box), None)


def _part(box: Box, meta: TensorMeta, memory: Tensor | None, served: Collection[int]) -> Part:
    """In this memory, if it fits and no other rank may be reading from it; else in new memory."""
    dtype = dtype_of(meta.dtype)
    if (
        memory is not None
        and (tuple(memory.shape), memory.dtype, memory.device.type) == (box.shape, dtype, "cpu")
        and memory.is_contiguous()
        and memory.untyped_storage().data_ptr() not in served
    ):
        return Part(box, memory)
    return Part(box, torch.empty(box.shape, dtype=dtype))


def _round(rounds: Rounds, rank: int, number: int) -> Round:
    return rounds[rank][number] if number < len(rounds[rank]) else Round()
