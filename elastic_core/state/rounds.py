"""Who reads which tiles of a checkpoint when, so that ranks of a host share what they read by way of small memory.

A rank reads the tiles of its pieces in the order of their files, each tile once. What others of its host want of a tile
is a parcel with a place in the reader's outbox; a round is what fills one. Computed alike by every rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from elastic_core.domain import Slot
from elastic_core.state.boxes import Box
from elastic_core.state.dtypes import dtype_of, itemsize
from elastic_core.state.manifest import Manifest, Tile
from elastic_core.state.reading import GAP_BYTES, RUN_BYTES
from elastic_core.state.reshard import Piece, Runs
from elastic_core.state.shared import CannotShare

_HALF_BYTES = 64 << 20  # of an outbox at most, which has two halves: one is read from while the other is filled
_ALIGNMENT = 64  # of parcels in it, as their elements need


@dataclass(frozen=True, slots=True)
class Parcel:
    """A part of one tile, for `targets`. `place`: its first byte in a half of its reader's outbox, None if it is for
    the reader alone."""

    tensor: str
    box: Box
    dtype: str
    file: str
    offset: int  # of its tile in the file
    targets: tuple[int, ...]
    place: int | None = None

    @property
    def num_bytes(self) -> int:
        return self.box.volume * itemsize(self.dtype)

    def within(self, half: Tensor) -> Tensor:
        """Its memory in a half of the outbox."""
        assert self.place is not None, "nobody else wants it"
        return half[self.place : self.place + self.num_bytes].view(dtype_of(self.dtype)).view(self.box.shape)


@dataclass(frozen=True, slots=True)
class Round:
    """What one rank reads at a time. `heads`: files whose header it checks, for its host; `posted`: bytes of outbox."""

    parcels: tuple[Parcel, ...] = ()
    posted: int = 0
    heads: frozenset[str] = frozenset()


Rounds = Sequence[Sequence[Round]]  # by rank


def runs_of(manifest: Manifest, names: Collection[str]) -> Runs:
    """The tiles of those tensors that one request could fetch."""
    in_file: dict[str, list[tuple[int, str, Tile]]] = defaultdict(list)
    for name in names:
        for tile in manifest.tensors[name].tiles:
            in_file[tile.file].append((tile.offset, name, tile))
    runs: dict[tuple[str, Box], int] = {}
    number = -1
    for tiles in in_file.values():
        begin = end = -1
        for offset, name, tile in sorted(tiles, key=lambda one: one[:2]):
            if begin < 0 or offset - end > GAP_BYTES or offset + tile.length - begin > RUN_BYTES:
                number, begin = number + 1, offset
            end = offset + tile.length
            runs[name, tile.box] = number
    return runs


def rounds_of(pieces: Iterable[Piece], manifest: Manifest, slots: Sequence[Slot], room: Sequence[int]) -> Rounds:
    """`room`: free bytes of memory to share, by rank. Raises `CannotShare` where that does not hold a tile for each."""
    tiles: list[dict[tuple[str, int], list[Parcel]]] = [defaultdict(list) for _ in slots]
    for piece in pieces:
        entry = manifest.tensors[piece.tensor]
        for tile in entry.tiles:
            part = tile.box.intersect(piece.box)
            if part is not None:
                parcel = Parcel(piece.tensor, part, entry.dtype, tile.file, tile.offset, piece.targets)
                tiles[piece.fetcher][tile.file, tile.offset].append(parcel)
    found = []
    for rank, slot in enumerate(slots):
        mates = [other for other, its in enumerate(slots) if its.node == slot.node]
        limit = min(_HALF_BYTES, min(room[mate] for mate in mates) // (4 * len(mates)))
        found.append(_rounds(rank, [tiles[rank][key] for key in sorted(tiles[rank])], limit))
    return _with_heads(found, slots)


def _rounds(rank: int, tiles: Iterable[Sequence[Parcel]], limit: int) -> list[Round]:
    rounds: list[Round] = []
    parcels: list[Parcel] = []
    posted = 0
    for tile in tiles:
        needed = sum(_padded(parcel) for parcel in tile if parcel.targets != (rank,))
        if needed > limit:
            raise CannotShare(f"rank {rank} has room to share {limit} bytes at a time, and needs {needed}.")
        if posted + needed > limit:
            rounds.append(Round(tuple(parcels), posted))
            parcels, posted = [], 0
        for parcel in tile:
            if parcel.targets == (rank,):
                parcels.append(parcel)
            else:
                parcels.append(replace(parcel, place=posted))
                posted += _padded(parcel)
    return [*rounds, Round(tuple(parcels), posted)]


def _padded(parcel: Parcel) -> int:
    return parcel.num_bytes + -parcel.num_bytes % _ALIGNMENT


def _with_heads(rounds: Rounds, slots: Sequence[Slot]) -> Rounds:
    """Of each host one checks a file's header: who reads the first tile of it."""
    firsts: dict[tuple[str, str], tuple[int, int, int]] = {}  # by host and file: offset, rank, number of its round
    for rank, slot in enumerate(slots):
        for number, one in enumerate(rounds[rank]):
            for parcel in one.parcels:
                here = (parcel.offset, rank, number)
                key = (slot.node, parcel.file)
                firsts[key] = min(firsts.get(key, here), here)
    heads: dict[tuple[int, int], set[str]] = defaultdict(set)
    for (_, file), (_, rank, number) in firsts.items():
        heads[rank, number].add(file)
    return [
        [replace(one, heads=frozenset(heads[rank, number])) for number, one in enumerate(its)]
        for rank, its in enumerate(rounds)
    ]
