"""Filling memory with parts of a checkpoint: each tile read once, straight into place where its bytes lie alike."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from elastic_core.errors import CorruptCheckpoint
from elastic_core.state.format.checkpoint_format import read_manifest, write_manifest, write_shard
from elastic_core.state.format.read_plan import Destination
from elastic_core.state.format.reading import fill
from elastic_core.state.layout.boxes import TILE_BYTES, Box
from elastic_core.state.stores.local_store import LocalStore
from elastic_core.state.stores.store import CheckpointStore
from tests.state.builders import HEADER, URI


def test_a_column_of_a_row_major_tile_is_read_with_its_tile_once(folder_store: CheckpointStore) -> None:
    state = {"w": torch.arange(64.0).reshape(8, 8)}
    write_manifest(folder_store, URI, [write_shard(folder_store, URI, 0, state)], HEADER, {})
    manifest = read_manifest(folder_store, URI)
    left, right, whole, again = torch.empty(8, 3), torch.empty(8, 5), torch.empty(8, 8), torch.empty(8, 8)
    places = [
        Destination("w", Box((0, 0), (8, 3)), left),
        Destination("w", Box((0, 3), (8, 5)), right),
        Destination("w", Box((0, 0), (8, 8)), whole),
        Destination("w", Box((0, 0), (8, 8)), again),
    ]
    header = next(iter(manifest.files.values())).header_bytes
    assert fill(folder_store, manifest, places) == header + 64 * 4
    assert torch.equal(torch.cat([left, right], dim=1), state["w"])
    assert torch.equal(whole, state["w"])
    assert torch.equal(again, state["w"])


def test_rows_of_a_tile_are_read_straight_into_their_places_and_checked_with_the_rest(tmp_path: Path) -> None:
    buffers: list[memoryview] = []

    class Watched(LocalStore):
        def read_into(self, key: str, offset: int, into: Sequence[memoryview]) -> int:
            buffers.extend(into)
            return super().read_into(key, offset, into)

    store = Watched(tmp_path)
    state = {"w": torch.arange(64.0).reshape(8, 8)}
    write_manifest(store, URI, [write_shard(store, URI, 0, state)], HEADER, {})
    manifest = read_manifest(store, URI)
    top, rest = torch.empty(3, 8), torch.empty(2, 8)
    places = [Destination("w", Box((6, 0), (2, 8)), rest), Destination("w", Box((0, 0), (3, 8)), top)]
    fill(store, manifest, places)  # nobody wants the rows 3 to 5
    assert torch.equal(top, state["w"][:3])
    assert torch.equal(rest, state["w"][6:])
    for place in (top, rest):
        assert any(np.shares_memory(np.frombuffer(buffer, np.uint8), place.numpy()) for buffer in buffers)
    (file,) = manifest.files.values()
    path = tmp_path / URI / file.name
    raw = bytearray(path.read_bytes())
    raw[file.header_bytes + 4 * 8 * 4] ^= 1  # in row 4
    path.write_bytes(raw)
    with pytest.raises(CorruptCheckpoint, match="CRC-32C"):
        fill(store, manifest, places)


def test_columns_of_large_tiles_pass_through_one_tile_of_scratch_memory(tmp_path: Path) -> None:
    places: list[tuple[int, int]] = []

    class Watched(LocalStore):
        def read_into(self, key: str, offset: int, into: Sequence[memoryview]) -> int:
            arrays = [np.frombuffer(buffer, dtype=np.uint8) for buffer in into]
            places.extend((array.ctypes.data, array.nbytes) for array in arrays)
            return super().read_into(key, offset, into)

    store = Watched(tmp_path)
    state = {f"w{i}": torch.randn(1024, 4096) for i in range(6)}  # of 16 MiB
    write_manifest(store, URI, [write_shard(store, URI, 0, state)], HEADER, {})
    parts = {name: torch.empty(1024, 1000) for name in state}
    fill(store, read_manifest(store, URI), [Destination(n, Box((0, 7), (1024, 1000)), out) for n, out in parts.items()])
    assert all(torch.equal(parts[name], state[name][:, 7:1007]) for name in state)
    taken, end = 0, 0
    for begin, num_bytes in sorted(places):
        taken += max(0, begin + num_bytes - max(begin, end))
        end = max(end, begin + num_bytes)
    assert taken <= TILE_BYTES
    assert sum(num_bytes for _, num_bytes in places) >= 6 * TILE_BYTES
