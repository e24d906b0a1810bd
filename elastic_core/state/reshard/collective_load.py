"""Collective load: ranks take a state together, from memories that still hold it and else from the store.

One way for a restore, a resize in place and a change of layout. All ranks compute the same plan
(`change_plan.plan_load`) and schedule (`state.reshard.rounds`); each fetches its own pieces, with no coordinator
(Tenplex, section 5). A tensor that a rank holds already as it is needed stays where it is. Of a checkpoint whose files
are on the ranks' hosts each takes its parts from the page cache (`state.reshard.mapped_files`). Else what a rank alone
needs goes straight to its own tensors, the model's if they fit; what others of its host need too goes into its staging
buffer, shared memory that they have mapped. When all have fetched a round and every checksum held, each rank copies its
parts out of the staging buffers and fills another part of its own: one exchange a round is enough, and memory holds a
rank's tensors and one tile, however large the state. Ranks that cannot share memory fetch for themselves; what a memory
does not give after all comes from the store. Pieces that are passed on between hosts (`relay`) are fetched when all
else is there, from the new memory of the rank that read them.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from elastic_core.crashing import crash_here
from elastic_core.domain import Slot
from elastic_core.errors import CorruptCheckpoint, InfrastructureError
from elastic_core.host.network.interfaces import LOOPBACK
from elastic_core.state.format.manifest import Manifest
from elastic_core.state.format.read_plan import Destination
from elastic_core.state.format.reading import fill
from elastic_core.state.layout.boxes import Box
from elastic_core.state.layout.dtypes import dtype_of, itemsize
from elastic_core.state.layout.layout import TensorMeta, of_one_rank
from elastic_core.state.layout.overlap import HeldBoxes, WantedBoxes
from elastic_core.state.reshard import shared
from elastic_core.state.reshard.change_plan import plan_load
from elastic_core.state.reshard.exchange import Exchange, map_collectively, run_on_all_ranks
from elastic_core.state.reshard.mapped_files import MappedFiles, Stretch, map_files, stretches_of
from elastic_core.state.reshard.memories import Memory, MemorySource, Part, Received, Source
from elastic_core.state.reshard.peers import Address, PeerSource, RangeServer
from elastic_core.state.reshard.pieces import Link, Piece
from elastic_core.state.reshard.rounds import PULLS, Round, Rounds, TilePart, rounds_of, runs_of
from elastic_core.state.stores.store import CheckpointStore

READING = "Reading the checkpoint"  # that failed
_STAGING = "staging"

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
NO_MEMORY: Mapping[str, Tensor] = {}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where what no memory holds is read. Raises as `fill`."""

    store: CheckpointStore
    manifest: Manifest

    def fill(self, places: Sequence[Destination], heads: frozenset[str], scratch: Tensor | None) -> int:
        """The bytes read. `heads` and `scratch` as in `state.format.reading.fill`."""
        return fill(self.store, self.manifest, places, heads, scratch)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A rank's tensors by name, on the CPU or where they were; what of them came over which link."""

    tensors: dict[str, Tensor]
    received: Received


def load_collectively(
    store: CheckpointStore,
    manifest: Manifest,
    wanted: Sequence[WantedBoxes],
    group: LoadGroup,
    say: Say,
    old: OldMemories = NOTHING_HELD,
    into: Mapping[str, Tensor] = NO_MEMORY,
) -> Loaded:
    """What this rank wants of a checkpoint. Collective.

    `wanted`: the boxes of every rank, by rank. `old` holds parts of the very same state. `into`: memory of this rank's
    for what it wants, by name; what fits none of it gets new memory. Ranks that cannot share memory fetch for
    themselves, and that is said. Raises on every rank alike, and then `into` holds anything: `CorruptCheckpoint`, or
    `InfrastructureError` where the store does not answer.
    """
    names = {name for boxes in wanted for name in boxes}
    metas = {name: manifest.metas[name] for name in sorted(names)}
    tiles = {name: [tile.box for tile in manifest.tensors[name].tiles] for name in metas}
    runs = runs_of(manifest, [name for name in metas if not of_one_rank(name)])  # each rank reads its own itself
    checkpoint = Checkpoint(store, manifest)
    pieces = plan_load(metas, old.boxes, wanted, group.slots, tiles, runs)
    try:
        with ExitStack() as stack:
            look = partial(stretches_of, pieces, manifest, group.rank, group.ranks_on_host)
            mapped = map_files(store, manifest, look, group.exchange, stack) if _any_stored(pieces) else None
            if mapped is not None:
                return carry_out(pieces, metas, wanted, group, old, checkpoint, say, into, mapped)
    except shared.CannotShare:
        pass  # said below
    except (CorruptCheckpoint, InfrastructureError) as error:  # of all ranks alike
        say(f"the checkpoint is read once more, range by range: {error}")
    try:
        return carry_out(pieces, metas, wanted, group, old, checkpoint, say, into)
    except shared.CannotShare as error:
        say(f"each rank reads the checkpoint for itself: {error}")
    alone = {slot: Slot(f"rank-{rank}", 0, slot.type) for rank, slot in enumerate(group.slots)}
    apart = OldMemories(
        boxes={alone.get(slot, slot): boxes for slot, boxes in old.boxes.items()},
        addresses={alone.get(slot, slot): address for slot, address in old.addresses.items()},
        own=old.own, secret=old.secret, host=old.host, let_go=old.let_go,
    )  # fmt: skip
    hosts_of_one = LoadGroup(
        rank=group.rank, slots=list(alone.values()), exchange=group.exchange, room=group.room, folder=group.folder
    )
    pieces = plan_load(metas, apart.boxes, wanted, hosts_of_one.slots, tiles, {})
    return carry_out(pieces, metas, wanted, hosts_of_one, apart, checkpoint, say, into)


def carry_out(
    pieces: Sequence[Piece],
    metas: Mapping[str, TensorMeta],
    wanted: Sequence[WantedBoxes],
    group: LoadGroup,
    old: OldMemories,
    checkpoint: Checkpoint | None,
    say: Say,
    into: Mapping[str, Tensor] = NO_MEMORY,
    mapped: MappedFiles | None = None,
) -> Loaded:
    """The same by a plan that is made already; without `checkpoint` none of its pieces is of the store. Collective.

    `mapped`, on all ranks or on none: the store's pieces come from these files.
    Raises `shared.CannotShare` before anything is fetched, on every rank alike.
    """
    manifest = checkpoint.manifest if checkpoint is not None else None
    fetched = pieces if mapped is None else [piece for piece in pieces if piece.link is not Link.STORE]
    kinds = [[piece for piece in fetched if piece.relay == relay] for relay in (False, True)]
    phases = [rounds_of(kinds[0], metas, manifest, wanted, group.slots, group.room)]
    if kinds[1]:
        phases.append(rounds_of(kinds[1], metas, manifest, wanted, group.slots, group.room))
    staging_buffers = _staging_buffers(phases, group)
    with ExitStack() as stack:
        sources: dict[Slot, Source] = {group.slots[group.rank]: MemorySource(old.own)} if old.own else {}
        for slot, address in old.addresses.items():
            sources.setdefault(slot, _peer(address, old.secret, stack))
        pool = stack.enter_context(ThreadPoolExecutor(PULLS, thread_name_prefix="pull"))
        load = _Load(group, wanted[group.rank], metas, old, checkpoint, staging_buffers, pool, say, into)
        load.expect(pieces, [part for phase in phases for planned in phase[group.rank] for part in planned.tile_parts])
        if mapped is not None:
            load.take_with_first_round(mapped, pieces)
        for phase in phases:
            if phase is not phases[0]:
                sources = _new_memories(kinds[1], load.parts, group, old, stack)
            load.run(phase, sources, last=phase is phases[-1])
    return Loaded({name: part.tensor for name, part in load.parts.items()}, load.received)


def _staging_buffers(phases: Sequence[Rounds], group: LoadGroup) -> dict[int, Tensor]:
    """Those of this rank's host, by rank; none if nobody on any host shares anything."""
    ranks = range(len(group.slots))
    sizes = [max(planned.end for rounds in phases for planned in rounds[rank]) for rank in ranks]
    if not any(sizes):
        return {}
    metas = {f"{_STAGING}-{rank}": TensorMeta("uint8", (size,)) for rank, size in enumerate(sizes)}
    boxes = {other: {f"{_STAGING}-{other}": Box.whole((sizes[other],))} for other in group.ranks_on_host}
    memories = map_collectively(boxes, group.rank, metas, group.exchange, group.folder)
    return {other: memory[f"{_STAGING}-{other}"][0].tensor for other, memory in memories.items()}


def _peer(address: Address, secret: bytes, stack: ExitStack) -> PeerSource:
    peer = PeerSource(address, secret)
    stack.callback(peer.close)
    return peer


def _new_memories(
    pieces: Sequence[Piece], parts: Mapping[str, Part], group: LoadGroup, old: OldMemories, stack: ExitStack
) -> dict[Slot, Source]:
    """What ranks have fetched and pass on to other hosts, served until the end of `stack`. Collective."""
    passing_on = {piece.source for piece in pieces}

    def serve() -> tuple[None, Address | None]:
        if group.slots[group.rank] not in passing_on:
            return None, None
        memory = {name: (part,) for name, part in parts.items()}
        return None, stack.enter_context(RangeServer(memory, old.secret, old.host)).address

    _, addresses = run_on_all_ranks(group.exchange, serve, READING)
    return {
        slot: _peer((address[0], address[1]), old.secret, stack)
        for slot, address in zip(group.slots, addresses, strict=True)
        if address is not None
    }


class _Load:
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
    ) -> None:
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
        self._mapped: MappedFiles | None = None

    def expect(self, pieces: Iterable[Piece], tile_parts: Iterable[TilePart]) -> None:
        """What all ranks fetch, and this one's parts of it: what nobody reads of its old memory is let go here."""
        slot, rank = self._group.slots[self._group.rank], self._group.rank
        own = set(self._old_names)
        own -= {piece.tensor for piece in pieces if piece.source == slot and piece.fetcher != rank and not piece.relay}
        self._local.update(part.tensor for part in tile_parts if part.link is Link.LOCAL and part.tensor in own)
        for name in own - self._local.keys():
            self._let_go(name)

    def take_with_first_round(self, mapped: MappedFiles, pieces: Iterable[Piece]) -> None:
        """The store's pieces come from these files."""
        self._mapped = mapped
        for piece in pieces:
            if piece.link is Link.STORE and piece.fetcher == self._group.rank:
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


def _any_stored(pieces: Iterable[Piece]) -> bool:
    return any(piece.link is Link.STORE for piece in pieces)


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
