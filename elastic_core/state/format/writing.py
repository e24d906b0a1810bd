"""Writing one rank's tensors as a safetensors shard, one tile at a time, so that a shard is never in memory twice.

`plan_writers` and `plan_shards` choose who writes what several ranks hold (the least loaded, alike on every rank).
Tiles of CPU memory are written from where they lie; others are copied through one staging buffer, pinned for CUDA.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from elastic_core.crashing import crash_here
from elastic_core.errors import UserError
from elastic_core.state.format.manifest import ShardFile, ShardInfo, TensorEntry, Tile, crc32c
from elastic_core.state.layout.boxes import TILE_BYTES, Box, tiles, tiling_fault
from elastic_core.state.layout.dtypes import dtype_of, name_of, safetensors_name
from elastic_core.state.layout.layout import StateLayout, TensorMeta, partition
from elastic_core.state.stores.store import CheckpointStore

_Bytes = NDArray[np.uint8]


def plan_writers(sizes: Mapping[str, int], world: int) -> tuple[tuple[str, ...], ...]:
    """Which rank writes which of the tensors that every rank holds: the names of each rank, sizes in bytes."""
    if world < 1:
        raise UserError(f"A world has at least 1 rank, not {world}.")
    order = sorted(sizes, key=lambda name: (-sizes[name], name))
    writers = _least_loaded([(sizes[name], range(world)) for name in order], world)
    names: list[list[str]] = [[] for _ in range(world)]
    for name, rank in zip(order, writers, strict=True):
        names[rank].append(name)
    return tuple(tuple(sorted(part)) for part in names)


def plan_shards(layout: StateLayout, metas: Mapping[str, TensorMeta]) -> tuple[dict[str, Box], ...]:
    """Which part of which tensor each rank writes: every part that some rank holds, by exactly one that holds it.

    Raises `UserError` when the parts that the ranks hold do not make up a tensor.
    """
    holders: dict[str, dict[Box, list[int]]] = {name: {} for name in metas}
    for rank, boxes in enumerate(partition(layout, metas)):
        for name, box in boxes.items():
            holders[name].setdefault(box, []).append(rank)
    for name, parts in holders.items():
        fault = tiling_fault(metas[name].shape, list(parts))
        if fault is not None:
            raise UserError(f"The layout does not place tensor {name} of shape {list(metas[name].shape)}: {fault}.")
    bytes_of = {name: dtype_of(meta.dtype).itemsize for name, meta in metas.items()}
    items = [(box.volume * bytes_of[name], name, box) for name, parts in holders.items() for box in parts]
    items.sort(key=lambda item: (-item[0], item[1], item[2].start))
    writers = _least_loaded([(size, holders[name][box]) for size, name, box in items], layout.world)
    shards: list[dict[str, Box]] = [{} for _ in range(layout.world)]
    for (_, name, box), rank in zip(items, writers, strict=True):
        shards[rank][name] = box
    return tuple(shards)


def _least_loaded(items: Sequence[tuple[int, Sequence[int]]], world: int) -> list[int]:
    """A rank for each (bytes, ranks that could), in their order: that with the least bytes so far.

    Largest first this is Graham's rule (1969: at most 4/3 of the best maximum where every rank could), and every rank
    that knows the sizes finds the same plan.
    """
    loads, counts, chosen = [0] * world, [0] * world, []
    for size, ranks in items:
        rank = min(ranks, key=lambda r: (loads[r], counts[r], r))
        loads[rank] += size
        counts[rank] += 1
        chosen.append(rank)
    return chosen


def write_shard(
    store: CheckpointStore,
    uri: str,
    rank: int,
    tensors: Mapping[str, Tensor],
    boxes: Mapping[str, Box] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
) -> ShardInfo:
    """Write one rank's tensors to `<uri>/shard-<rank>.safetensors`; once this returns they are durable.

    A tensor named in `boxes` is that part of a tensor of shape `shapes[name]`; any other is whole. Tensors may be
    on any device and must not change meanwhile. Raises `UserError` for what a checkpoint cannot hold.
    """
    name = f"shard-{rank}.safetensors"
    planned = sorted(_plan_tiles(tensors, boxes or {}, shapes or {}), key=lambda tile: tile.order)
    header = _safetensors_header(planned)
    written: list[Tile] = []
    staging_buffer = StagingBuffer()

    def stream() -> Iterator[memoryview]:
        crash_here("save.begun")
        yield memoryview(header)
        offset = len(header)
        for tile in planned:
            data = staging_buffer.bytes_of(tensors[tile.tensor][tile.local])
            written.append(Tile(name, offset, data.nbytes, tile.box, crc32c(data)))
            offset += data.nbytes
            yield data.data
            crash_here("save.tile-written")

    store.put(f"{uri}/{name}", stream())
    crash_here("save.part-written")
    entries: dict[str, list[Tile]] = {tensor: [] for tensor in sorted(tensors)}
    for tile, done in zip(planned, written, strict=True):
        entries[tile.tensor].append(done)
    whole = {tile.tensor: tile for tile in planned}
    return ShardInfo(
        file=ShardFile(name, len(header) + sum(tile.length for tile in written), len(header), crc32c(header)),
        tensors=tuple(
            TensorEntry(tensor, whole[tensor].dtype, whole[tensor].shape, tuple(parts))
            for tensor, parts in entries.items()
        ),
    )


@dataclass(frozen=True, slots=True)
class _PlannedTile:
    tensor: str
    key: str  # its name in the safetensors file
    dtype: str
    shape: tuple[int, ...]  # of the whole tensor
    box: Box  # in the whole tensor
    local: tuple[slice, ...]  # in the tensor given
    nbytes: int

    @property
    def order(self) -> tuple[int, str, tuple[int, ...]]:
        """Wide elements first, so that each tile is aligned to its elements; then by name."""
        return (-dtype_of(self.dtype).itemsize, self.tensor, self.box.start)


def _plan_tiles(
    tensors: Mapping[str, Tensor], boxes: Mapping[str, Box], shapes: Mapping[str, Sequence[int]]
) -> Iterator[_PlannedTile]:
    for name, tensor in tensors.items():
        dtype = name_of(tensor.dtype, name)
        if "#" in name or name == "__metadata__" or not name:
            raise UserError(
                f"A checkpoint cannot hold a tensor named {name!r}: '#' and '__metadata__' are its own words."
            )
        if tensor.layout != torch.strided or tensor.is_meta:
            raise UserError(
                f"Tensor {name} is {tensor.layout} on {tensor.device}: a checkpoint holds dense tensors only."
            )
        box = boxes.get(name) or Box.whole(tensor.shape)
        shape = tuple(shapes[name]) if name in shapes else tuple(tensor.shape)
        if box.shape != tuple(tensor.shape) or not box.within(shape):
            raise UserError(
                f"Tensor {name} of shape {list(tensor.shape)} cannot be the part {box} of a tensor of shape "
                f"{list(shape)}."
            )
        for part in tiles(box, tensor.element_size()):
            is_whole = part == Box.whole(shape)
            key = name if is_whole else f"{name}#{','.join(map(str, part.start))}"
            nbytes = part.volume * tensor.element_size()
            yield _PlannedTile(name, key, dtype, shape, part, part.slices(box.start), nbytes)


def _safetensors_header(planned: Sequence[_PlannedTile]) -> bytes:
    """Length, JSON, padded to 8 bytes: https://huggingface.co/docs/safetensors, section "Format"."""
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for tile in planned:
        entries[tile.key] = {
            "dtype": safetensors_name(tile.dtype),
            "shape": list(tile.box.shape),
            "data_offsets": [offset, offset + tile.nbytes],
        }
        offset += tile.nbytes
    body = json.dumps(entries, separators=(",", ":")).encode()
    body += b" " * (-len(body) % 8)
    return len(body).to_bytes(8, "little") + body


class StagingBuffer:
    """Where tiles go that are not one run of CPU memory: one place for all of them, since fresh memory for each costs
    more than the copying. Pinned for CUDA."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def bytes_of(self, tensor: Tensor) -> _Bytes:
        """The tensor's bytes in row-major order, on any device, valid until the next call."""
        plain = tensor.detach().resolve_conj().resolve_neg()
        num_bytes = plain.numel() * plain.element_size()
        if plain.device.type == "cpu" and plain.is_contiguous():
            flat = plain.reshape(-1)
            if flat.stride(0) == 1:  # one element is contiguous with any stride, but not viewed as bytes
                return _as_bytes(flat)
        if self._memory.numel() < num_bytes:
            self._memory = torch.empty(max(num_bytes, TILE_BYTES), dtype=torch.uint8, pin_memory=plain.is_cuda)
        staged = self._memory[:num_bytes]
        staged.view(plain.dtype).view(plain.shape).copy_(plain)
        return _as_bytes(staged)


def _as_bytes(flat: Tensor) -> _Bytes:
    data: _Bytes = flat.view(torch.uint8).numpy()
    return data
