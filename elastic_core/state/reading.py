"""Reading tensors: only the byte ranges of the tiles asked for, neighbours by one request, straight into the tensors'
memory; nothing is given out before every checksum held."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elastic_core.errors import CorruptCheckpoint, UserError
from elastic_core.state.boxes import Box
from elastic_core.state.contract import CheckpointStore, doubted
from elastic_core.state.dtypes import dtype_of
from elastic_core.state.manifest import Manifest, TensorEntry, Tile, crc32c, read_manifest

RUN_BYTES = 16 << 20  # neighbouring tiles are fetched by one request of at most this
_SCRATCH_BYTES = 4 << 20  # and of no more than this, or one tile, that does not go straight to its place
GAP_BYTES = 128 << 10  # and so are tiles with less than this between them
_READERS = 8

_ALIGNMENT = 64  # of tiles in scratch memory, as their elements need

_Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Destination:
    """Memory on the CPU, of any strides, for the part `box` of a tensor."""

    name: str
    box: Box
    tensor: Tensor


@dataclass(frozen=True, slots=True)
class _Extent:
    """Bytes of a file with a checksum, and where they go: to `targets` one after another, to scratch without any.

    A target is memory, or a number of bytes that nobody wants. `copies` are made of the first.
    """

    offset: int
    length: int
    crc32c: str
    what: str
    targets: tuple[_Bytes | int, ...] = ()
    copies: tuple[_Copy, ...] = ()

    @property
    def scratch_bytes(self) -> int:
        return sum(target for target in self.targets if isinstance(target, int)) if self.targets else self.length


@dataclass(frozen=True, slots=True)
class _Copy:
    """Where a part of a tile goes that is not read into place."""

    out: Tensor
    index: tuple[slice, ...]  # of the part in the tile
    shape: tuple[int, ...]  # of the tile


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
    fill(store, manifest, [Destination(name, box, found[name]) for name, box in outer.items()])
    return found


def fill(
    store: CheckpointStore,
    manifest: Manifest,
    destinations: Iterable[Destination],
    heads: Collection[str] | None = None,
) -> int:
    """Fill memory with parts of tensors, each tile read once however many want of it; the bytes read from the store.

    `heads`: the files whose header is to be checked; None for all that are read from. Raises as `read_tensors`; then
    the memory holds anything.
    """
    wanted: dict[str, list[Destination]] = {}
    for destination in destinations:
        _wanted_box(manifest, destination.name, destination.box)
        _require_fit(destination, manifest.tensors[destination.name])
        wanted.setdefault(destination.name, []).append(destination)
    extents: dict[str, list[_Extent]] = {}
    for name, places in wanted.items():
        for tile in manifest.tensors[name].tiles:
            extent = _extent_into(places, tile, manifest.tensors[name])
            if extent is not None:
                extents.setdefault(tile.file, []).append(extent)
    return _fetch(store, manifest, extents, heads)


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


def _require_fit(place: Destination, entry: TensorEntry) -> None:
    given, needed = (place.tensor.dtype, tuple(place.tensor.shape)), (dtype_of(entry.dtype), place.box.shape)
    if given != needed or place.tensor.device.type != "cpu":
        raise UserError(
            f"{place.box} of {entry.name} needs memory of {needed[0]} {list(needed[1])} on the CPU, not of {given[0]} "
            f"{list(given[1])} on {place.tensor.device}."
        )


def _extent_into(places: Iterable[Destination], tile: Tile, entry: TensorEntry) -> _Extent | None:
    parts = [
        (part, place.tensor[part.slices(place.box.start)])
        for place in places
        if (part := tile.box.intersect(place.box)) is not None
    ]
    if not parts:
        return None
    whole = next((i for i, (part, out) in enumerate(parts) if part == tile.box and out.is_contiguous()), None)
    targets = _in_rows(parts, tile) if whole is None else (_bytes_of(parts[whole][1]),)
    copied = [] if whole is None and targets else [one for i, one in enumerate(parts) if i != whole]
    copies = tuple(_Copy(out, part.slices(tile.box.start), tile.box.shape) for part, out in copied)
    return _Extent(tile.offset, tile.length, tile.crc32c, f"tile {tile.box} of {entry.name}", targets, copies)


def _in_rows(parts: Sequence[tuple[Box, Tensor]], tile: Tile) -> tuple[_Bytes | int, ...]:
    """Where a tile's bytes go if each part is whole rows of it and contiguous where it goes; else nothing."""
    box = tile.box
    row = tile.length // box.shape[0] if box.shape else 0
    found: list[_Bytes | int] = []
    at = box.start[0] if box.shape else 0
    for part, out in sorted(parts, key=lambda one: one[0].start):
        if not box.shape or part.shape[1:] != box.shape[1:] or part.start[0] < at or not out.is_contiguous():
            return ()
        found += [(part.start[0] - at) * row, _bytes_of(out)]
        at = part.end[0]
    return (*found, (box.end[0] - at) * row)


def _bytes_of(tensor: Tensor) -> _Bytes:
    data: _Bytes = tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8).numpy()
    return data


def _fetch(
    store: CheckpointStore,
    manifest: Manifest,
    extents: Mapping[str, list[_Extent]],
    heads: Collection[str] | None = None,
) -> int:
    runs: list[_Run] = []
    for name, parts in extents.items():
        file = manifest.files[name]
        head = _Extent(0, file.header_bytes, file.header_crc32c, "its safetensors header")
        checked = [head] if heads is None or name in heads else []
        runs.extend(_Run(name, run) for run in _coalesce([*checked, *parts]))
    scratch = _Scratch()
    with ThreadPoolExecutor(min(_READERS, len(runs)) or 1, thread_name_prefix="read-tensors") as pool:
        return sum(pool.map(lambda run: _read_run(store, manifest.uri, run, scratch), runs))


def _coalesce(extents: list[_Extent]) -> Iterator[tuple[_Extent, ...]]:
    run: list[_Extent] = []
    scratch = 0
    for extent in sorted(extents, key=lambda e: (e.offset, e.length)):
        aside = extent.scratch_bytes
        if run:
            end = extent.offset + extent.length
            gap = extent.offset - (run[-1].offset + run[-1].length)
            if gap > GAP_BYTES or end - run[0].offset > RUN_BYTES or scratch + aside > _SCRATCH_BYTES:
                yield tuple(run)
                run, scratch = [], 0
        run.append(extent)
        scratch += aside
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


def _read_run(store: CheckpointStore, uri: str, run: _Run, scratch: _Scratch) -> int:
    start, last = run.extents[0].offset, run.extents[-1]
    num_takes = sum(2 + len(extent.targets) for extent in run.extents)
    scratch.start(last.offset + last.length - start + _ALIGNMENT * num_takes)
    buffers: list[_Bytes] = []
    memory: list[list[_Bytes]] = []
    at = start
    for extent in run.extents:
        if extent.offset > at:
            buffers.append(scratch.take(extent.offset - at))
        targets = extent.targets or (extent.length,)
        memory.append([scratch.take(one) if isinstance(one, int) else one for one in targets])
        buffers += memory[-1]
        at = extent.offset + extent.length
    try:
        return _read_checked(store, uri, run, buffers, memory)
    except CorruptCheckpoint as error:
        if not doubted(store, f"{uri}/{run.file}", str(error)):
            raise
        return _read_checked(store, uri, run, buffers, memory)


def _read_checked(
    store: CheckpointStore, uri: str, run: _Run, buffers: Sequence[_Bytes], memory: Sequence[Sequence[_Bytes]]
) -> int:
    """Fill the buffers, hold each extent's memory against its checksum, make its copies; the bytes read."""
    start = run.extents[0].offset
    try:
        num = store.read_into(f"{uri}/{run.file}", start, [b.data for b in buffers if b.nbytes])
    except FileNotFoundError as error:
        raise CorruptCheckpoint(f"Checkpoint {uri}: {run.file} is missing; it holds {run.extents[-1].what}.") from error
    for extent, data in zip(run.extents, memory, strict=True):
        if extent.offset + extent.length > start + num:
            raise CorruptCheckpoint(
                f"Checkpoint {uri}: {run.file} ends at byte {start + num}, before the end of {extent.what} "
                f"at byte {extent.offset + extent.length}: it was cut short."
            )
        seen = crc32c(*data)
        if seen != extent.crc32c:
            raise CorruptCheckpoint(
                f"Checkpoint {uri}: {run.file}: {extent.what} has CRC-32C {seen}, written was {extent.crc32c}."
            )
        for copy in extent.copies:
            tile = torch.from_numpy(data[0]).view(copy.out.dtype).reshape(copy.shape)
            copy.out.copy_(tile[copy.index])
    return num


def _some(names: Iterable[str], limit: int = 8) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - limit} more" if len(listed) > limit else ""
    return ", ".join(listed[:limit]) + more
