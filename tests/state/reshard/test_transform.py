"""The laws of a change of layout: every tensor bit for bit, the bytes moved the lower bound, the map the best."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from elastic_core.domain import Slot
from elastic_core.errors import CorruptCheckpoint, InfrastructureError
from elastic_core.state.format.checkpoint_format import (
    Manifest,
    plan_shards,
    read_manifest,
    write_manifest,
    write_shard,
)
from elastic_core.state.format.read_plan import Destination
from elastic_core.state.format.reading import fill
from elastic_core.state.layout import boxes as boxes_module
from elastic_core.state.layout.boxes import TILE_BYTES, Box
from elastic_core.state.layout.layout import StateLayout, TensorMeta, partition
from elastic_core.state.reshard import transform as transform_module
from elastic_core.state.reshard.change_plan import holdings, plan_change
from elastic_core.state.reshard.in_process import transform
from elastic_core.state.reshard.pieces import Link
from elastic_core.state.reshard.tenplex_central import tenplex_central_plans
from elastic_core.state.reshard.transform import Memory, MemorySource, Part, Transformer, allocate
from elastic_core.state.stores.local_store import LocalStore
from elastic_core.state.stores.store import CheckpointStore
from elastic_core.state.stores.store_urls import open_store
from tests.state.builders import HEADER, URI, same_bits
from tests.state.changing_ranks import state_of
from tests.state.random_layouts import layouts_of, models, slots

State = Mapping[str, Tensor]


def memories(layout: StateLayout, metas: Mapping[str, TensorMeta], state: State) -> dict[Slot, Memory]:
    """The state as the devices of a layout hold it."""
    return {
        slot: {name: (Part(box, state[name][box.slices()].clone()),) for name, box in boxes.items()}
        for slot, boxes in zip(layout.slots, partition(layout, metas), strict=True)
    }


def save(store: CheckpointStore, layout: StateLayout, metas: Mapping[str, TensorMeta], state: State) -> Manifest:
    shapes = {name: meta.shape for name, meta in metas.items()}
    infos = [
        write_shard(store, URI, rank, {n: state[n][b.slices()] for n, b in boxes.items()}, boxes, shapes)
        for rank, boxes in enumerate(plan_shards(layout, metas))
    ]
    write_manifest(store, URI, infos, HEADER, {}, layout)
    return read_manifest(store, URI)


def assert_whole(new: Mapping[int, Memory], layout: StateLayout, metas: Mapping[str, TensorMeta], state: State) -> None:
    for rank, boxes in enumerate(partition(layout, metas)):
        assert new[rank].keys() == boxes.keys()
        for name, box in boxes.items():
            (part,) = new[rank][name]
            assert part.box == box
            assert same_bits(part.tensor, state[name][box.slices()]), (rank, name)


@pytest.fixture(autouse=True, scope="module")
def small_tiles() -> None:
    """A few elements a tile, so that small tensors have many."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transform_module, "tiles", lambda box, itemsize, _: boxes_module.tiles(box, itemsize, 64))
        yield


KINDS = [("sgd", "float32"), ("sgd", "bfloat16"), ("adamw", "float32"), ("adamw", "bfloat16")]


@pytest.mark.parametrize(("optimizer", "dtype"), KINDS)
@given(data=st.data())
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
def test_any_layout_becomes_any_other_bit_for_bit_with_the_least_bytes(
    optimizer: str, dtype: str, data: st.DataObject
) -> None:
    metas = data.draw(models(optimizer=optimizer, dtype=dtype))
    old, new = data.draw(layouts_of(metas)), data.draw(layouts_of(metas))
    per_node = data.draw(st.sampled_from([1, 2, 4, 8]))
    old = StateLayout(old.mesh, old.placements, slots(old.world, per_node))
    candidates = slots(max(old.world, new.world), per_node)
    state = state_of(metas, seed=data.draw(st.integers(0, 9)))
    plan = plan_change(metas, holdings(old, metas), new, candidates=candidates)
    found, received = transform(plan, metas, memories(old, metas, state))
    assert_whole(found, plan.target, metas, state)
    assert received.by_link == plan.num_bytes
    assert plan.moved == plan.bound
    assert received.store_bytes == 0


@given(data=st.data())
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
def test_what_lost_devices_held_comes_from_the_store(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    metas = data.draw(models())
    old, new = data.draw(layouts_of(metas)), data.draw(layouts_of(metas))
    per_node = data.draw(st.sampled_from([1, 2, 8]))
    old = StateLayout(old.mesh, old.placements, slots(old.world, per_node))
    lost = data.draw(st.sets(st.sampled_from(old.slots)))
    new = StateLayout(new.mesh, new.placements, slots(new.world, per_node))
    state = state_of(metas, seed=1)
    store = open_store(str(tmp_path_factory.mktemp("s")))
    manifest = save(store, old, metas, state)
    tiles = {name: [tile.box for tile in entry.tiles] for name, entry in manifest.tensors.items()}
    plan = plan_change(metas, holdings(old, metas, lost), new, tiles=tiles)
    survivors = {slot: memory for slot, memory in memories(old, metas, state).items() if slot not in lost}
    found, received = transform(plan, metas, survivors, lambda places: fill(store, manifest, places))
    assert_whole(found, plan.target, metas, state)
    assert received.by_link == plan.num_bytes
    assert plan.moved == plan.bound


@given(data=st.data())
@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
def test_the_central_way_gives_the_same_and_moves_no_less(data: st.DataObject) -> None:
    metas = data.draw(models())
    old, new = data.draw(layouts_of(metas)), data.draw(layouts_of(metas))
    state = state_of(metas, seed=2)
    plan = plan_change(metas, holdings(old, metas), new)
    gather, scatter = tenplex_central_plans(metas, holdings(old, metas), plan.target, old.slots[0])
    whole, _ = transform(gather, metas, memories(old, metas, state))
    found, received = transform(scatter, metas, {old.slots[0]: whole[0]})
    assert_whole(found, plan.target, metas, state)
    assert received.by_link == scatter.num_bytes
    assert scatter.moved.device == scatter.bound.device
    assert gather.moved.device + scatter.moved.device >= plan.moved.device


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


def test_no_more_than_one_tile_is_on_its_way_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transform_module, "tiles", boxes_module.tiles)
    monkeypatch.setattr(transform_module, "TILE_BYTES", 4096)
    metas = {"w": TensorMeta("float32", (100, 100))}
    lock, now, most = threading.Lock(), 0, 0

    class Watched(MemorySource):
        def read(self, name: str, box: Box, out: Tensor) -> None:
            nonlocal now, most
            with lock:
                now += out.nbytes
                most = max(most, now)
            super().read(name, box, out)
            with lock:
                now -= out.nbytes

    one, other = slots(2)
    plan = plan_change(metas, {one: {"w": (Box((0, 0), (100, 100)),)}}, _on(metas, other))
    state = torch.arange(10_000.0).reshape(100, 100)
    new = {0: allocate({"w": Box((0, 0), (100, 100))}, metas)}
    received = Transformer(plan, 0, new, {one: Watched({"w": (Part(Box((0, 0), (100, 100)), state),)})}).first()
    assert received.by_link[Link.HOST] == 40_000
    assert 0 < most <= 4096
    assert torch.equal(new[0]["w"][0].tensor, state)


def _on(metas: Mapping[str, TensorMeta], slot: Slot) -> StateLayout:
    from elastic_core.state.layout.layout import REPLICATED, Mesh

    return StateLayout(Mesh((), ()), dict.fromkeys(metas, REPLICATED), (slot,))


def test_a_source_that_is_missing_or_of_another_state_is_named() -> None:
    metas = {"w": TensorMeta("float32", (4,))}
    one, other = slots(2)
    plan = plan_change(metas, {one: {"w": (Box((0,), (4,)),)}}, _on(metas, other))
    new = {0: allocate({"w": Box((0,), (4,))}, metas)}
    with pytest.raises(InfrastructureError, match="Nobody gave the memory of"):
        Transformer(plan, 0, new, {}).first()
    with pytest.raises(InfrastructureError, match="does not hold"):
        Transformer(plan, 0, new, {one: MemorySource({})}).first()
    unheld = plan_change(metas, {}, _on(metas, other))
    with pytest.raises(InfrastructureError, match="there is no store"):
        Transformer(unheld, 0, new, {}).first()
    assert {name: tuple(part.box for part in parts) for name, parts in new[0].items()} == {"w": (Box((0,), (4,)),)}


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
