"""Collective load: the ranks of a host read one checkpoint together, each part of the store read by one of them.

All compute the same plan (`change_plan.plan_reading`) and schedule (`state.reshard.rounds`). What a rank alone needs it
reads into its own tensors; what others of its host need too goes into its staging buffer, shared memory that they have
mapped. When all have read a round and every checksum held, each rank copies its parts out of the staging buffers and
fills another part of its own. So one exchange a round is enough, and memory holds a rank's tensors and one tile,
however large the checkpoint. Ranks that cannot share memory read for themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from elastic_core.domain import Slot
from elastic_core.state.format.manifest import Manifest
from elastic_core.state.format.read_plan import Destination
from elastic_core.state.format.reading import fill
from elastic_core.state.layout.boxes import Box
from elastic_core.state.layout.dtypes import dtype_of, itemsize
from elastic_core.state.layout.layout import TensorMeta, of_one_rank
from elastic_core.state.layout.overlap import WantedBoxes
from elastic_core.state.reshard import shared
from elastic_core.state.reshard.change_plan import plan_reading
from elastic_core.state.reshard.collective_reshard import Exchange, fetched, map_collectively, run_on_all_ranks
from elastic_core.state.reshard.pieces import Link, Piece
from elastic_core.state.reshard.rounds import Round, Rounds, rounds_of, runs_of
from elastic_core.state.reshard.transform import Part
from elastic_core.state.stores.store import CheckpointStore

READING = "Reading the checkpoint"  # that failed
_STAGING = "staging"


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


def load_collectively(
    store: CheckpointStore,
    manifest: Manifest,
    wanted: Sequence[WantedBoxes],
    group: LoadGroup,
    say: Callable[[str], None],
) -> tuple[dict[str, Tensor], int]:
    """This rank's tensors, on the CPU, and the bytes that it read. Collective.

    `wanted`: the boxes of every rank, by rank. Ranks that cannot share memory read for themselves, and that is said.
    Raises on every rank alike: `CorruptCheckpoint`, or `InfrastructureError` where the store does not answer.
    """
    rounds, staging_buffers = _prepared(manifest, wanted, group, say)
    parts = {
        name: Part(box, torch.empty(box.shape, dtype=dtype_of(manifest.tensors[name].dtype)))
        for name, box in wanted[group.rank].items()
    }
    num_bytes, num_rounds = 0, max(len(of_rank) for of_rank in rounds)
    for number in range(num_rounds):
        own, last = _round(rounds, group.rank, number), number == num_rounds - 1
        work = partial(_read, store, manifest, own, parts, staging_buffers.get(group.rank), last)
        num_bytes += run_on_all_ranks(group.exchange, work, READING)[0]
        for other, staging_buffer in staging_buffers.items():
            _take(_round(rounds, other, number), group.rank, parts, staging_buffer)
    return {name: part.tensor for name, part in parts.items()}, num_bytes


def _prepared(
    manifest: Manifest, wanted: Sequence[WantedBoxes], group: LoadGroup, say: Callable[[str], None]
) -> tuple[Rounds, dict[int, Tensor]]:
    names = {name for boxes in wanted for name in boxes}
    metas = {name: TensorMeta(manifest.tensors[name].dtype, manifest.tensors[name].shape) for name in sorted(names)}
    tiles = {name: [tile.box for tile in manifest.tensors[name].tiles] for name in metas}
    try:
        runs = runs_of(manifest, [name for name in metas if not of_one_rank(name)])  # each rank reads its own itself
        pieces = plan_reading(metas, wanted, group.slots, tiles, runs)
        rounds = rounds_of(pieces, manifest, wanted, group.slots, group.room)
        return rounds, _staging_buffers(rounds, group)
    except shared.CannotShare as error:
        say(f"each rank reads the checkpoint for itself: {error}")
    unshared = [
        Piece(name, box, box.volume * itemsize(metas[name].dtype), Link.STORE, None, rank, (rank,))
        for rank, boxes in enumerate(wanted)
        for name, box in boxes.items()
    ]
    hosts_of_one = [Slot(f"rank-{rank}", 0, slot.type) for rank, slot in enumerate(group.slots)]
    return rounds_of(unshared, manifest, wanted, hosts_of_one, group.room), {}


def _staging_buffers(rounds: Rounds, group: LoadGroup) -> dict[int, Tensor]:
    """Those of this rank's host, by rank; none if nobody on any host shares anything."""
    sizes = [max(read.end for read in of_rank) for of_rank in rounds]
    if not any(sizes):
        return {}
    metas = {f"{_STAGING}-{rank}": TensorMeta("uint8", (size,)) for rank, size in enumerate(sizes)}
    boxes = {other: {f"{_STAGING}-{other}": Box.whole((sizes[other],))} for other in group.ranks_on_host}
    memories = map_collectively(boxes, group.rank, metas, group.exchange, group.folder)
    return {other: memory[f"{_STAGING}-{other}"][0].tensor for other, memory in memories.items()}


def _round(rounds: Rounds, rank: int, number: int) -> Round:
    return rounds[rank][number] if number < len(rounds[rank]) else Round()


def _read(
    store: CheckpointStore,
    manifest: Manifest,
    own: Round,
    parts: Mapping[str, Part],
    staging_buffer: Tensor | None,
    last: bool,
) -> tuple[int, None]:
    """The bytes of a round read; nothing to tell of it."""
    places = [
        Destination(tile_part.tensor, tile_part.box, parts[tile_part.tensor].view(tile_part.box))
        for tile_part in own.tile_parts
        if tile_part.staged is None
    ]
    scratch = None
    if staging_buffer is not None and own.end:
        staged = dict.fromkeys(tile_part.staged for tile_part in own.tile_parts if tile_part.staged is not None)
        places += [Destination(part.tensor, part.box, part.within(staging_buffer)) for part in staged]
        scratch = staging_buffer[own.scratch.start : own.scratch.stop]
    num_bytes = fill(store, manifest, places, own.heads, scratch)
    return fetched(num_bytes) if last else num_bytes, None


def _take(round_: Round, rank: int, parts: Mapping[str, Part], staging_buffer: Tensor) -> None:
    for tile_part in round_.tile_parts:
        if tile_part.staged is not None and rank in tile_part.targets:
            parts[tile_part.tensor].view(tile_part.box).copy_(tile_part.within(staging_buffer))
