"""A kept checkpoint of format version 1 that eight ranks wrote under a real layout: later releases read it.

Two pipeline stages, each cut over tensor and sharded data, unevenly, in bfloat16 and float32; the cursor of a data set
and random state beside it. `test_golden.py` keeps one without a layout.

python -m tests.state.format.test_golden_layout    writes it anew; only ever for a NEW format version, beside the old
ones
"""

from __future__ import annotations

import math
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from elastic_core.domain import Layout, Slot
from elastic_core.state.format import writing
from elastic_core.state.format.checkpoint_format import (
    Box,
    CheckpointHeader,
    checkpoint_uri,
    read_manifest,
    read_tensors,
    verify,
    write_manifest,
    write_shard,
)
from elastic_core.state.format.inspecting import reshard
from elastic_core.state.format.writing import plan_shards
from elastic_core.state.layout import boxes
from elastic_core.state.layout.layout import (
    AXES,
    DATA,
    PIPELINE,
    TENSOR,
    Mesh,
    Placement,
    Split,
    StateLayout,
    TensorMeta,
    partition,
)
from elastic_core.state.reshard.assignment import Moved
from elastic_core.state.reshard.change_plan import holdings, plan_change
from elastic_core.state.stores.store_urls import open_store
from elastic_core.train.data.data_state import DataState
from tests.state.builders import same_bits

GOLDEN = Path(__file__).parents[1] / "golden" / "v1-layout"
SHA256 = "3a84cac6a865477f8ce655b9713ad483e0b709069a7d9529d596746e9c02b548"
HEADER = CheckpointHeader(
    job_id="bytes", step=31, samples=496, lineage=0, segment_id="bytes__seg_4", epoch=9,
    layout=Layout(data=2, tensor=2, pipeline=2, sharded=True), written_at=1_700_000_000.5,
)  # fmt: skip
URI = checkpoint_uri(HEADER, "5a6b7c8d0001")
SCALARS = {
    "data": {
        "seed": 11, "dataset_samples": 100, "total_samples": 1000, "global_batch": 16,
        "since_step": 30, "since_samples": 480,
    },
    "order": 1,
    "world": 8,
    "optimizer": {"class": "AdamW", "groups": [{"params": ["embed.weight"], "options": {"lr": {"float": "inf"}}}]},
}  # fmt: skip
FIRST, SECOND, BOTH = (0,), (1,), (0, 1)  # stages that hold a tensor


def golden_tensors() -> dict[str, Tensor]:
    def floats(*shape: int) -> Tensor:
        return (torch.arange(math.prod(shape), dtype=torch.float32) / 3 - 2).reshape(shape)

    return {
        "model/embed.weight": floats(7, 5).bfloat16(),
        "model/blocks.0.weight": floats(6, 4),
        "model/blocks.1.weight": floats(5, 3),
        "model/blocks.1.bias": torch.tensor([float("nan")]).bfloat16(),
        "model/scale": torch.tensor(-0.0),
        "optim/embed.weight/exp_avg": floats(7, 5) * 1e-9,
        "optim/embed.weight/step": torch.tensor(31.0),
        "optim/blocks.1.weight/exp_avg": floats(5, 3).square(),
        **{f"rng/torch/{rank}": torch.tensor([rank, 255, 0], dtype=torch.uint8) for rank in range(8)},
    }


def placed(pipeline: int, data: int, tensor: int, as_written: bool = False) -> StateLayout:
    """The layout that wrote it, and what a job like it would have at other sizes. Random state is placed nowhere."""
    columns = Split(TENSOR, 1, (3, 2) if as_written else ())
    rows, shard = Split(TENSOR, 0), Split(DATA, 0)

    def lies(stages: tuple[int, ...], *cuts: Split) -> Placement:
        return Placement(cuts, {PIPELINE: stages} if pipeline > 1 else {})

    placements = {
        "model/embed.weight": lies(FIRST, columns, shard),
        "model/blocks.0.weight": lies(FIRST, rows, shard),
        "model/blocks.1.weight": lies(SECOND, Split(TENSOR, 1), shard),
        "model/blocks.1.bias": lies(SECOND, shard),  # one element: the second data rank holds nothing of it
        "model/scale": lies(BOTH),
        "optim/embed.weight/exp_avg": lies(FIRST, columns, shard),
        "optim/embed.weight/step": lies(FIRST),
        "optim/blocks.1.weight/exp_avg": lies(SECOND, Split(TENSOR, 1), shard),
    }
    world = pipeline * data * tensor
    slots = tuple(Slot(f"node-{rank // 4}", rank % 4, "cpu") for rank in range(world))
    return StateLayout(Mesh(AXES, (pipeline, data, tensor)), placements, slots)


WRITTEN = placed(2, 2, 2, as_written=True)


def write_golden(folder: Path) -> str:
    store, tensors = open_store(str(folder)), golden_tensors()
    metas = {name: TensorMeta(str(t.dtype).removeprefix("torch."), tuple(t.shape)) for name, t in tensors.items()}
    shapes = {name: meta.shape for name, meta in metas.items()}
    infos = []
    for rank, mine in enumerate(plan_shards(WRITTEN, {name: metas[name] for name in WRITTEN.placements})):
        parts = {name: tensors[name][box.slices()] for name, box in mine.items()}
        own = {f"rng/torch/{rank}": tensors[f"rng/torch/{rank}"]}
        infos.append(write_shard(store, URI, rank, {**parts, **own}, mine, shapes))
    return write_manifest(store, URI, infos, HEADER, SCALARS, WRITTEN).sha256


def small_tiles(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(writing, "tiles", lambda box, itemsize: boxes.tiles(box, itemsize, 24))


def test_it_is_read_whole_with_its_header_its_cursor_and_its_layout() -> None:
    store = open_store(str(GOLDEN))
    manifest = read_manifest(store, URI, SHA256)
    assert (manifest.header, manifest.scalars, manifest.layout) == (HEADER, SCALARS, WRITTEN)
    found, expected = read_tensors(store, manifest), golden_tensors()
    assert found.keys() == expected.keys()
    assert all(same_bits(found[name], expected[name]) for name in expected)
    assert (verify(store, URI, SHA256).num_files, len(manifest.files)) == (8, 8)


def test_its_cursor_says_what_every_rank_reads_next() -> None:
    state = DataState.from_scalars(read_manifest(open_store(str(GOLDEN)), URI, SHA256).scalars)
    assert state is not None
    parts = [state.step(HEADER.step + 1, rank, 2) for rank in range(2)]
    read = [index for part in parts for micro in part.micro for index in micro.indices.tolist()]
    assert read == [7, 33, 70, 52, 1, 39, 71, 35, 56, 19, 99, 11, 84, 73, 58, 3]


@pytest.mark.parametrize("sizes", [(2, 2, 2), (1, 1, 1), (1, 3, 2), (2, 1, 4), (1, 8, 1), (2, 4, 1)], ids=str)
def test_every_rank_of_another_layout_reads_its_parts(sizes: tuple[int, int, int]) -> None:
    store, expected = open_store(str(GOLDEN)), golden_tensors()
    manifest = read_manifest(store, URI, SHA256)
    layout = WRITTEN if sizes == (2, 2, 2) else placed(*sizes)
    for mine in partition(layout, {name: manifest.metas[name] for name in layout.placements}):
        found = read_tensors(store, manifest, list(mine), mine)
        assert found.keys() == mine.keys()
        assert all(same_bits(found[name], expected[name][box.slices()]) for name, box in mine.items())


def test_it_is_written_anew_under_another_layout(tmp_path: Path) -> None:
    store, out = open_store(str(GOLDEN)), open_store(str(tmp_path))
    written = reshard(store, read_manifest(store, URI, SHA256), placed(1, 3, 1), out)
    verify(out, URI, written.sha256)
    manifest, expected = read_manifest(out, URI, written.sha256), golden_tensors()
    assert manifest.header == replace(HEADER, layout=Layout(data=3))
    found = read_tensors(out, manifest)
    assert all(same_bits(found[name], expected[name]) for name in expected)


def test_a_resize_is_planned_from_the_layout_that_it_names() -> None:
    manifest = read_manifest(open_store(str(GOLDEN)), URI, SHA256)
    assert manifest.layout is not None
    metas = {name: manifest.metas[name] for name in manifest.layout.placements}
    after = placed(2, 1, 2)
    plan = plan_change(metas, holdings(manifest.layout, metas), after, candidates=manifest.layout.slots)
    assert plan.proven
    # The smaller data shard of each parameter and moment: 3 rows of 7, 1 of 3 (twice) and 2 of 5.
    missing = 3 * 5 * (2 + 4) + 2 * 1 * 4 * 4 + 2 * 3 * (4 + 4)
    assert plan.moved == plan.bound == Moved(host=0, device=missing, store=0)


def test_safetensors_alone_reads_every_element_once() -> None:
    """A key is a tensor's name or, of a part, `name#first row,first column`."""
    expected = golden_tensors()
    found = {name: torch.empty_like(tensor) for name, tensor in expected.items()}
    times = {name: torch.zeros(tensor.shape, dtype=torch.int64) for name, tensor in expected.items()}
    for rank in range(8):
        for key, part in load_file(GOLDEN / URI / f"shard-{rank}.safetensors").items():
            name, _, start = key.partition("#")
            at = tuple(map(int, start.split(","))) if start else (0,) * part.dim()
            index = Box(at, tuple(part.shape)).slices()
            found[name][index] = part
            times[name][index] += 1
    assert all(bool((count == 1).all()) for count in times.values())
    assert all(same_bits(found[name], expected[name]) for name in expected)


def test_the_same_bytes_are_still_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small_tiles(monkeypatch)
    assert write_golden(tmp_path) == SHA256
    kept = sorted(path.name for path in (GOLDEN / URI).iterdir())
    assert kept == ["manifest.json", *(f"shard-{rank}.safetensors" for rank in range(8))]
    for name in kept:
        assert (tmp_path / URI / name).read_bytes() == (GOLDEN / URI / name).read_bytes(), name


if __name__ == "__main__":
    shutil.rmtree(GOLDEN, ignore_errors=True)
    with pytest.MonkeyPatch.context() as monkey:
        small_tiles(monkey)
        print(write_golden(GOLDEN))
