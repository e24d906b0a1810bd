"""Who reads which tiles of a checkpoint when, so that ranks of a host share what they read by way of small memory.

A rank reads the tiles of its pieces in the order of their files, each tile once. A tile that others of its host want
something of is read into its outbox, shared memory of one tile, and all take their parts from there; a round is what is
read between two meetings of the ranks. While one is read, the round before is still being taken out, so the two lie
apart in the outbox, and what is left of it is scratch memory for what passes through on its way to the reader's own
tensors. Computed alike by every rank.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

from torch import Tensor

from elastic_core.domain import Slot
from elastic_core.state.boxes import TILE_BYTES, Box
from elastic_core.state.buffers import aligned
from elastic_core.state.dtypes import dtype_of, itemsize
from elastic_core.state.manifest import Manifest, Tile
from elastic_core.state.overlap import Wanted
from elastic_core.state.reading import GAP_BYTES, RUN_BYTES, SCRATCH_BYTES, SCRATCH_PARTS
from elastic_core.state.reshard import Piece, Runs
from elastic_core.state.shared import CannotShare

_SPARE_BYTES = 64 << 10  # always left of an outbox, for headers and what lies between tiles
_OUTBOX_BYTES = TILE_BYTES + _SPARE_BYTES + (64 << 10)  # at most; the rest are paddings of a tile's parts


@dataclass(frozen=True, slots=True)
class Posted:
    """A part of a tensor in its reader's outbox, from byte `place` on."""

    tensor: str
    box: Box
    dtype: str
    place: int

    @property
    def end(self) -> int:
        return self.place + _num_bytes(self.box, self.dtype)

    def within(self, outbox: Tensor) -> Tensor:
        """Its memory."""
        return outbox[self.place : self.end].view(dtype_of(self.dtype)).view(self.box.shape)


@dataclass(frozen=True, slots=True)
class Parcel:
    """A part of one tile, for `targets`, which find it in `posted`; without that it is for its reader alone."""

    tensor: str
    box: Box
    targets: tuple[int, ...]
    posted: Posted | None = None

    def within(self, outbox: Tensor) -> Tensor:
        """Its memory in the outbox."""
        assert self.posted is not None, "nobody else wants it"
        return self.posted.within(outbox)[self.box.slices(self.posted.box.start)]


@dataclass(frozen=True, slots=True)
class Round:
    """What one rank reads at a time. `taken`: the bytes of its outbox that this takes; `scratch`: those that it may use
    while it reads; `tiles`: file and offset of what it reads; `heads`: files whose header it checks, for its host."""

    parcels: tuple[Parcel, ...] = ()
    taken: range = range(0)
    scratch: range = range(0)
    tiles: tuple[tuple[str, int], ...] = ()
    heads: frozenset[str] = frozenset()

    @property
    def end(self) -> int:
        """Of its part of the outbox."""
        return max(self.taken.stop, self.scratch.stop)


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


def rounds_of(
    pieces: Iterable[Piece],
    manifest: Manifest,
    wanted: Sequence[Wanted],
    slots: Sequence[Slot],
    room: Sequence[int],
) -> Rounds:
    """`wanted`, and `room`, free bytes of memory to share: by rank. Raises `CannotShare` where that does not hold a
    tile for each."""
    tiles: list[dict[tuple[str, int], tuple[Tile, list[Parcel]]]] = [{} for _ in slots]
    for piece in pieces:
        for tile in manifest.tensors[piece.tensor].tiles:
            part = tile.box.intersect(piece.box)
            if part is not None:
                _, parcels = tiles[piece.fetcher].setdefault((tile.file, tile.offset), (tile, []))
                parcels.append(Parcel(piece.tensor, part, piece.targets))
    found = []
    for rank, slot in enumerate(slots):
        mates = [other for other, its in enumerate(slots) if its.node == slot.node]
        limit = min(_OUTBOX_BYTES, min(room[mate] for mate in mates) // (2 * len(mates)))
        readings = []
        for _, (tile, parcels) in sorted(tiles[rank].items(), key=itemgetter(0)):
            tensor = parcels[0].tensor
            readings.append(_reading(rank, tile, manifest.tensors[tensor].dtype, parcels, wanted[rank].get(tensor)))
        found.append(_rounds(rank, readings, limit))
    return _with_heads(found, slots)


@dataclass(frozen=True, slots=True)
class _Reading:
    """A tile that a rank reads. `shared`: what of it goes into the outbox; `num_shared`: bytes of that; `num_aside`:
    bytes that can neither go there nor straight to the reader's own."""

    tile: Tile
    dtype: str
    parcels: Sequence[Parcel]
    shared: Sequence[Box]
    num_shared: int
    num_aside: int

    def placed(self, begin: int) -> Iterator[Parcel]:
        """Its parcels, what is shared of them lying in the outbox from `begin` on."""
        places = {}
        for box in self.shared:
            places[box] = Posted(self.parcels[0].tensor, box, self.dtype, begin)
            begin += aligned(_num_bytes(box, self.dtype))
        for parcel in self.parcels:
            posted = places.get(self.tile.box, places.get(parcel.box))
            yield parcel if posted is None else Parcel(parcel.tensor, parcel.box, parcel.targets, posted)


def _reading(rank: int, tile: Tile, dtype: str, parcels: Sequence[Parcel], own: Box | None) -> _Reading:
    """`own`: the box of the tensor that the rank has itself."""
    straight = own is not None and own.shape[1:] == tile.box.shape[1:]
    by_rows = all(
        parcel.box.shape[1:] == tile.box.shape[1:] and (straight or parcel.targets != (rank,)) for parcel in parcels
    )
    shared = [parcel.box for parcel in parcels if parcel.targets != (rank,)]
    if shared and not by_rows:
        shared = [tile.box]
    num_shared = sum(aligned(_num_bytes(box, dtype)) for box in shared)
    placed = sum(_num_bytes(parcel.box, dtype) for parcel in parcels) if by_rows else 0
    num_aside = 0 if tile.box in shared else tile.length - placed
    return _Reading(tile, dtype, parcels, shared, num_shared, num_aside)


@dataclass(slots=True)
class _Batch:
    """What a rank reads in one round, the bytes of the outbox that it takes, and those that pass through scratch
    memory."""

    readings: list[_Reading] = field(default_factory=list)
    num_shared: int = 0
    num_aside: int = 0


def _rounds(rank: int, tiles: Sequence[_Reading], limit: int) -> list[Round]:
    some_aside = any(reading.num_aside for reading in tiles)
    kept = min(SCRATCH_BYTES, limit // 4) if some_aside else _SPARE_BYTES
    most = max(0, limit - kept)  # for two rounds in a row, unless a tile is larger
    rounds: list[Round] = []
    before = range(0)  # of the outbox, what the last round takes
    for batch in _batches(rank, tiles, limit, most):
        begin = before.stop
        if begin + batch.num_shared > most:
            begin = 0
            if before and (batch.num_shared > before.start or before.stop > most):
                rounds.append(Round())  # in which the others take what is there
                before = range(0)
        taken = range(begin, begin + batch.num_shared) if batch.num_shared else range(0)
        free = max(before.stop, taken.stop)
        spare = _SPARE_BYTES * min(SCRATCH_PARTS, len(batch.readings))
        scratch = range(free, min(limit, free + aligned(batch.num_aside) + spare))
        rounds.append(_round(batch, taken, scratch))
        before = taken
    if not any(one.taken for one in rounds):
        return [replace(one, scratch=range(0)) for one in rounds]  # nobody maps anything
    return rounds


def _round(batch: _Batch, taken: range, scratch: range) -> Round:
    parcels: list[Parcel] = []
    begin = taken.start
    for reading in batch.readings:
        parcels += reading.placed(begin)
        begin += reading.num_shared
    tiles = tuple((reading.tile.file, reading.tile.offset) for reading in batch.readings)
    return Round(tuple(parcels), taken, scratch, tiles)


def _batches(rank: int, tiles: Iterable[_Reading], limit: int, most: int) -> Iterator[_Batch]:
    """What to read at a time: of `most` half, so that two fit, or one tile that is larger. One at least."""
    batch = _Batch()
    for reading in tiles:
        if reading.num_shared and reading.num_shared + _SPARE_BYTES > limit:
            needed = reading.num_shared + _SPARE_BYTES
            raise CannotShare(f"rank {rank} has room to share {limit} bytes, and needs {needed}.")
        full = batch.num_shared and batch.num_shared + reading.num_shared > most // 2
        apart = (batch.num_aside and reading.num_shared > most) or (reading.num_aside and batch.num_shared > most)
        if full or apart:
            yield batch
            batch = _Batch()
        batch.readings.append(reading)
        batch.num_shared += reading.num_shared
        batch.num_aside += reading.num_aside
    yield batch


def _num_bytes(box: Box, dtype: str) -> int:
    return box.volume * itemsize(dtype)


def _with_heads(rounds: Rounds, slots: Sequence[Slot]) -> Rounds:
    """Of each host one checks a file's header: who reads the first tile of it."""
    firsts: dict[tuple[str, str], tuple[int, int, int]] = {}  # by host and file: offset, rank, number of its round
    for rank, slot in enumerate(slots):
        for number, one in enumerate(rounds[rank]):
            for file, offset in one.tiles:
                here = (offset, rank, number)
                firsts[slot.node, file] = min(firsts.get((slot.node, file), here), here)
    heads: dict[tuple[int, int], set[str]] = defaultdict(set)
    for (_, file), (_, rank, number) in firsts.items():
        heads[rank, number].add(file)
    return [
        [replace(one, heads=frozenset(heads[rank, number])) for number, one in enumerate(its)]
        for rank, its in enumerate(rounds)
    ]
