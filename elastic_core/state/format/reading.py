"""Reading tensors: only the byte ranges of the tiles asked for, straight into the tensors' memory.

Neighbouring tiles come by one request (`state.format.read_plan`). Nothing is given out before every checksum held; a
store with caches in front of it is asked once more for what did not hold. Of what cannot go straight to its place all
threads together hold one tile of scratch memory, or what the caller has given.
"""

from __future__ import annotations

import queue
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import google_crc32c
import numpy as np
import torch
from torch import Tensor

from elastic_core.errors import CorruptCheckpoint, UserError
from elastic_core.state.buffers import aligned_below
from elastic_core.state.format.manifest import Manifest, TensorEntry, read_manifest
from elastic_core.state.format.read_plan import (
    Bytes,
    Destination,
    Extent,
    FilePiece,
    Run,
    coalesce,
    extent_into,
    unrequested,
)
from elastic_core.state.layout.boxes import TILE_BYTES, Box
from elastic_core.state.layout.dtypes import dtype_of
from elastic_core.state.stores.store import CheckpointStore, distrusted

SCRATCH_BYTES = 4 << 20  # of one request: what does not go straight to its place
SCRATCH_PARTS = TILE_BYTES // SCRATCH_BYTES
_LEAST_BYTES = 128 << 10  # of one of several parts of scratch memory
_READERS = 8


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
    tensors = {
        name: torch.empty(box.shape, dtype=dtype_of(manifest.tensors[name].dtype)) for name, box in outer.items()
    }
    fill(store, manifest, [Destination(name, box, tensors[name]) for name, box in outer.items()])
    return tensors


def fill(
    store: CheckpointStore,
    manifest: Manifest,
    destinations: Iterable[Destination],
    heads: Collection[str] | None = None,
    scratch: Tensor | None = None,
) -> int:
    """Fill memory with parts of tensors, each tile read once however many want of it; the bytes read from the store.

    `heads`: the files whose header is to be checked; None for all that are read from. `scratch`: bytes to use for what
    passes through; without them a tile of memory is made, as far as it is needed. Raises as `read_tensors`; then the
    memory holds anything.
    """
    aside = _Scratch(scratch)
    wanted: dict[str, list[Destination]] = {}
    for destination in destinations:
        _wanted_box(manifest, destination.name, destination.box)
        _require_fit(destination, manifest.tensors[destination.name])
        wanted.setdefault(destination.name, []).append(destination)
    extents: dict[str, list[Extent]] = {}
    for name, places in wanted.items():
        for tile in manifest.tensors[name].tiles:
            extent = extent_into(places, tile, manifest.tensors[name], aside.part_bytes)
            if extent is not None:
                extents.setdefault(tile.file, []).append(extent)
    return _fetch(store, manifest, extents, aside, heads)


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
    extents: dict[str, list[Extent]] = {name: [] for name in manifest.files}
    for name, file in manifest.files.items():
        size = store.size(f"{uri}/{name}")
        if size is not None and size != file.size:
            raise CorruptCheckpoint(f"Checkpoint {uri}: {name} has {size} bytes, its manifest says {file.size}.")
    for tensor in manifest.tensors.values():
        for tile in tensor.tiles:
            what = f"tile {tile.box} of {tensor.name}"
            extents[tile.file].append(
                Extent(tile.offset, tile.length, tile.crc32c, what, tuple(unrequested(tile.length, SCRATCH_BYTES)))
            )
    _fetch(store, manifest, extents, _Scratch())
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


def _fetch(
    store: CheckpointStore,
    manifest: Manifest,
    extents: Mapping[str, list[Extent]],
    scratch: _Scratch,
    heads: Collection[str] | None = None,
) -> int:
    runs: list[Run] = []
    for name, parts in extents.items():
        file = manifest.files[name]
        pieces = tuple(unrequested(file.header_bytes, scratch.part_bytes))
        head = Extent(0, file.header_bytes, file.header_crc32c, "its safetensors header", pieces)
        checked = [head] if heads is None or name in heads else []
        runs.extend(Run(name, run) for run in coalesce([*checked, *parts], scratch.part_bytes))
    if len(runs) < 2:  # no threads, which would cost more than the reading
        return sum(_read_run(store, manifest.uri, run, scratch) for run in runs)
    with ThreadPoolExecutor(min(_READERS, len(runs)), thread_name_prefix="read-tensors") as pool:
        return sum(pool.map(lambda run: _read_run(store, manifest.uri, run, scratch), runs))


class _Scratch:
    """Memory for as many runs at a time as have a part of it: what is given, or else one tile, each part made when it
    is first needed. Fresh memory for each request would cost more than the copying."""

    def __init__(self, given: Tensor | None = None) -> None:
        self._parts: queue.LifoQueue[Bytes | None] = queue.LifoQueue()  # what was given back is lent first
        num_parts, self.part_bytes = SCRATCH_PARTS, SCRATCH_BYTES
        if given is not None:
            num_parts = max(1, min(SCRATCH_PARTS, given.numel() // _LEAST_BYTES))
            self.part_bytes = aligned_below(given.numel() // num_parts) or given.numel()
        for i in range(num_parts):
            self._parts.put(None if given is None else given[i * self.part_bytes :][: self.part_bytes].numpy())

    @contextmanager
    def lent(self, run: Run) -> Iterator[Bytes]:
        """What its requests need; waits for another run to give its own back."""
        if not any(piece.scratch_bytes for _, piece in run.pieces(self.part_bytes)):
            yield np.empty(0, dtype=np.uint8)
            return
        part = self._parts.get()
        try:
            if part is None:
                part = np.empty(self.part_bytes, dtype=np.uint8)
            yield part
        finally:
            self._parts.put(part)


def _read_run(store: CheckpointStore, uri: str, run: Run, scratch: _Scratch) -> int:
    with scratch.lent(run) as memory:
        try:
            return _read_checked(store, uri, run, memory)
        except CorruptCheckpoint as error:
            if not distrusted(store, f"{uri}/{run.file}", str(error)):
                raise
            return _read_checked(store, uri, run, memory)


def _read_checked(store: CheckpointStore, uri: str, run: Run, scratch: Bytes) -> int:
    """Fill the pieces' places, hold each extent's bytes against its checksum, make the copies; the bytes read."""
    at = start = run.extents[0].offset
    crc = 0
    for request in run.requests(len(scratch)):
        places = _places([piece for _, piece in request], scratch)
        end = at + _read_into(store, uri, run, at, places)
        for (extent, piece), data in zip(request, places, strict=True):
            at += piece.length
            if extent is None:
                continue
            if at > end:
                raise CorruptCheckpoint(
                    f"Checkpoint {uri}: {run.file} ends at byte {end}, before the end of {extent.what} at byte "
                    f"{extent.end}: it was cut short."
                )
            crc = google_crc32c.extend(0 if piece is extent.pieces[0] else crc, data)
            for copy in piece.copies:
                copy.out.copy_(torch.from_numpy(data).view(copy.out.dtype).reshape(copy.shape)[copy.index])
            if piece is extent.pieces[-1]:
                _hold(crc, extent, f"Checkpoint {uri}: {run.file}")
    return at - start


def _places(pieces: Iterable[FilePiece], scratch: Bytes) -> list[Bytes]:
    places = []
    used = 0
    for piece in pieces:
        places.append(scratch[used : used + piece.length] if piece.target is None else piece.target)
        used += piece.scratch_bytes
    return places


def _read_into(store: CheckpointStore, uri: str, run: Run, offset: int, places: Iterable[Bytes]) -> int:
    try:
        return store.read_into(f"{uri}/{run.file}", offset, [place.data for place in places if place.nbytes])
    except FileNotFoundError as error:
        raise CorruptCheckpoint(f"Checkpoint {uri}: {run.file} is missing; it holds {run.extents[-1].what}.") from error


def _hold(crc: int, extent: Extent, where: str) -> None:
    seen = f"{crc:08x}"
    if seen != extent.crc32c:
        raise CorruptCheckpoint(f"{where}: {extent.what} has CRC-32C {seen}, written was {extent.crc32c}.")


def _some(names: Iterable[str], limit: int = 8) -> str:
    listed = sorted(names)
    more = f" and {len(listed) - limit} more" if len(listed) > limit else ""
    return ", ".join(listed[:limit]) + more
