"""Reading tensors: only the byte ranges of the tiles asked for, neighbours by one request, straight into the tensors'
memory; nothing is given out before every checksum held."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elastic_core.errors import CorruptCheckpoint, UserError
from elastic_core.state.boxes import Box
from elastic_core.state.contract import CheckpointStore
from elastic_core.state.dtypes import dtype_of
from elastic_core.state.manifest import Manifest, TensorEntry, Tile, crc32c, read_manifest

_RUN_BYTES = 16 << 20  # neighbouring tiles are fetched by one request of at most this
_GAP_BYTES = 128 << 10  # and so are tiles with less than this between them
_READERS = 8

_ALIGNMENT = 64  # of tiles in scratch memory, as their elements need

_Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class _Extent:
    """Bytes of a file with a checksum, and where they go: `target` is their place in memory, None for scratch."""

    offset: int
    length: int
    crc32c: str
    what: str
    target: _Bytes | None = None
    scatter: tuple[Tensor, tuple[slice, ...], Box, Box, str] | None = None  # destination, its index, tile, part, dtype


@dataclass(frozen=True, slots=True)
class _Run:
    """Neighbouring extents of one file, fetched by one request."""

    file: str
    extents: tuple[_Extent, ...]


def read_tensors(
    store: CheckpointStore,
    manifest: Manifest,
    names: Iterable[str] | None = None,
    boxes: Mapping[str, Box] | None = None,
) -> dict[str, Tensor]:
    """Tensors by name, on the CPU: those named (all by default), whole or the part that `boxes` gives.

    Reads only the tiles that hold those parts. Raises `CorruptCheckpoint` naming file and tensor, `UserError`
    for a name that the checkpoint does not hold or a part outside the tensor.
    """
    wanted = list(manifest.tensors) if names is None else list(names)
    outer = {name: _wanted_box(manifest, name, (boxes or {}).get(name)) for name in wanted}
    found = {name: torch.empty(box.shape, dtype=dtype_of(manifest.tensors[name].dtype)) for name, box in outer.items()}
    extents: dict[str, list[_Extent]] = {}
    for name, box in outer.items():
        for tile in manifest.tensors[name].tiles:
            part = tile.box.intersect(box)
            if part is not None:
                extent = _extent_into(found[name], box, tile, part, manifest.tensors[name])
                extents.setdefault(tile.file, []).append(extent)
    _fetch(store, manifest, extents)
    return found


@dataclass(frozen=True, slots=True)
class Verified:
    """What was read and found unharmed."""

    num_files: int
    num_tensors: int
    num_tiles: int
    size_bytes: int
    sha256: str


def verify(store: CheckpointStore, uri: str, sha256: str | None = None) -> Verified:
    """Read every byte of a checkpoint and hold it against its checksums; keeps no tensor in memory.

    Raises `CorruptCheckpoint` naming what is wrong.
    """
    manifest = read_manifest(store, uri, sha256)
    extents: dict[str, list[_Extent]] = {name: [] for name in manifest.files}
    for name, file in manifest.files.items():
        size = store.size(f"{uri}/{name}")
        if size is not None and size != file.size:
            raise CorruptCheckpoint(f"Checkpoint {uri}: {name} has {size} bytes, its manifest says {file.size}.")
    for tensor in manifest.tensors.values():
        for tile in tensor.tiles:
            extents[tile.file].append(
                _Extent(tile.offset, tile.length, tile.crc32c, f"tile {tile.box} of {tensor.name}")
            )
    _fetch(store, manifest, extents)
    num_tiles = sum(len(tensor.tiles) for tensor in manifest.tensors.values())
    return Verified(len(manifest.files), len(manifest.tensors), num_tiles, manifest.size_bytes, manifest.sha256)


def _wanted_box(manifest: Manifest, name: str, box: Box | None) -> Box:
    entry = manifest.tensors.get(name)
    if entry is None:
        raise UserError(f"Checkpoint {manifest.uri} holds no tensor {name!r}. It holds {_some(manifest.tensors)}.")
    if box is None:
        return Box.whole(entry.shape)
    if not box.within(entry.shape):
        raise UserError(f"{box} is not a part of {name} of shape {list(entry.shape)} in checkpoint {manifest.uri}.")
    return box


def _extent_into(out: Tensor, outer: Box, tile: Tile, part: Box, entry: TensorEntry) -> _Extent:
    what = f"tile {tile.box} of {entry.name}"
    start = part.offset_in(outer) if part == tile.box else None
    if start is None:
        place = (out, part.slices(outer.start), tile.box, part, entry.dtype)
        return _Extent(tile.offset, tile.length, tile.crc32c, what, scatter=place)
    first = start * out.element_size()
    memory: _Bytes = out.reshape(-1).view(torch.uint8).numpy()[first : first + tile.length]
    return _Extent(tile.offset, tile.length, tile.crc32c, what, target=memory)


def _fetch(store: CheckpointStore, manifest: Manifest, extents: Mapping[str, list[_Extent]]) -> None:
    runs: list[_Run] = []
    for name, parts in extents.items():
        file = manifest.files[name]
        head = _Extent(0, file.header_bytes, file.header_crc32c, "its safetensors header")
        runs.extend(_Run(name, run) for run in _coalesce([head, *parts]))
    scratch = _Scratch()
    with ThreadPoolExecutor(min(_READERS, len(runs)) or 1, thread_name_prefix="read-tensors") as pool:
        for _ in pool.map(lambda run: _read_run(store, manifest.uri, run, scratch), runs):
            pass


def _coalesce(extents: list[_Extent]) -> Iterator[tuple[_Extent, ...]]:
    run: list[_Extent] = []
    for extent in sorted(extents, key=lambda e: (e.offset, e.length)):
        if run:
            gap = extent.offset - (run[-1].offset + run[-1].length)
            if gap > _GAP_BYTES or extent.offset + extent.length - run[0].offset > _RUN_BYTES:
                yield tuple(run)
                run = []
        run.append(extent)
    if run:
        yield tuple(run)


class _Scratch(threading.local):
    """Memory of each thread for what does not go straight to its place: fresh memory for each request costs more than
    the copying."""

    def __init__(self) -> None:
        self._memory: _Bytes = np.empty(0, dtype=np.uint8)
        self._used = 0

    def start(self, size: int) -> None:
        """Everything taken before is given back; `size` bytes with their paddings can be taken now."""
        if self._memory.nbytes < size:
            self._memory = np.empty(size, dtype=np.uint8)
        self._used = 0

    def take(self, size: int) -> _Bytes:
        taken = self._memory[self._used : self._used + size]
        self._used += size + -size % _ALIGNMENT
        return taken


def _read_run(store: CheckpointStore, uri: str, run: _Run, scratch: _Scratch) -> None:
    start, last = run.extents[0].offset, run.extents[-1]
    scratch.start(last.offset + last.length - start + 2 * _ALIGNMENT * len(run.extents))
    buffers: list[_Bytes] = []
    memory: list[_Bytes] = []
    at = start
    for extent in run.extents:
        if extent.offset > at:
            buffers.append(scratch.take(extent.offset - at))
        memory.append(scratch.take(extent.length) if extent.target is None else extent.target)
        buffers.append(memory[-1])
        at = extent.offset + extent.length
    try:
        num = store.read_into(f"{uri}/{run.file}", start, [b.data for b in buffers if b.nbytes])
    except FileNotFoundError as error:
        raise CorruptCheckpoint(f"Checkpoint {uri}: {run.file} is missing; it holds {last.what}.") from error
    for extent, data in zip(run.extents, memory, strict=True):
        if extent.offset + extent.length > start + num:
            raise CorruptCheckpoint(
                f"Checkpoint {uri}: {run.file} ends at byte {start + num}, before the end of {extent.what} "
                f"at byte {extent.offset + extent.length}: it was cut short."
            )
        seen = crc32c(data)
        if seen != extent.crc32c:
            raise CorruptCheckpoint(
                f"Checkpoint {uri}: {run.file}: {extent.what} has CRC-32C {seen}, written was {extent.crc32c}."
            )
        _scatter(extent, data)


def _scatter(extent: _Extent, data: _Bytes) -> None:
    if extent.scatter is None:
        return
    out, index, tile, part, dtype = extent.scatter
    source = torch.from_numpy(data).view(dtype_of(dtype)).reshape(tile.shape)
    out[index] = source[part.slices(tile.start)]


def _some(names: Iterable[str], limit: int = 8) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - limit} more" if len(listed) > limit else ""
    return ", ".join(listed[:limit]) + more
