"""What lies in files of a host: each rank copies its own parts straight out of the page cache.

Where a rank can open every file that it reads of a checkpoint (a folder, the cache of its own node), nothing has to be
staged for others: they map the same pages. A byte is copied once, by the rank that needs it, and one rank of a host,
the plan's reader, holds a tile against its checksum. So a load takes two meetings, however many tiles there are. What a
rank has mapped at a time are windows of at most a tile.

Pages are brought in by a call that can fail (MADV_POPULATE_READ, Linux 5.14) before they are touched: a disk that does
not give a page is an `InfrastructureError`, not a signal. A page that was checked, dropped by the kernel and read again
is not checked again; a load by ranges (`state.format.reading`) checks the very bytes that it gives out.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache

import google_crc32c
import torch
from torch import Tensor

from elastic_core.crashing import crash_here
from elastic_core.errors import CorruptCheckpoint, InfrastructureError
from elastic_core.state.format.manifest import Manifest, Tile
from elastic_core.state.format.read_plan import RUN_BYTES
from elastic_core.state.layout.boxes import Box
from elastic_core.state.layout.dtypes import dtype_of
from elastic_core.state.reshard.exchange import Exchange, run_on_all_ranks
from elastic_core.state.reshard.pieces import Link, Piece
from elastic_core.state.stores.store import CheckpointStore, HostFile, host_file

_POPULATE_READ = 22  # MADV_POPULATE_READ, which Python does not name

PlaceOf = Callable[[str, Box], Tensor]  # the memory of a box of a tensor


@dataclass(frozen=True, slots=True)
class Stretch:
    """Bytes of a file that this rank looks at: a tile, or a header.

    parts: what of the tile's tensor this rank takes. crc32c: what the bytes are held against; None where another rank
    of the host does that.
    """

    file: str
    offset: int
    length: int
    what: str
    crc32c: str | None = None
    tensor: str = ""
    tile: Tile | None = None
    parts: tuple[Box, ...] = ()

    @property
    def end(self) -> int:
        return self.offset + self.length


def stretches_of(pieces: Iterable[Piece], manifest: Manifest, rank: int, ranks_on_host: Iterable[int]) -> list[Stretch]:
    """What a rank looks at of the store's pieces, in the order of the files. The same pieces on every rank.

    A tile is checked by the one who would read it for its host, a header by who checks the first tile of its file.
    """
    host = set(ranks_on_host)
    readers: dict[tuple[str, int], tuple[int, str, Tile]] = {}
    parts: dict[tuple[str, int], list[Box]] = {}
    for piece in pieces:
        if piece.link is not Link.STORE or piece.fetcher not in host:
            continue
        for tile in manifest.tensors[piece.tensor].tiles:
            part = tile.box.intersect(piece.box)
            if part is not None:
                readers.setdefault((tile.file, tile.offset), (piece.fetcher, piece.tensor, tile))
                if rank in piece.targets:
                    parts.setdefault((tile.file, tile.offset), []).append(part)
    found: list[Stretch] = []
    heads: set[str] = set()
    for (file, offset), (reader, tensor, tile) in sorted(readers.items(), key=lambda entry: entry[0]):
        if file not in heads:
            heads.add(file)
            if reader == rank:
                head = manifest.files[file]
                found.append(Stretch(file, 0, head.header_bytes, "its safetensors header", head.header_crc32c))
        mine = tuple(parts.get((file, offset), ()))
        if mine or reader == rank:
            what, crc32c = f"tile {tile.box} of {tensor}", tile.crc32c if reader == rank else None
            found.append(Stretch(file, offset, tile.length, what, crc32c, tensor, tile, mine))
    return found


@dataclass(frozen=True, slots=True)
class MappedFiles:
    """The open files of one load, and what this rank looks at in them."""

    manifest: Manifest
    files: Mapping[str, HostFile]
    stretches: Sequence[Stretch]

    def windows(self) -> list[list[Stretch]]:
        """Neighbours of one file, so many that they fit a mapping of a tile's size."""
        windows: list[list[Stretch]] = []
        for stretch in self.stretches:
            last = windows[-1] if windows else None
            if last and last[0].file == stretch.file and stretch.end - last[0].offset <= RUN_BYTES:
                last.append(stretch)
            else:
                windows.append([stretch])
        return windows

    def take(self, window: Sequence[Stretch], place_of: PlaceOf) -> int:
        """Check and copy; the bytes that were checked.

        Raises `CorruptCheckpoint` for what does not hold, `InfrastructureError` where the disk does not give it.
        """
        opened = self.files[window[0].file]
        start = window[0].offset - window[0].offset % mmap.ALLOCATIONGRANULARITY
        length = window[-1].end - start
        try:
            # Private and never written: torch would warn of memory that it may not write.
            memory = mmap.mmap(opened.fd, length, access=mmap.ACCESS_COPY, offset=start)
            memory.madvise(_POPULATE_READ, 0, length)
        except OSError as error:
            where = f"Checkpoint {self.manifest.uri}: {window[0].file}"
            raise InfrastructureError(f"{where} cannot be read: {error.strerror or error}.") from error
        raw = torch.frombuffer(memory, dtype=torch.uint8)  # holds the mapping, which ends with it
        return sum(self._take(stretch, raw[stretch.offset - start :][: stretch.length], place_of) for stretch in window)

    def _take(self, stretch: Stretch, raw: Tensor, place_of: PlaceOf) -> int:
        for part in stretch.parts:
            assert stretch.tile is not None, "a header has no parts"
            tile = _viewed(raw, self.manifest.tensors[stretch.tensor].dtype, stretch.tile.box)
            place_of(stretch.tensor, part).copy_(tile[part.slices(stretch.tile.box.start)])
        if stretch.crc32c is None:
            return 0
        seen = f"{google_crc32c.value(raw.numpy()):08x}"
        if seen != stretch.crc32c:
            raise CorruptCheckpoint(
                f"Checkpoint {self.manifest.uri}: {stretch.file}: {stretch.what} has CRC-32C {seen}, written was "
                f"{stretch.crc32c}."
            )
        self.files[stretch.file].taken(stretch.length)
        return stretch.length


def _viewed(raw: Tensor, dtype: str, box: Box) -> Tensor:
    """A tile's bytes as its elements. Tiles follow each other without gaps, so that one may begin anywhere."""
    of_type = dtype_of(dtype)
    aligned = raw.clone() if raw.storage_offset() % of_type.itemsize else raw
    return aligned.view(of_type).view(box.shape)


def map_files(
    store: CheckpointStore,
    manifest: Manifest,
    look: Callable[[], Sequence[Stretch]],
    exchange: Exchange,
    stack: ExitStack,
) -> MappedFiles | None:
    """What this rank looks at, in files that are open until the end of `stack`; None if a rank cannot open one of its
    own. Collective."""

    def opened() -> tuple[MappedFiles | None, bool]:
        if not _can_populate():
            return None, False
        stretches = look()
        files = _open_files(store, manifest, dict.fromkeys(stretch.file for stretch in stretches), stack)
        return (None, False) if files is None else (MappedFiles(manifest, files, stretches), True)

    mapped, everyone = run_on_all_ranks(exchange, opened, "Opening the checkpoint")
    if not all(everyone):
        return None
    crash_here("transfer.files-open")
    return mapped


def _open_files(
    store: CheckpointStore, manifest: Manifest, names: Iterable[str], stack: ExitStack
) -> dict[str, HostFile] | None:
    """By name; None where one is no file of this host, or not of the size that was written."""
    files: dict[str, HostFile] = {}
    for name in names:
        opened = host_file(store, f"{manifest.uri}/{name}")
        if opened is None:
            return None
        stack.callback(opened.close)
        if opened.size != manifest.files[name].size:
            return None
        files[name] = opened
    return files


@cache
def _can_populate() -> bool:
    """This kernel can say that it brought pages in."""
    with mmap.mmap(-1, mmap.PAGESIZE) as memory:
        try:
            memory.madvise(_POPULATE_READ, 0, mmap.PAGESIZE)
        except OSError:
            return False
    return True
