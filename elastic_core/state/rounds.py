"""Who reads which tiles of a checkpoint when, so that ranks of a host share what they read by way of small memory.

A rank reads the tiles of its pieces in the order of their files, each tile once. What others of its host want of a tile
is a parcel with a place in the reader's outbox; a round is what is read between two meetings of the ranks. While one is
read, what others want of the round before is taken out of the outbox, so the two lie apart in it. Computed alike by
every rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from elastic_core.domain import Slot
from elastic_core.state.boxes import TILE_BYTES, Box
from elastic_core.state.buffers import aligned
from elastic_core.state.dtypes import dtype_of, itemsize
from elastic_core.state.manifest import Manifest, Tile
from elastic_core.state.reading import GAP_BYTES, RUN_BYTES
from elastic_core.state.reshard import Piece, Runs
from elastic_core.state.shared import CannotShare

_OUTBOX_BYTES = TILE_BYTES + (64 << 10)  # at most: a tile, with the paddings of its parcels


@dataclass(frozen=True, slots=True)
class Parcel:
    """A part of one tile, for `targets`. `place`: its first byte in its reader's outbox, None if it is for the reader
    alone."""

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

    def within(self, outbox: Tensor) -> Tensor:
        """Its memory in the outbox."""
        assert self.place is not None, "nobody else wants it"
        return outbox[self.place : self.place + self.num_bytes].view(dtype_of(self.dtype)).view(self.box.shape)


@dataclass(frozen=True, slots=True)
class Round:
    """What one rank reads at a time. `heads`: files whose header it checks, for its host; `end`: of its part of the
    outbox."""

    parcels: tuple[Parcel, ...] = ()
    end: int = 0
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
        limit = min(_OUTBOX_BYTES, min(room[mate] for mate in mates) // (2 * len(mates)))
        found.append(_rounds(rank, [tiles[rank][key] for key in sorted(tiles[rank])], limit))
    return _with_heads(found, slots)


def _rounds(rank: int, tiles: Iterable[Sequence[Parcel]], limit: int) -> list[Round]:
    rounds: list[Round] = []
    before = range(0)  # bytes of the outbox that the last round takes
    for parcels, posted in _batches(rank, tiles, limit):
        begin = before.stop
        if begin + posted > limit:
            begin = 0
            if posted > before.start:
                rounds.append(Round())  # in which the others take what is there
        before = range(begin, begin + posted) if posted else range(0)
        rounds.append(Round(_placed(parcels, rank, begin), before.stop))
    return rounds


def _batches(rank: int, tiles: Iterable[Sequence[Parcel]], limit: int) -> Iterator[tuple[list[Parcel], int]]:
    """What to read at a time, and its bytes of the outbox: half of it, so that two fit, or one tile that is larger. One
    at least."""
    batch: list[Parcel] = []
    posted = 0
    for tile in tiles:
        needed = sum(_posted(parcel, rank) for parcel in tile)
        if needed > limit:
            raise CannotShare(f"rank {rank} has room to share {limit} bytes, and needs {needed}.")
        if posted + needed > limit // 2 and posted:
            yield batch, posted
            batch, posted = [], 0
        batch += tile
        posted += needed
    yield batch, posted


def _placed(parcels: Iterable[Parcel], rank: int, begin: int) -> tuple[Parcel, ...]:
    placed = []
    for parcel in parcels:
        posted = _posted(parcel, rank)
        placed.append(replace(parcel, place=begin) if posted else parcel)
        begin += posted
    return tuple(placed)


def _posted(parcel: Parcel, rank: int) -> int:
    """Bytes of the outbox that it takes."""
    return 0 if parcel.targets == (rank,) else aligned(parcel.num_bytes)


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
