"""The laws of ranks that read a checkpoint together: every tensor bit for bit, what a host's ranks want read once."""

from __future__ import annotations

import math
import tracemalloc
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from elastic_core.domain import Slot
from elastic_core.errors import CorruptCheckpoint, InfrastructureError
from elastic_core.state.format import read_plan, writing
from elastic_core.state.format.checkpoint_format import Manifest
from elastic_core.state.format.reading import SCRATCH_BYTES
from elastic_core.state.layout import boxes as boxes_module
from elastic_core.state.layout.boxes import TILE_BYTES, Box
from elastic_core.state.layout.dtypes import dtype_of
from elastic_core.state.layout.layout import (
    DATA,
    REPLICATED,
    Mesh,
    Placement,
    Split,
    StateLayout,
    TensorMeta,
    partition,
)
from elastic_core.state.layout.overlap import WantedBoxes
from elastic_core.state.reshard import rounds, shared
from elastic_core.state.reshard.collective_load import load_collectively
from elastic_core.state.reshard.memories import Part, boxes_of
from elastic_core.state.reshard.rank_load import LoadGroup, OldMemories
from elastic_core.state.stores.local_store import LocalStore
from elastic_core.state.stores.store import CheckpointStore, HostFile, host_file
from tests.state.builders import same_bits
from tests.state.changing_ranks import state_of
from tests.state.loading_ranks import State, Threads, save
from tests.state.random_layouts import layouts_of, models, slots

OnRank = Callable[[int, CheckpointStore], CheckpointStore]


class Counted:
    """A store, and the bytes that one rank read of each file's tensors and headers. `by_ranges`: it has no files."""

    def __init__(self, store: CheckpointStore, by_ranges: bool = False) -> None:
        self._store, self._by_ranges = store, by_ranges
        self.url = store.url
        self.num_bytes = 0

    def host_file(self, key: str) -> HostFile | None:
        opened = None if self._by_ranges else host_file(self._store, key)
        return None if opened is None else replace(opened, taken=self._add)

    def _add(self, num_bytes: int) -> None:
        self.num_bytes += num_bytes

    def read_into(self, key: str, offset: int, buffers: Sequence[memoryview]) -> int:
        num = self._store.read_into(key, offset, buffers)
        self.num_bytes += num
        return num

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


class Read:
    """What came of a reading by all ranks, each a thread."""

    def __init__(self, world: int) -> None:
        self.found: list[Mapping[str, Tensor]] = [{}] * world
        self.num_bytes = [0] * world
        self.said: list[list[str]] = [[] for _ in range(world)]
        self.faults: list[Exception | None] = [None] * world


def read(
    store: CheckpointStore,
    manifest: Manifest,
    wanted: Sequence[WantedBoxes],
    places: Sequence[Slot],
    folder: Path,
    room: int | None = None,
    on_rank: OnRank = lambda _, store: store,
    into: Sequence[State] | None = None,
    by_ranges: bool = False,
) -> Read:
    world = len(places)
    result, threads = Read(world), Threads(world)

    def rank(number: int) -> None:
        counted = Counted(on_rank(number, store), by_ranges)
        free = [shared.room(folder) if room is None else room] * world
        group = LoadGroup(rank=number, slots=places, exchange=threads.of(number), room=free, folder=folder)
        try:
            memory = into[number] if into is not None else {}
            loaded = load_collectively(counted, manifest, wanted, group, result.said[number].append, into=memory)
            result.found[number] = loaded.tensors
            assert loaded.received.store_bytes == counted.num_bytes
        except InfrastructureError as error:
            result.faults[number] = error
        result.num_bytes[number] = counted.num_bytes

    with ThreadPoolExecutor(world) as pool:
        list(pool.map(rank, range(world)))
    return result


def read_by_host(result: Read, places: Sequence[Slot]) -> Counter[str]:
    total: Counter[str] = Counter()
    for slot, num_bytes in zip(places, result.num_bytes, strict=True):
        total[slot.node] += num_bytes
    return total


def needed_by_host(manifest: Manifest, wanted: Sequence[WantedBoxes], places: Sequence[Slot]) -> Counter[str]:
    """The tiles of what a host's ranks want, and the headers of their files."""
    needed: dict[str, dict[tuple[str, int], int]] = {slot.node: {} for slot in places}
    for slot, boxes in zip(places, wanted, strict=True):
        for name, box in boxes.items():
            for tile in manifest.tensors[name].tiles:
                if tile.length and tile.box.intersect(box) is not None:
                    needed[slot.node][tile.file, tile.offset] = tile.length
                    needed[slot.node][tile.file, 0] = manifest.files[tile.file].header_bytes
    return Counter({node: sum(parts.values()) for node, parts in needed.items()})


def assert_read(result: Read, wanted: Sequence[WantedBoxes], state: State) -> None:
    assert result.faults == [None] * len(wanted)
    for found, boxes in zip(result.found, wanted, strict=True):
        assert found.keys() == boxes.keys()
        assert all(same_bits(found[name], state[name][box.slices()]) for name, box in boxes.items())


@st.composite
def memory_for(draw: st.DrawFn, boxes: WantedBoxes, metas: Mapping[str, TensorMeta]) -> State:
    """Of a rank, for some of what it wants."""
    names = draw(st.sets(st.sampled_from(sorted(boxes)))) if boxes else set()
    return {name: torch.zeros(boxes[name].shape, dtype=dtype_of(metas[name].dtype)) for name in names}


@given(data=st.data())
@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
def test_any_ranks_read_what_any_others_wrote_and_each_host_every_tile_once(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory, memory_folder: Path
) -> None:
    metas = data.draw(models())
    old, new = data.draw(layouts_of(metas, 4)), data.draw(layouts_of(metas, 4))
    places = slots(new.world, per_node=data.draw(st.integers(1, 4)))
    staging_buffer = data.draw(st.sampled_from([256, 1024, 1 << 20]))  # so that there are several rounds
    state = state_of(metas, 3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "tiles", lambda box, itemsize: boxes_module.tiles(box, itemsize, 64))
        patch.setattr(rounds, "_STAGING_BYTES", staging_buffer)
        patch.setattr(rounds, "_SPARE_BYTES", 64)
        for module in (read_plan, rounds):
            patch.setattr(module, "GAP_BYTES", 0)  # what lies between would be read, and is more than these tensors
            patch.setattr(module, "RUN_BYTES", 256)
        store = LocalStore(tmp_path_factory.mktemp("store"))
        manifest = save(store, old, metas, state)
        wanted = partition(new, metas)
        into = [data.draw(memory_for(boxes, metas)) for boxes in wanted]
        by_ranges = data.draw(st.booleans())
        result = read(store, manifest, wanted, places, memory_folder, into=into, by_ranges=by_ranges)
    assert_read(result, wanted, state)
    for found, memory in zip(result.found, into, strict=True):
        assert all(found[name] is tensor for name, tensor in memory.items())
    assert read_by_host(result, places) == needed_by_host(manifest, wanted, places)
    assert result.said == [[]] * new.world
    assert list(memory_folder.iterdir()) == []


LARGE = {f"model/{i}": TensorMeta("float32", (1024, 1 << (6 + i))) for i in range(7)}  # 0.25 to 16 MiB
LARGE |= {f"model/{i}/bias": TensorMeta("float32", (1024,)) for i in range(40)}


def replicated(world: int, per_node: int) -> StateLayout:
    return StateLayout(Mesh((DATA,), (world,)), dict.fromkeys(LARGE, REPLICATED), slots(world, per_node))


def sharded(world: int, per_node: int) -> StateLayout:
    return StateLayout(
        Mesh((DATA,), (world,)), dict.fromkeys(LARGE, Placement((Split(DATA, 0),))), slots(world, per_node)
    )


@pytest.fixture(scope="module")
def large() -> State:
    return state_of(LARGE, 1)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("by_ranges", [True, False])
@pytest.mark.parametrize("per_node", [1, 2, 4])
@pytest.mark.parametrize(("writers", "world"), [(replicated(2, 2), 4), (sharded(4, 4), 3), (sharded(3, 3), 2)])
@pytest.mark.parametrize("layout", [replicated, sharded])
def test_a_host_reads_hardly_more_than_its_ranks_want_together(
    tmp_path: Path, memory_folder: Path, large: State, writers: StateLayout, world: int, layout, per_node: int,
    by_ranges: bool,
) -> None:  # fmt: skip
    store = LocalStore(tmp_path / "store")
    manifest = save(store, writers, LARGE, large)
    target = layout(world, per_node)
    wanted = partition(target, LARGE)
    result = read(store, manifest, wanted, target.slots, memory_folder, by_ranges=by_ranges)
    assert_read(result, wanted, large)
    needed = needed_by_host(manifest, wanted, target.slots)
    for node, num_bytes in read_by_host(result, target.slots).items():
        assert num_bytes <= 1.02 * needed[node]
        ranks = [rank for rank, slot in enumerate(target.slots) if slot.node == node]
        if layout is replicated:  # all read alike, but for the size of what one request fetches
            assert max(result.num_bytes[rank] for rank in ranks) - num_bytes / len(ranks) <= read_plan.RUN_BYTES


@pytest.mark.parametrize("world", [1, 4])
def test_columns_pass_through_one_tile_of_memory_for_each_rank(
    tmp_path: Path, memory_folder: Path, large: State, world: int
) -> None:
    by_columns = {name: Placement((Split(DATA, 1),) if len(meta.shape) == 2 else ()) for name, meta in LARGE.items()}
    target = StateLayout(Mesh((DATA,), (4,)), by_columns, slots(4))
    store = LocalStore(tmp_path / "store")
    manifest = save(store, replicated(2, 2), LARGE, large)
    wanted = partition(target, LARGE)[:world]
    tracemalloc.start()  # sees NumPy's arrays, of which scratch memory would be made, and neither tensors nor mappings
    try:
        result = read(store, manifest, wanted, target.slots[:world], memory_folder, by_ranges=True)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert_read(result, wanted, large)
    if world == 1:  # which shares nothing, so that its tile is its own
        assert SCRATCH_BYTES < peak < 1.2 * TILE_BYTES
    else:
        assert peak < SCRATCH_BYTES


def test_what_lies_between_small_tensors_is_not_read_by_two(tmp_path: Path, memory_folder: Path) -> None:
    metas = {f"model/{i}": TensorMeta("float32", (2048,)) for i in range(200)}
    state, store = state_of(metas, 2), LocalStore(tmp_path / "store")
    three, two = (StateLayout(Mesh((DATA,), (n,)), dict.fromkeys(metas, REPLICATED), slots(n)) for n in (3, 2))
    manifest = save(store, three, metas, state)
    wanted = partition(two, metas)
    result = read(store, manifest, wanted, two.slots, memory_folder)
    assert_read(result, wanted, state)
    assert sum(result.num_bytes) == sum(file.size for file in manifest.files.values())


def test_memory_that_does_not_fit_or_that_others_read_from_is_left_alone(tmp_path: Path, memory_folder: Path) -> None:
    metas = {f"model/{name}": TensorMeta("float32", (8, 4)) for name in ("fits", "small", "double", "columns", "held")}
    state, store = state_of(metas, 5), LocalStore(tmp_path / "store")
    one = StateLayout(Mesh((), ()), dict.fromkeys(metas, REPLICATED), slots(1))
    manifest = save(store, one, metas, state)
    wanted = partition(one, metas)
    held = torch.zeros(8, 4)
    held[:4] = state["model/held"][:4]
    into = {
        "model/fits": torch.zeros(8, 4),
        "model/small": torch.zeros(4, 4),
        "model/double": torch.zeros(8, 4, dtype=torch.float64),
        "model/columns": torch.zeros(4, 8).T,
        "model/held": held,
    }
    own = {"model/held": (Part(Box((0, 0), (4, 4)), held[:4]),)}
    old = OldMemories(boxes={one.slots[0]: boxes_of(own)}, own=own)
    group = LoadGroup(rank=0, slots=one.slots, exchange=lambda data: [data], room=[1 << 30], folder=memory_folder)
    loaded = load_collectively(store, manifest, wanted, group, print, old, into)
    assert all(same_bits(loaded.tensors[name], state[name]) for name in metas)
    assert [name for name in metas if loaded.tensors[name] is into[name]] == ["model/fits"]
    assert not any(tensor.any() for name, tensor in into.items() if name not in ("model/fits", "model/held"))
    assert not held[4:].any()


TINY = {"model/a": TensorMeta("float32", (31, 24)), "model/b": TensorMeta("bfloat16", (24, 17))}
TWO = tuple(Slot("node-0", index, "cpu") for index in range(2))
WHOLE: Sequence[WantedBoxes] = [{name: Box.whole(meta.shape) for name, meta in TINY.items()}] * 2
STATE = state_of(TINY, 7)


def saved(store: CheckpointStore) -> Manifest:
    return save(store, StateLayout(Mesh((DATA,), (2,)), dict.fromkeys(TINY, REPLICATED), TWO), TINY, STATE)


def test_what_belongs_to_one_rank_is_read_by_it_alone(folder_store: CheckpointStore, memory_folder: Path) -> None:
    manifest = saved(folder_store)
    wanted: Sequence[WantedBoxes] = [{"model/a": Box.whole((31, 24))}, {"model/b": Box.whole((24, 17))}]
    result = read(folder_store, manifest, wanted, TWO, memory_folder)
    assert [set(found) for found in result.found] == [{"model/a"}, {"model/b"}]
    assert same_bits(result.found[1]["model/b"], STATE["model/b"])
    size = sum(math.prod(meta.shape) * (4 if meta.dtype == "float32" else 2) for meta in TINY.values())
    assert sum(result.num_bytes) == size + sum(file.header_bytes for file in manifest.files.values())


def test_ranks_of_two_nodes_share_no_memory(folder_store: CheckpointStore, memory_folder: Path) -> None:
    manifest = saved(folder_store)
    apart = (TWO[0], replace(TWO[1], node="node-1"))
    result = read(folder_store, manifest, WHOLE, apart, memory_folder / "not there")
    assert_read(result, WHOLE, STATE)
    assert result.num_bytes[0] == result.num_bytes[1]
    assert result.said == [[], []]


@pytest.mark.parametrize("why", ["no room", "no folder"])
def test_without_memory_to_share_each_reads_for_itself(
    folder_store: CheckpointStore, memory_folder: Path, why: str
) -> None:
    manifest = saved(folder_store)
    if why == "no room":
        result = read(folder_store, manifest, WHOLE, TWO, memory_folder, room=4096, by_ranges=True)
    else:
        result = read(folder_store, manifest, WHOLE, TWO, memory_folder / "not there", room=1 << 30, by_ranges=True)
    assert_read(result, WHOLE, STATE)
    assert result.num_bytes[0] == result.num_bytes[1] == sum(file.size for file in manifest.files.values())
    for (said,) in result.said:  # alike on both
        assert said.startswith("each rank reads the checkpoint for itself: ")
        assert ("has room to share 1024 bytes, and needs" in said) == (why == "no room")
    assert list(memory_folder.iterdir()) == []


def test_damage_that_one_rank_finds_is_damage_for_all_with_its_reason(
    folder_store: CheckpointStore, memory_folder: Path
) -> None:
    manifest = saved(folder_store)
    (tile,) = manifest.tensors["model/a"].tiles
    path = Path(folder_store.url) / manifest.uri / tile.file
    data = bytearray(path.read_bytes())
    data[tile.offset] ^= 1
    path.write_bytes(data)
    result = read(folder_store, manifest, WHOLE, TWO, memory_folder)
    assert [type(fault) for fault in result.faults] == [CorruptCheckpoint] * 2
    (why,) = {str(fault) for fault in result.faults}
    assert why.startswith(f"Checkpoint {manifest.uri}: {tile.file}: tile ")


class Silent(Counted):
    """A store that does not answer."""

    def __init__(self, store: CheckpointStore) -> None:
        super().__init__(store, by_ranges=True)

    def read_into(self, key: str, offset: int, buffers: Sequence[memoryview]) -> int:
        raise InfrastructureError("The store does not answer.")


def test_a_store_that_does_not_answer_one_rank_damages_nothing(
    folder_store: CheckpointStore, memory_folder: Path
) -> None:
    result = read(
        folder_store, saved(folder_store), WHOLE, TWO, memory_folder,
        on_rank=lambda rank, store: Silent(store) if rank == 1 else store,
    )  # fmt: skip
    assert [type(fault) for fault in result.faults] == [InfrastructureError] * 2
    assert {str(fault) for fault in result.faults} == {
        "Reading the checkpoint failed: rank 1: The store does not answer."
    }


def test_empty_parts_and_numbers_are_read_too(folder_store: CheckpointStore, memory_folder: Path) -> None:
    metas = {"w": TensorMeta("float32", (3, 2)), "step": TensorMeta("float32", ()), "none": TensorMeta("int64", (0, 4))}
    state = {"w": torch.randn(3, 2), "step": torch.tensor(3.0), "none": torch.empty(0, 4, dtype=torch.int64)}
    layout = StateLayout(Mesh((DATA,), (2,)), dict.fromkeys(metas, REPLICATED), TWO)
    manifest = save(folder_store, layout, metas, state)
    rest = {"step": Box((), ()), "none": Box.whole((0, 4))}
    wanted: Sequence[WantedBoxes] = [{"w": Box.whole((3, 2)), **rest}, {"w": Box((0, 0), (0, 2)), **rest}]
    assert_read(read(folder_store, manifest, wanted, TWO, memory_folder), wanted, state)
