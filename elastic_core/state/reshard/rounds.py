"""The schedule of a collective load: who fetches what in which round, and where it is staged.

A rank reads the tiles of its pieces in the order of their files, each tile once, and takes what some device's memory
holds in pieces of at most `PULL_BYTES`. What other ranks of its host need too goes into the fetcher's staging buffer,
shared memory of one tile, and all copy their parts from there.
A round is what is read between two exchanges of the ranks. While one round is read, the one before is still being
copied out, so the two lie apart in the staging buffer; what is left of it is scratch memory for bytes that cannot go
straight to the reader's own tensors. Every rank computes the same schedule; nothing is read or sent here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import itemgetter

from torch import Tensor

from elastic_core.domain import Slot
from elastic_core.errors import InfrastructureError
from elastic_core.state.buffers import aligned
from elastic_core.state.format.manifest import Manifest, Tile
from elastic_core.state.format.read_plan import GAP_BYTES, RUN_BYTES
from elastic_core.state.format.reading import SCRATCH_BYTES, SCRATCH_PARTS
from elastic_core.state.layout.boxes import TILE_BYTES, Box, tiles
from elastic_core.state.layout.dtypes import dtype_of, itemsize
from elastic_core.state.layout.layout import TensorMeta
from elastic_core.state.layout.overlap import WantedBoxes
from elastic_core.state.reshard.change_plan import Runs
from elastic_core.state.reshard.pieces import Link, Piece
from elastic_core.state.reshard.shared import CannotShare

PULLS = 4  # at once, from memories, that make up one tile
PULL_BYTES = TILE_BYTES // PULLS
_SPARE_BYTES = 64 << 10  # always left of a staging buffer, for headers and what lies between tiles
_STAGING_BYTES = TILE_BYTES + _SPARE_BYTES + (64 << 10)  # at most; the rest are paddings of a tile's parts


@dataclass(frozen=True, slots=True)
class StagedPart:
    """A part of a tensor in its reader's staging buffer, from byte `place` on."""

    tensor: str
    box: Box
    dtype: str
    place: int

    @property
    def end(self) -> int:
        return self.place + _num_bytes(self.box, self.dtype)

    def within(self, staging_buffer: Tensor) -> Tensor:
        """Its memory."""
        return staging_buffer[self.place : self.end].view(dtype_of(self.dtype)).view(self.box.shape)


@dataclass(frozen=True, slots=True)
class TilePart:
    """A part of one tile, for `targets`, which find it in `staged`; without that it is for its reader alone.

    source: whose memory it is taken from, over `link`; None for the store.
    """

    tensor: str
    box: Box
    targets: tuple[int, ...]
    staged: StagedPart | None = None
    source: Slot | None = None
    link: Link = Link.STORE

    def within(self, staging_buffer: Tensor) -> Tensor:
        """Its memory in the staging buffer."""
        assert self.staged is not None, "nobody else wants it"
        return self.staged.within(staging_buffer)[self.box.slices(self.staged.box.start)]


@dataclass(frozen=True, slots=True)
class Round:
    """What one rank reads at a time.

    taken: the bytes of its staging buffer that this takes. scratch: those that it may use while it reads. tiles: file
    and offset of what it reads. heads: files whose header it checks, for its host.
    """

    tile_parts: tuple[TilePart, ...] = ()
    taken: range = range(0)
    scratch: range = range(0)
    tiles: tuple[tuple[str, int], ...] = ()
    heads: frozenset[str] = frozenset()

    @property
    def end(self) -> int:
        """Of its part of the staging buffer."""
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
    for in_order in in_file.values():
        begin = end = -1
        for offset, name, tile in sorted(in_order, key=lambda entry: entry[:2]):
            if begin < 0 or offset - end > GAP_BYTES or offset + tile.length - begin > RUN_BYTES:
                number, begin = number + 1, offset
            end = offset + tile.length
            runs[name, tile.box] = number
    return runs


def rounds_of(
    pieces: Iterable[Piece],
    metas: Mapping[str, TensorMeta],
    manifest: Manifest | None,
    wanted: Sequence[WantedBoxes],
    slots: Sequence[Slot],
    room: Sequence[int],
) -> Rounds:
    """`manifest`: of the checkpoint that pieces of the store are from. `wanted`, and `room`, free bytes of memory to
    share: by rank. Raises `CannotShare` where that does not hold a tile for each, `InfrastructureError` for a piece of
    the store without a manifest."""
    from_store: list[dict[tuple[str, int], tuple[Tile, list[TilePart]]]] = [{} for _ in slots]
    from_memory: list[list[_Reading]] = [[] for _ in slots]
    for piece in pieces:
        if piece.link is not Link.STORE:
            from_memory[piece.fetcher] += _readings_of(piece, metas[piece.tensor].dtype)
            continue
        if manifest is None:
            raise InfrastructureError(f"{piece.box} of {piece.tensor} is in no memory, and there is no store.")
        for tile in manifest.tensors[piece.tensor].tiles:
            part = tile.box.intersect(piece.box)
            if part is not None:
                _, tile_parts = from_store[piece.fetcher].setdefault((tile.file, tile.offset), (tile, []))
                tile_parts.append(TilePart(piece.tensor, part, piece.targets))
    rounds_by_rank = []
    for rank, slot in enumerate(slots):
        host_ranks = [other for other, its in enumerate(slots) if its.node == slot.node]
        limit = min(_STAGING_BYTES, min(room[other] for other in host_ranks) // (2 * len(host_ranks)))
        readings = []
        for _, (tile, tile_parts) in sorted(from_store[rank].items(), key=itemgetter(0)):
            tensor = tile_parts[0].tensor
            readings.append(_reading(rank, tile, metas[tensor].dtype, tile_parts, wanted[rank].get(tensor)))
        rounds_by_rank.append(_rounds(rank, [*readings, *from_memory[rank]], limit))
    return _with_heads(rounds_by_rank, slots)


@dataclass(frozen=True, slots=True)
class _Reading:
    """What a rank fetches as one: a tile of the store, or a piece of a memory.

    box: all of it. place: file and offset of a tile. shared: what of it goes into the staging buffer. num_shared:
    bytes of that. num_aside: bytes that can go neither there nor straight to the reader's own tensors.
    """

    box: Box
    place: tuple[str, int] | None
    dtype: str
    tile_parts: Sequence[TilePart]
    shared: Sequence[Box]
    num_shared: int
    num_aside: int

    def placed(self, begin: int) -> Iterator[TilePart]:
        """Its parts, what is shared of them lying in the staging buffer from `begin` on."""
        places = {}
        for box in self.shared:
            places[box] = StagedPart(self.tile_parts[0].tensor, box, self.dtype, begin)
            begin += aligned(_num_bytes(box, self.dtype))
        for tile_part in self.tile_parts:
            staged = places.get(self.box, places.get(tile_part.box))
            yield tile_part if staged is None else replace(tile_part, staged=staged)


def _reading(rank: int, tile: Tile, dtype: str, tile_parts: Sequence[TilePart], own: Box | None) -> _Reading:
    """`own`: the box of the tensor that the rank has itself."""
    straight = own is not None and own.shape[1:] == tile.box.shape[1:]
    by_rows = all(
        tile_part.box.shape[1:] == tile.box.shape[1:] and (straight or tile_part.targets != (rank,))
        for tile_part in tile_parts
    )
    shared = [tile_part.box for tile_part in tile_parts if tile_part.targets != (rank,)]
    if shared and not by_rows:
        shared = [tile.box]
    num_shared = sum(aligned(_num_bytes(box, dtype)) for box in shared)
    placed = sum(_num_bytes(tile_part.box, dtype) for tile_part in tile_parts) if by_rows else 0
    num_aside = 0 if tile.box in shared else tile.length - placed
    return _Reading(tile.box, (tile.file, tile.offset), dtype, tile_parts, shared, num_shared, num_aside)


def _readings_of(piece: Piece, dtype: str) -> Iterator[_Reading]:
    for box in tiles(piece.box, itemsize(dtype), PULL_BYTES):
        part = TilePart(piece.tensor, box, piece.targets, None, piece.source, piece.link)
        shared = [] if piece.targets == (piece.fetcher,) else [box]
        num_shared = sum(aligned(_num_bytes(box, dtype)) for box in shared)
        yield _Reading(box, None, dtype, (part,), shared, num_shared, 0)


@dataclass(slots=True)
class _Batch:
    """What a rank reads in one round; bytes of the staging buffer that it takes; bytes that pass through scratch."""

    readings: list[_Reading] = field(default_factory=list)
    num_shared: int = 0
    num_aside: int = 0


def _rounds(rank: int, readings: Sequence[_Reading], limit: int) -> list[Round]:
    some_aside = any(reading.num_aside for reading in readings)
    reserved = min(SCRATCH_BYTES, limit // 4) if some_aside else _SPARE_BYTES
    most = max(0, limit - reserved)  # for two rounds in a row, unless a tile is larger
    rounds: list[Round] = []
    before = range(0)  # of the staging buffer, what the last round takes
    for batch in _batches(rank, readings, limit, most):
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
    if not any(planned.taken for planned in rounds):
        return [replace(planned, scratch=range(0)) for planned in rounds]  # nobody maps anything
    return rounds


def _round(batch: _Batch, taken: range, scratch: range) -> Round:
    tile_parts: list[TilePart] = []
    begin = taken.start
    for reading in batch.readings:
        tile_parts += reading.placed(begin)
        begin += reading.num_shared
    places = tuple(reading.place for reading in batch.readings if reading.place is not None)
    return Round(tuple(tile_parts), taken, scratch, places)


def _batches(rank: int, readings: Iterable[_Reading], limit: int, most: int) -> Iterator[_Batch]:
    """What to read at a time: of `most` half, so that two fit, or one tile that is larger. One at least."""
    batch = _Batch()
    for reading in readings:
        if reading.num_shared and reading.num_shared + _SPARE_BYTES > limit:
            needed = reading.num_shared + _SPARE_BYTES
            raise CannotShare(f"rank {rank} has room to share {limit} bytes, and needs {needed}.")
        full = batch.num_shared and batch.num_shared + reading.num_shared > most // 2
        conflict = (batch.num_aside and reading.num_shared > most) or (reading.num_aside and batch.num_shared > most)
        if full or conflict:
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
        for number, planned in enumerate(rounds[rank]):
            for file, offset in planned.tiles:
                here = (offset, rank, number)
                firsts[slot.node, file] = min(firsts.get((slot.node, file), here), here)
    heads: dict[tuple[int, int], set[str]] = defaultdict(set)
    for (_, file), (_, rank, number) in firsts.items():
        heads[rank, number].add(file)
    return [
        [replace(planned, heads=frozenset(heads[rank, number])) for number, planned in enumerate(its)]
        for rank, its in enumerate(rounds)
    ]
