"""Tensors as files: the very bits, read by any ranges, by reading no more than the rows that hold them."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.state.format import writing
from elastic_core.state.format.checkpoint_format import read_manifest
from elastic_core.state.layout import boxes
from elastic_core.state.layout.boxes import Box
from elastic_core.state.stores.store import CheckpointStore
from elastic_core.state.stores.store_urls import open_store
from elastic_core.view.slices import Part
from elastic_core.view.tensors import Collection, TensorFile, covering, escaped
from elastic_core.view.tree_nodes import File
from tests.state.builders import URI, write

TENSORS = {
    "w": torch.arange(60.0).reshape(4, 5, 3),
    "half": (torch.arange(12.0) / 7).to(torch.bfloat16).reshape(3, 4),
    "eighth": torch.tensor([1.5, -2.0, 0.25]).to(torch.float8_e4m3fn),
    "flags": torch.tensor([[True], [False]]),
    "count": torch.tensor(5, dtype=torch.int64),
    "complex": torch.tensor([1 + 2j, 3 - 4j], dtype=torch.complex64),
    "none": torch.empty(0, 4, dtype=torch.int16),
    "odd [a]*/x?": torch.tensor([7], dtype=torch.uint8),
}


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    store = open_store(str(tmp_path_factory.mktemp("store")))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "tiles", lambda box, itemsize: boxes.tiles(box, itemsize, 64))
        write(store, TENSORS, 2)
    manifest = read_manifest(store, URI)
    return Collection(store, manifest, {name: Box.whole(t.shape) for name, t in manifest.metas.items()})


def at(collection: Collection, path: str) -> File:
    node = collection.folder()
    for part in path.split("/"):
        node = node.child(part)
        assert node is not None, path
    assert isinstance(node, File)
    return node


def content(file: File) -> bytes:
    return file.read(0, file.size)


@pytest.mark.parametrize("name", TENSORS)
def test_raw_files_hold_the_very_bits_and_npy_files_the_values(collection: Collection, name: str) -> None:
    path = "/".join(map(escaped, name.split("/")))
    raw, npy = at(collection, path + ".raw"), at(collection, path + ".npy")
    assert content(raw) == TENSORS[name].reshape(-1).view(torch.uint8).numpy().tobytes()
    assert len(content(npy)) == npy.size
    loaded = np.load(io.BytesIO(content(npy)), allow_pickle=False)
    wanted = TENSORS[name] if name not in ("half", "eighth") else TENSORS[name].float()
    assert loaded.dtype == wanted.numpy().dtype
    assert loaded.shape == tuple(wanted.shape)
    assert np.array_equal(loaded, wanted.numpy())


def test_names_in_paths_hold_nothing_that_a_pattern_or_url_would_take_for_its_own(collection: Collection) -> None:
    assert escaped("odd [a]*") == "odd %5Ba%5D%2A"
    assert escaped(".x") == "%2Ex"
    assert escaped("") == "%"
    assert escaped("blocks.3.attn-weight_é") == "blocks.3.attn-weight_é"
    table = json.loads(content(at(collection, "tensors.json")))
    assert {row["name"]: row["path"] for row in table}["odd [a]*/x?"] == "odd %5Ba%5D%2A/x%3F"


def test_a_slice_is_its_box(collection: Collection) -> None:
    loaded = np.load(io.BytesIO(content(at(collection, "w[1:3,-1].npy"))))
    assert np.array_equal(loaded, TENSORS["w"][1:3, -1].numpy())
    assert content(at(collection, "half[:,1:2].raw")) == TENSORS["half"][:, 1:2].contiguous().view(torch.uint8).numpy().tobytes()  # fmt: skip  # noqa: E501


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_any_range_of_any_box_reads_what_reading_it_all_would(collection: Collection, data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(TENSORS)))
    shape = TENSORS[name].shape
    start = [data.draw(st.integers(0, size)) for size in shape]
    box = Box(tuple(start), tuple(data.draw(st.integers(0, n - a)) for a, n in zip(start, shape, strict=True)))
    as_npy = data.draw(st.booleans())
    file = TensorFile(collection.store, collection.manifest, name, Part(box, box.shape), as_npy=as_npy)
    everything = content(file)
    assert len(everything) == file.size
    first = data.draw(st.integers(0, file.size))
    last = data.draw(st.integers(first, file.size))
    assert file.read(first, last) == everything[first:last]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=4), st.data())
def test_the_rows_that_are_read_cover_the_range_and_little_more(shape: list[int], data: st.DataObject) -> None:
    array = np.arange(int(np.prod(shape))).reshape(shape)
    first = data.draw(st.integers(0, array.size - 1))
    last = data.draw(st.integers(first + 1, array.size))
    box, before = covering(Box.whole(shape), first, last)
    read = array[box.slices((0,) * len(shape))].reshape(-1)
    assert read[first - before : last - before].tolist() == list(range(first, last))
    dim = next((d for d, size in enumerate(shape) if size > 1), len(shape) - 1)
    assert read.size - (last - first) <= 2 * int(np.prod(shape[dim + 1 :]))


def test_a_few_rows_of_a_large_tensor_cost_their_tiles_and_no_more(tmp_path: Path) -> None:
    store = Counting(open_store(str(tmp_path)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "tiles", lambda box, itemsize: boxes.tiles(box, itemsize, 1 << 16))
        write(store, {"w": torch.randn(4096, 256)})
    manifest = read_manifest(store, URI)
    file = TensorFile(store, manifest, "w", Part(Box((64, 0), (2, 256)), (2, 256)), as_npy=True)
    store.num_bytes = 0
    assert len(content(file)) == 128 + 2 * 256 * 4
    assert store.num_bytes < 4096 * 256 * 4 / 4  # the row's four tiles of 64 KiB, and what lies between them


class Counting:
    """A store that counts what is read of it."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store, self.num_bytes = store, 0

    def read_into(self, key, offset, buffers):
        num = self._store.read_into(key, offset, buffers)
        self.num_bytes += num
        return num

    def __getattr__(self, name):
        return getattr(self._store, name)
