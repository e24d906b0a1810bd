"""A layout says where every element of the state lies: slicing, partitioning, allocation, and its JSON."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core import domain
from elastic_core.domain import Slot
from elastic_core.errors import CorruptCheckpoint, UserError
from elastic_core.state.format.checkpoint_format import (
    plan_shards,
    read_manifest,
    read_tensors,
    write_manifest,
    write_shard,
)
from elastic_core.state.layout.boxes import Box, tiling_fault
from elastic_core.state.layout.layout import (
    DATA,
    PIPELINE,
    REPLICATED,
    TENSOR,
    Mesh,
    Placement,
    Split,
    StateLayout,
    TensorMeta,
    layout_from_json,
    layout_to_json,
    partition,
)
from elastic_core.state.stores.store import CheckpointStore
from tests.state.builders import HEADER, URI, same_bits
from tests.state.changing_ranks import state_of
from tests.state.random_layouts import random_cases, slots


def laid(mesh: Mesh, **placements: Placement) -> StateLayout:
    return StateLayout(mesh, placements, slots(mesh.world))


def test_ranks_are_counted_with_tensor_parallel_neighbours_next_to_each_other() -> None:
    mesh = Mesh.of(domain.Layout(data=2, tensor=3, pipeline=2))
    assert mesh.world == 12
    assert mesh.coordinates(0) == {PIPELINE: 0, DATA: 0, TENSOR: 0}
    assert mesh.coordinates(1) == {PIPELINE: 0, DATA: 0, TENSOR: 1}
    assert mesh.coordinates(3) == {PIPELINE: 0, DATA: 1, TENSOR: 0}
    assert mesh.coordinates(11) == {PIPELINE: 1, DATA: 1, TENSOR: 2}


def test_an_uneven_cut_is_that_of_torch_chunk() -> None:
    for length in range(12):
        for parts in range(1, 6):
            layout = laid(Mesh((DATA,), (parts,)), w=Placement((Split(DATA, 0),)))
            chunks = torch.arange(length).chunk(parts)
            got = [boxes.get("w") for boxes in partition(layout, {"w": TensorMeta("float32", (length,))})]
            assert [box.shape[0] for box in got if box and box.volume] == [len(c) for c in chunks if len(c)]


def test_a_cut_may_name_its_sizes() -> None:
    layout = laid(Mesh((TENSOR,), (3,)), w=Placement((Split(TENSOR, 1, (5, 0, 2)),)))
    boxes = partition(layout, {"w": TensorMeta("float32", (4, 7))})
    assert [b.get("w") for b in boxes] == [Box((0, 0), (4, 5)), None, Box((0, 5), (4, 2))]
    with pytest.raises(UserError, match=r"\(5, 0, 2\) do not make up the 8 elements of dim 1 over the 3 ranks"):
        partition(layout, {"w": TensorMeta("float32", (4, 8))})


def test_the_first_cut_is_cut_again_by_the_second() -> None:
    mesh = Mesh((DATA, TENSOR), (2, 2))
    layout = laid(mesh, w=Placement((Split(TENSOR, 0), Split(DATA, 0))))
    rows = [boxes["w"].start[0] for boxes in partition(layout, {"w": TensorMeta("float32", (8, 8))})]
    assert rows == [0, 4, 2, 6]  # FSDP2 over tensor parallelism, as torch's _StridedShard describes it


def test_stages_hold_their_own_layers_and_axes_that_do_not_cut_hold_replicas() -> None:
    mesh = Mesh.of(domain.Layout(data=2, tensor=1, pipeline=2))
    layout = laid(
        mesh, first=Placement(at={PIPELINE: (0,)}), last=Placement((Split(DATA, 0),), {PIPELINE: (1,)}),
        tied=Placement(at={PIPELINE: (0, 1)}), everywhere=REPLICATED,
    )  # fmt: skip
    metas = {name: TensorMeta("float32", (4,)) for name in layout.placements}
    whole, low, high = Box((0,), (4,)), Box((0,), (2,)), Box((2,), (2,))
    rest = {"tied": whole, "everywhere": whole}
    assert partition(layout, metas) == (
        {"first": whole, **rest}, {"first": whole, **rest}, {"last": low, **rest}, {"last": high, **rest},
    )  # fmt: skip


@given(random_cases())
@settings(deadline=None, max_examples=60)
def test_every_part_is_written_once_by_a_rank_that_holds_it(case: tuple[dict[str, TensorMeta], StateLayout]) -> None:
    metas, layout = case
    held, shards = partition(layout, metas), plan_shards(layout, metas)
    for name, meta in metas.items():
        assert tiling_fault(meta.shape, [s[name] for s in shards if name in s]) is None
    assert all(held[rank][name] == box for rank, shard in enumerate(shards) for name, box in shard.items())


def test_replicas_share_the_writing() -> None:
    layout = laid(Mesh((DATA,), (4,)), **{f"w{i}": REPLICATED for i in range(8)})
    shards = plan_shards(layout, {name: TensorMeta("float32", (10,)) for name in layout.placements})
    assert [len(shard) for shard in shards] == [2, 2, 2, 2]


@given(random_cases())
@settings(deadline=None, max_examples=30)
def test_a_layout_goes_through_json_unchanged(case: tuple[dict[str, TensorMeta], StateLayout]) -> None:
    assert layout_from_json(json.loads(json.dumps(layout_to_json(case[1])))) == case[1]


@given(random_cases(), st.integers(0, 2**16))
@settings(deadline=None, max_examples=15)
def test_what_one_layout_wrote_another_reads_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, case: tuple[dict[str, TensorMeta], StateLayout], seed: int
) -> None:
    from elastic_core.state.stores.store_urls import open_store

    metas, layout = case
    store = open_store(str(tmp_path_factory.mktemp("s")))
    state = state_of(metas, seed)
    write(store, layout, metas, state)
    manifest = read_manifest(store, URI)
    assert manifest.layout == layout
    assert manifest.metas == metas
    for boxes in partition(layout, metas):
        found = read_tensors(store, manifest, boxes, boxes)
        assert all(same_bits(found[name], state[name][box.slices()]) for name, box in boxes.items())


def write(
    store: CheckpointStore, layout: StateLayout, metas: dict[str, TensorMeta], state: dict[str, torch.Tensor]
) -> None:
    shapes = {name: meta.shape for name, meta in metas.items()}
    infos = [
        write_shard(store, URI, rank, {n: state[n][b.slices()] for n, b in boxes.items()}, boxes, shapes)
        for rank, boxes in enumerate(plan_shards(layout, metas))
    ]
    write_manifest(store, URI, infos, HEADER, {}, layout)


def test_a_layout_of_tensors_that_are_not_there_is_refused(folder_store: CheckpointStore) -> None:
    infos = [write_shard(folder_store, URI, 0, {"w": torch.zeros(3)})]
    for layout, words in (
        (laid(Mesh((), ()), w=REPLICATED, other=REPLICATED), "other"),
        (laid(Mesh((DATA,), (2,)), w=Placement((Split(DATA, 1),))), "no dim 1"),
    ):
        with pytest.raises(CorruptCheckpoint, match=words):
            write_manifest(folder_store, URI, infos, HEADER, {}, layout)


def test_what_cannot_be_a_layout_is_refused() -> None:
    with pytest.raises(UserError, match="distinct axes"):
        Mesh(("a", "a"), (1, 2))
    with pytest.raises(UserError, match="as many slots"):
        StateLayout(Mesh((DATA,), (2,)), {}, (Slot("a", 0, "cpu"), Slot("a", 0, "cpu")))
    with pytest.raises(UserError, match="no coordinates of the axis 'pipeline' of size 2"):
        laid(Mesh((PIPELINE,), (2,)), w=Placement(at={PIPELINE: (2,)}))
    with pytest.raises(UserError, match="splits a tensor once"):
        laid(Mesh((DATA,), (2,)), w=Placement((Split(DATA, 0), Split(DATA, 1))))
    with pytest.raises(UserError, match="no layout of a state"):
        layout_from_json({"mesh": {"axes": ["data"], "sizes": [1]}})
    layout = laid(Mesh((PIPELINE,), (2,)), w=Placement(at={PIPELINE: (0,)}))
    with pytest.raises(UserError, match="does not say where tensor v lies"):
        plan_shards(layout, {"v": TensorMeta("float32", (1,))})
