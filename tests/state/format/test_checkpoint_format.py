"""A checkpoint comes back bit for bit, from any number of writers to any number of readers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file

from elastic_core.domain import Layout, from_json, to_json
from elastic_core.errors import CorruptCheckpoint, UserError
from elastic_core.state.format import writing
from elastic_core.state.format.checkpoint_format import (
    Box,
    CheckpointHeader,
    ShardInfo,
    checkpoint_uri,
    plan_writers,
    read_manifest,
    read_tensors,
    verify,
    write_manifest,
    write_shard,
)
from elastic_core.state.layout import boxes
from elastic_core.state.stores.local_store import LocalStore
from elastic_core.state.stores.paths import CheckpointPath
from elastic_core.state.stores.store import CheckpointStore
from elastic_core.state.stores.store_urls import open_store
from tests.state.builders import HEADER, URI, same_bits, some_tensors, write

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2,
          torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8,
          torch.uint16, torch.uint32, torch.uint64, torch.bool, torch.complex64]  # fmt: skip


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of at most 512 bytes, so that small tensors are cut like large ones."""
    monkeypatch.setattr(writing, "tiles", lambda box, itemsize: boxes.tiles(box, itemsize, 512))


@st.composite
def any_tensors(draw: st.DrawFn) -> dict[str, torch.Tensor]:
    """Random bits of any element type and shape, some of them not contiguous."""
    found = {}
    for i in range(draw(st.integers(0, 6))):
        dtype = draw(st.sampled_from(DTYPES))
        shape = draw(st.lists(st.integers(0, 40), max_size=3))
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        bits = np.frombuffer(np.random.default_rng(draw(st.integers(0, 99))).bytes(size), np.uint8).copy()
        data = bits & 1 if dtype == torch.bool else bits
        tensor = torch.empty(shape, dtype=dtype)
        tensor.view(-1).view(torch.uint8).copy_(torch.from_numpy(data))
        found[f"layer.{i}"] = tensor.mT if tensor.ndim >= 2 and draw(st.booleans()) else tensor
    return found


@given(any_tensors(), st.integers(1, 5))
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_tensors_from_any_number_of_writers_come_back_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, torch.Tensor], world: int
) -> None:
    store = open_store(str(tmp_path_factory.mktemp("store")))
    written = write(store, tensors, world)
    manifest = read_manifest(store, URI, written.sha256)
    found = read_tensors(store, manifest)
    assert found.keys() == tensors.keys()
    assert all(same_bits(found[name], tensors[name]) for name in tensors)
    assert written.size_bytes == sum(entry.size for entry in store.entries(URI)) == manifest.size_bytes
    assert verify(store, URI, written.sha256).num_tensors == len(tensors)


@pytest.mark.nightly
@given(st.data())
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_parts_written_by_a_grid_of_ranks_are_read_as_any_other_parts(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """What resharding stands on: rows x columns of ranks write, a part of any other shape is read."""
    shape = (data.draw(st.integers(1, 60)), data.draw(st.integers(1, 60)))
    whole = torch.randn(shape)
    row_cuts, column_cuts = (sorted({0, n, *data.draw(st.lists(st.integers(0, n), max_size=3))}) for n in shape)
    store = open_store(str(tmp_path_factory.mktemp("store")))
    infos = []
    for r0, r1 in itertools.pairwise(row_cuts):
        for c0, c1 in itertools.pairwise(column_cuts):
            box = Box((r0, c0), (r1 - r0, c1 - c0))
            part = whole[r0:r1, c0:c1]
            infos.append(write_shard(store, URI, len(infos), {"w": part}, {"w": box}, {"w": shape}))
    write_manifest(store, URI, infos, HEADER, {})
    manifest = read_manifest(store, URI)
    for _ in range(4):
        ends = [sorted((data.draw(st.integers(0, n)), data.draw(st.integers(0, n)))) for n in shape]
        wanted = Box(tuple(a for a, _ in ends), tuple(b - a for a, b in ends))
        found = read_tensors(store, manifest, ["w"], {"w": wanted})["w"]
        assert same_bits(found, whole[wanted.slices()])


def test_every_store_holds_a_checkpoint(store: CheckpointStore) -> None:
    tensors = some_tensors()
    written = write(store, tensors, world=3)
    found = read_tensors(store, read_manifest(store, URI, written.sha256))
    assert all(same_bits(found[name], tensors[name]) for name in tensors)
    assert sorted(store.list(URI)) == [f"{URI}/{name}" for name in
                                       ("manifest.json", *(f"shard-{r}.safetensors" for r in range(3)))]  # fmt: skip


def test_header_and_scalars_come_back(folder_store: CheckpointStore) -> None:
    header = CheckpointHeader(job_id="j", step=1, samples=2, layout=Layout(data=4, tensor=2), written_at=1.5)
    scalars = {"optimizer": {"lr": 0.1 + 0.2, "betas": [0.9, 0.999]}, "big": 2**62, "none": None, "text": "naïve"}
    write_manifest(folder_store, "j/x", [write_shard(folder_store, "j/x", 0, {})], header, scalars)
    manifest = read_manifest(folder_store, "j/x")
    assert manifest.header == header
    assert manifest.scalars == scalars


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, b"bytes", torch.zeros(2), object()])
def test_scalars_that_json_cannot_hold_are_refused(folder_store: CheckpointStore, value: Any) -> None:
    with pytest.raises(UserError, match="plain JSON"):
        write_manifest(folder_store, URI, [write_shard(folder_store, URI, 0, {})], HEADER, {"x": value})
    assert folder_store.size(f"{URI}/manifest.json") is None


def test_strides_that_mean_nothing_do_not_matter(folder_store: CheckpointStore) -> None:
    tensors = {
        "empty": torch.from_numpy(np.frombuffer(b"", np.float32).copy()),
        "one": torch.tensor([3.0]).as_strided((1, 1), (0, 0)),
        "expanded": torch.tensor([3.0]).expand(4, 5),
    }
    write(folder_store, tensors)
    found = read_tensors(folder_store, read_manifest(folder_store, URI))
    assert found["empty"].shape == (0,)
    assert same_bits(found["one"], torch.tensor([[3.0]]))
    assert same_bits(found["expanded"], torch.full((4, 5), 3.0))


def test_what_a_writer_tells_goes_through_json(folder_store: CheckpointStore) -> None:
    info = write_shard(folder_store, URI, 3, some_tensors())
    assert from_json(ShardInfo, json.loads(json.dumps(to_json(info)))) == info


def test_a_shard_is_a_plain_safetensors_file(folder_store: CheckpointStore) -> None:
    tensors = {**some_tensors(), **{f"t{i}": torch.zeros(3, dtype=d) for i, d in enumerate(DTYPES)}}
    write_shard(folder_store, URI, 0, tensors)
    path = Path(folder_store.url) / URI / "shard-0.safetensors"
    loaded = load_file(path)
    assert same_bits(loaded["model.bias"], tensors["model.bias"])
    assert same_bits(loaded["optim/weight/step"], tensors["optim/weight/step"])
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt"}
    rebuilt = torch.empty(40, 24)
    for name, tile in loaded.items():
        if name.startswith("model.weight#"):
            row, column = map(int, name.partition("#")[2].split(","))
            rebuilt[row : row + tile.shape[0], column : column + tile.shape[1]] = tile
    assert same_bits(rebuilt, tensors["model.weight"])


def test_the_hugging_face_reader_of_torch_opens_a_shard(folder_store: CheckpointStore) -> None:
    import torch.distributed.checkpoint as dcp

    tensors = some_tensors()
    write_shard(folder_store, URI, 0, tensors)
    target = {"model.bias": torch.zeros(24, dtype=torch.bfloat16), "optim/weight/step": torch.tensor(0.0)}
    reader = dcp.HuggingFaceStorageReader(str(Path(folder_store.url) / URI))
    dcp.load(target, storage_reader=reader, no_dist=True)
    assert all(same_bits(target[name], tensors[name]) for name in target)


class CountingStore(LocalStore):
    """Counts the bytes that are read of shards."""

    num_read = 0
    num_requests = 0

    def read_into(self, key: str, offset: int, buffers: Sequence[memoryview]) -> int:
        num = super().read_into(key, offset, buffers)
        self.num_read += num
        self.num_requests += 1
        return num


@pytest.fixture
def counting(tmp_path: Path) -> CountingStore:
    return CountingStore(tmp_path / "store")


def test_only_the_tensors_asked_for_are_read(counting: CountingStore) -> None:
    tensors = {f"w{i}": torch.randn(100_000) for i in range(8)}
    write(counting, tensors)
    manifest = read_manifest(counting, URI)
    found = read_tensors(counting, manifest, ["w1", "w6"])
    assert found.keys() == {"w1", "w6"}
    header = manifest.files["shard-0.safetensors"].header_bytes
    assert counting.num_read == 2 * 400_000 + header
    assert counting.num_requests == 3


def test_only_the_tiles_of_the_part_asked_for_are_read(
    counting: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "tiles", lambda box, itemsize: boxes.tiles(box, itemsize, 256 << 10))
    whole = torch.randn(2048, 2048)
    write(counting, {"w": whole})
    manifest = read_manifest(counting, URI)
    quarter = read_tensors(counting, manifest, ["w"], {"w": Box((0, 512), (2048, 512))})["w"]
    assert same_bits(quarter, whole[:, 512:1024])
    assert counting.num_read < 1.1 * whole.nbytes / 4


def test_neighbours_are_read_by_one_request(counting: CountingStore) -> None:
    write(counting, {f"w{i}": torch.randn(50) for i in range(100)})
    read_tensors(counting, read_manifest(counting, URI))
    assert counting.num_requests == 1


def test_tensors_that_require_gradients_and_views_are_written_as_they_are(folder_store: CheckpointStore) -> None:
    base = torch.randn(8, 6, requires_grad=True)
    tensors = {"parameter": base, "view": base[2:5, 1:4], "conj": torch.randn(4, dtype=torch.complex64).conj()}
    write(folder_store, tensors)
    found = read_tensors(folder_store, read_manifest(folder_store, URI))
    assert same_bits(found["view"], base[2:5, 1:4])
    assert torch.equal(found["conj"], tensors["conj"].resolve_conj())
    assert not found["parameter"].requires_grad


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"w": torch.zeros(2, dtype=torch.complex128)}, "is of complex128"),
        ({"w#0,0": torch.zeros(2)}, "named 'w#0,0'"),
        ({"": torch.zeros(2)}, "named ''"),
        ({"w": torch.zeros(2).to_sparse()}, "dense tensors only"),
        ({"w": torch.zeros(2, device="meta")}, "dense tensors only"),
    ],
)
def test_what_a_checkpoint_cannot_hold_is_refused_by_name(
    folder_store: CheckpointStore, tensors: dict[str, torch.Tensor], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        write_shard(folder_store, URI, 0, tensors)
    assert list(folder_store.list("")) == []


def test_a_part_that_does_not_fit_is_refused(folder_store: CheckpointStore) -> None:
    with pytest.raises(UserError, match=r"cannot be the part \[3:5\] of a tensor of shape \[4\]"):
        write_shard(folder_store, URI, 0, {"w": torch.zeros(2)}, {"w": Box((3,), (2,))}, {"w": (4,)})


def test_unknown_names_and_parts_are_refused_with_what_there_is(folder_store: CheckpointStore) -> None:
    write(folder_store, some_tensors())
    manifest = read_manifest(folder_store, URI)
    with pytest.raises(UserError, match=r"no tensor 'nothing'.*model\.bias"):
        read_tensors(folder_store, manifest, ["nothing"])
    with pytest.raises(UserError, match=r"is not a part of model\.bias of shape \[24\]"):
        read_tensors(folder_store, manifest, ["model.bias"], {"model.bias": Box((20,), (5,))})


def test_a_checkpoint_is_not_completed_unless_every_part_is_there(folder_store: CheckpointStore) -> None:
    shape = (4, 4)
    top = write_shard(folder_store, URI, 0, {"w": torch.zeros(2, 4)}, {"w": Box((0, 0), (2, 4))}, {"w": shape})
    with pytest.raises(CorruptCheckpoint, match=r"tensor w in shard-0\.safetensors: part \[2:4, 0:4\] is missing"):
        write_manifest(folder_store, URI, [top], HEADER, {})
    again = write_shard(folder_store, URI, 1, {"w": torch.zeros(3, 4)}, {"w": Box((1, 0), (3, 4))}, {"w": shape})
    with pytest.raises(CorruptCheckpoint, match=r"part \[1:2, 0:4\] is held 2 times"):
        write_manifest(folder_store, URI, [top, again], HEADER, {})
    other = write_shard(folder_store, URI, 2, {"w": torch.zeros(2, 4).half()}, {"w": Box((2, 0), (2, 4))}, {"w": shape})
    with pytest.raises(CorruptCheckpoint, match=r"writers disagree on w: float32 .* float16"):
        write_manifest(folder_store, URI, [top, other], HEADER, {})
    rest = write_shard(folder_store, URI, 3, {"w": torch.zeros(2, 4)}, {"w": Box((2, 0), (2, 4))}, {"w": shape})
    folder_store.delete(f"{URI}/shard-3.safetensors")
    with pytest.raises(CorruptCheckpoint, match=r"shard-3\.safetensors .* is not in the store"):
        write_manifest(folder_store, URI, [top, rest], HEADER, {})
    assert folder_store.size(f"{URI}/manifest.json") is None


def test_writing_the_same_state_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    stores = [open_store(str(tmp_path / name)) for name in ("one", "two")]
    digests = [write(store, some_tensors(), world=2).sha256 for store in stores]
    assert digests[0] == digests[1]
    assert stores[0].get(f"{URI}/shard-1.safetensors") == stores[1].get(f"{URI}/shard-1.safetensors")


@given(st.dictionaries(st.text("abc", min_size=1, max_size=4), st.integers(0, 1000), max_size=30), st.integers(1, 9))
@settings(deadline=None)
def test_writers_share_every_tensor_out_once_and_evenly(sizes: dict[str, int], world: int) -> None:
    plan = plan_writers(sizes, world)
    assert sorted(name for share in plan for name in share) == sorted(sizes)
    assert len(plan) == world
    loads = [sum(sizes[name] for name in share) for share in plan]
    assert max(loads) - min(loads) <= max(sizes.values(), default=0)
    assert plan == plan_writers(dict(sorted(sizes.items(), reverse=True)), world)


@given(
    st.from_regex(r"[a-z0-9-]{1,20}", fullmatch=True), st.integers(0, 99), st.integers(0, 10**11), st.integers(0, 10**6)
)
@settings(deadline=None)
def test_a_directory_name_tells_whose_checkpoint_it_is(job: str, lineage: int, step: int, epoch: int) -> None:
    header = CheckpointHeader(job_id=job, step=step, samples=0, lineage=lineage, epoch=epoch)
    uri = checkpoint_uri(header, "0a1b")
    assert CheckpointPath.parse(uri) == CheckpointPath(job, lineage, step, epoch, "0a1b")
    assert CheckpointPath.parse(f"{uri}/x") is None
