"""What to read of a checkpoint's files: extents with a checksum, in pieces, and neighbours joined to runs.

A piece goes straight into the caller's tensor where its bytes lie there as they do in the file. What cannot (columns of
a tile, and bytes that nobody asked for, which a tile's checksum covers too) passes through scratch memory, from which
copies are made. Nothing is read here: `state.format.reading` does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elastic_core.state.buffers import aligned
from elastic_core.state.format.manifest import TensorEntry, Tile
from elastic_core.state.layout.boxes import Box, slabs
from elastic_core.state.layout.dtypes import itemsize

RUN_BYTES = 16 << 20  # neighbouring tiles are fetched by one request of at most this
GAP_BYTES = 128 << 10  # and so are tiles with less than this between them

Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Destination:
    """Memory on the CPU, of any strides, for the part `box` of a tensor."""

    name: str
    box: Box
    tensor: Tensor


@dataclass(frozen=True, slots=True)
class FilePiece:
    """Neighbouring bytes, read into `target`, or into scratch memory without one; then `copies` are made of them."""

    length: int
    target: Bytes | None = None
    copies: tuple[CopyOut, ...] = ()

    @property
    def scratch_bytes(self) -> int:
        return aligned(self.length) if self.target is None else 0


@dataclass(frozen=True, slots=True)
class CopyOut:
    """Where a part of a piece goes."""

    out: Tensor
    index: tuple[slice, ...]  # of the part in the piece
    shape: tuple[int, ...]  # of the piece


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes of a file with a checksum, in pieces that follow one another."""

    offset: int
    length: int
    crc32c: str
    what: str
    pieces: tuple[FilePiece, ...]

    @property
    def end(self) -> int:
        return self.offset + self.length

    @property
    def scratch_bytes(self) -> int:
        return sum(piece.scratch_bytes for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Run:
    """Neighbouring extents of one file, fetched by one request, or by as many as the scratch memory for one needs."""

    file: str
    extents: tuple[Extent, ...]

    def pieces(self, most: int) -> Iterator[tuple[Extent | None, FilePiece]]:
        """All bytes from the first extent's to the last's: of an extent, or between two, then of at most `most`."""
        at = self.extents[0].offset
        for extent in self.extents:
            if extent.offset > at:
                yield from ((None, piece) for piece in unrequested(extent.offset - at, most))
            yield from ((extent, piece) for piece in extent.pieces)
            at = extent.end

    def requests(self, scratch_bytes: int) -> Iterator[list[tuple[Extent | None, FilePiece]]]:
        request: list[tuple[Extent | None, FilePiece]] = []
        aside = 0
        for extent, piece in self.pieces(scratch_bytes):
            if request and aside + piece.scratch_bytes > scratch_bytes:
                yield request
                request, aside = [], 0
            request.append((extent, piece))
            aside += piece.scratch_bytes
        yield request


def extent_into(places: Iterable[Destination], tile: Tile, entry: TensorEntry, most: int) -> Extent | None:
    """`most`: bytes that a piece in scratch memory may have."""
    parts = [
        (part, place.tensor[part.slices(place.box.start)])
        for place in places
        if (part := tile.box.intersect(place.box)) is not None
    ]
    if not parts:
        return None
    whole = next((out for part, out in parts if part == tile.box and out.is_contiguous()), None)
    if whole is not None:
        others = [(part, out) for part, out in parts if out is not whole]
        pieces: tuple[FilePiece, ...] = (FilePiece(tile.length, _bytes_of(whole), _copies(others, tile.box)),)
    else:
        pieces = _in_rows(parts, tile, most) or _in_slabs(parts, tile, itemsize(entry.dtype), most)
    return Extent(tile.offset, tile.length, tile.crc32c, f"tile {tile.box} of {entry.name}", pieces)


def _in_rows(parts: Sequence[tuple[Box, Tensor]], tile: Tile, most: int) -> tuple[FilePiece, ...]:
    """A tile's pieces if each part is whole rows of it, apart from others and contiguous where it goes; else none."""
    box = tile.box
    if not box.shape:
        return ()
    row = tile.length // box.shape[0]
    pieces: list[FilePiece] = []
    at = box.start[0]
    for part, out in sorted(parts, key=lambda placed: placed[0].start):
        if part.shape[1:] != box.shape[1:] or part.start[0] < at or not out.is_contiguous():
            return ()
        pieces += [*unrequested((part.start[0] - at) * row, most), FilePiece(part.shape[0] * row, _bytes_of(out))]
        at = part.end[0]
    return (*pieces, *unrequested((box.end[0] - at) * row, most))


def _in_slabs(parts: Sequence[tuple[Box, Tensor]], tile: Tile, size: int, most: int) -> tuple[FilePiece, ...]:
    boxes = slabs(tile.box, size, most)
    return tuple(FilePiece(box.volume * size, None, _copies(parts, box)) for box in boxes)


def _copies(parts: Iterable[tuple[Box, Tensor]], piece: Box) -> tuple[CopyOut, ...]:
    copies = []
    for part, out in parts:
        inner = part.intersect(piece)
        if inner is not None:
            copies.append(CopyOut(out[inner.slices(part.start)], inner.slices(piece.start), piece.shape))
    return tuple(copies)


def unrequested(length: int, most: int) -> Iterator[FilePiece]:
    """Bytes that nobody asked for, but a checksum covers, or that lie between extents."""
    for at in range(0, length, most):
        yield FilePiece(min(most, length - at))


def _bytes_of(tensor: Tensor) -> Bytes:
    data: Bytes = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()
    return data


def coalesce(extents: list[Extent], scratch_bytes: int) -> Iterator[tuple[Extent, ...]]:
    run: list[Extent] = []
    scratch = 0
    for extent in sorted(extents, key=lambda e: (e.offset, e.length)):
        aside = extent.scratch_bytes
        if run:
            gap = extent.offset - run[-1].end
            if gap > GAP_BYTES or extent.end - run[0].offset > RUN_BYTES or scratch + aside > scratch_bytes:
                yield tuple(run)
                run, scratch = [], 0
        run.append(extent)
        scratch += aside
    if run:
        yield tuple(run)
