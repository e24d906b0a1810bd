"""Ranks that read one checkpoint together: of what several ranks of a host want, one reads each part of the store.

All compute the same plan (`reshard.plan_reading`) and its rounds (`state.rounds`). What a rank alone wants it reads
into its own tensors, and what others of its host want too into its outbox, shared memory that they have mapped. When
all have read a round and every checksum held, each takes what it wants out of the outboxes, and then fills another part
of its own: one meeting a round is enough, and memory holds a rank's tensors and one tile, however large the checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from elastic_core.domain import Slot
from elastic_core.state import shared
from elastic_core.state.boxes import Box
from elastic_core.state.contract import CheckpointStore
from elastic_core.state.dtypes import dtype_of, itemsize
from elastic_core.state.layout import TensorMeta, of_one_rank
from elastic_core.state.manifest import Manifest
from elastic_core.state.overlap import Wanted
from elastic_core.state.reading import Destination, fill
from elastic_core.state.reshard import Link, Piece, plan_reading
from elastic_core.state.rounds import Round, Rounds, rounds_of, runs_of
from elastic_core.state.taking_part import Exchange, fetched, map_together, together
from elastic_core.state.transform import Part

READING = "Reading the checkpoint"  # that failed
_OUTBOX = "outbox"


@dataclass(frozen=True, slots=True, kw_only=True)
class Readers:
    """The ranks, and which of them this is. `room`: free bytes of the memory file system `folder`, by rank."""

    rank: int
    slots: Sequence[Slot]
    exchange: Exchange
    room: Sequence[int]
    folder: Path = shared.FOLDER

    @property
    def mates(self) -> list[int]:
        """The ranks of this rank's host, this one among them."""
        return [rank for rank, slot in enumerate(self.slots) if slot.node == self.slots[self.rank].node]


def read_together(
    store: CheckpointStore,
    manifest: Manifest,
    wanted: Sequence[Wanted],
    readers: Readers,
    say: Callable[[str], None],
) -> tuple[dict[str, Tensor], int]:
    """This rank's tensors, on the CPU, and the bytes that it read. Collective.

    `wanted`: the boxes of every rank, by rank. Ranks that cannot share memory read for themselves, and that is said.
    Raises on every rank alike: `CorruptCheckpoint`, or `InfrastructureError` where the store does not answer.
    """
    rounds, outboxes = _prepared(manifest, wanted, readers, say)
    parts = {
        name: Part(box, torch.empty(box.shape, dtype=dtype_of(manifest.tensors[name].dtype)))
        for name, box in wanted[readers.rank].items()
    }
    num_bytes, num_rounds = 0, max(len(its) for its in rounds)
    for number in range(num_rounds):
        mine, last = _round(rounds, readers.rank, number), number == num_rounds - 1
        work = partial(_read, store, manifest, mine, parts, outboxes.get(readers.rank), last)
        num_bytes += together(readers.exchange, work, READING)[0]
        for mate, outbox in outboxes.items():
            _take(_round(rounds, mate, number), readers.rank, parts, outbox)
    return {name: part.tensor for name, part in parts.items()}, num_bytes


def _prepared(
    manifest: Manifest, wanted: Sequence[Wanted], readers: Readers, say: Callable[[str], None]
) -> tuple[Rounds, dict[int, Tensor]]:
    names = {name for boxes in wanted for name in boxes}
    metas = {name: TensorMeta(manifest.tensors[name].dtype, manifest.tensors[name].shape) for name in sorted(names)}
    tiles = {name: [tile.box for tile in manifest.tensors[name].tiles] for name in metas}
    try:
        runs = runs_of(manifest, [name for name in metas if not of_one_rank(name)])  # each rank reads its own itself
        pieces = plan_reading(metas, wanted, readers.slots, tiles, runs)
        rounds = rounds_of(pieces, manifest, wanted, readers.slots, readers.room)
        return rounds, _outboxes(rounds, readers)
    except shared.CannotShare as error:
        say(f"each rank reads the checkpoint for itself: {error}")
    alone = [
        Piece(name, box, box.volume * itemsize(metas[name].dtype), Link.STORE, None, rank, (rank,))
        for rank, boxes in enumerate(wanted)
        for name, box in boxes.items()
    ]
    everyone = [Slot(f"rank-{rank}", 0, slot.type) for rank, slot in enumerate(readers.slots)]
    return rounds_of(alone, manifest, wanted, everyone, readers.room), {}


def _outboxes(rounds: Rounds, readers: Readers) -> dict[int, Tensor]:
    """Those of this rank's host, by rank; none if nobody on any host shares anything."""
    sizes = [max(one.end for one in its) for its in rounds]
    if not any(sizes):
        return {}
    metas = {f"{_OUTBOX}-{rank}": TensorMeta("uint8", (size,)) for rank, size in enumerate(sizes)}
    boxes = {mate: {f"{_OUTBOX}-{mate}": Box.whole((sizes[mate],))} for mate in readers.mates}
    memories = map_together(boxes, readers.rank, metas, readers.exchange, readers.folder)
    return {mate: memory[f"{_OUTBOX}-{mate}"][0].tensor for mate, memory in memories.items()}


def _round(rounds: Rounds, rank: int, number: int) -> Round:
    return rounds[rank][number] if number < len(rounds[rank]) else Round()


def _read(
    store: CheckpointStore,
    manifest: Manifest,
    mine: Round,
    parts: Mapping[str, Part],
    outbox: Tensor | None,
    last: bool,
) -> tuple[int, None]:
    """The bytes of a round read; nothing to tell of it."""
    places = [
        Destination(parcel.tensor, parcel.box, parts[parcel.tensor].view(parcel.box))
        for parcel in mine.parcels
        if parcel.posted is None
    ]
    scratch = None
    if outbox is not None and mine.end:
        posted = dict.fromkeys(parcel.posted for parcel in mine.parcels if parcel.posted is not None)
        places += [Destination(one.tensor, one.box, one.within(outbox)) for one in posted]
        scratch = outbox[mine.scratch.start : mine.scratch.stop]
    num_bytes = fill(store, manifest, places, mine.heads, scratch)
    return fetched(num_bytes) if last else num_bytes, None


def _take(theirs: Round, rank: int, parts: Mapping[str, Part], outbox: Tensor) -> None:
    for parcel in theirs.parcels:
        if parcel.posted is not None and rank in parcel.targets:
            parts[parcel.tensor].view(parcel.box).copy_(parcel.within(outbox))
