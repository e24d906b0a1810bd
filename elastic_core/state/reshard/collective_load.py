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

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from torch import Tensor

from elastic_core.domain import Slot
from elastic_core.errors import CorruptCheckpoint, InfrastructureError
from elastic_core.state.format.manifest import Manifest
from elastic_core.state.layout.boxes import Box
from elastic_core.state.layout.layout import TensorMeta, of_one_rank
from elastic_core.state.layout.overlap import WantedBoxes
from elastic_core.state.reshard import shared
from elastic_core.state.reshard.change_plan import plan_load
from elastic_core.state.reshard.exchange import map_collectively, run_on_all_ranks
from elastic_core.state.reshard.mapped_files import MappedFiles, map_files, stretches_of
from elastic_core.state.reshard.memories import MemorySource, Part, Received, Source
from elastic_core.state.reshard.peers import Address, PeerSource, RangeServer
from elastic_core.state.reshard.pieces import Link, Piece
from elastic_core.state.reshard.rank_load import (
    NOTHING_HELD,
    READING,
    Checkpoint,
    LoadGroup,
    OldMemories,
    RankLoad,
    Say,
)
from elastic_core.state.reshard.rounds import PULLS, Rounds, rounds_of, runs_of
from elastic_core.state.stores.store import CheckpointStore

_STAGING = "staging"
NO_MEMORY: Mapping[str, Tensor] = {}


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
        load = RankLoad(group, wanted[group.rank], metas, old, checkpoint, staging_buffers, pool, say, into, mapped)
        load.expect(pieces, [part for phase in phases for planned in phase[group.rank] for part in planned.tile_parts])
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


def _any_stored(pieces: Iterable[Piece]) -> bool:
    return any(piece.link is Link.STORE for piece in pieces)
