"""Files of format version 1 that are kept: later releases read them, and this one still writes exactly these bytes.

python -m tests.state.format.test_golden    writes them anew; only ever for a NEW format version, beside the old ones
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from elastic_core.domain import Layout
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
from elastic_core.state.layout import boxes
from elastic_core.state.stores.store_urls import open_store
from tests.state.builders import same_bits

GOLDEN = Path(__file__).parents[1] / "golden" / "v1"
SHA256 = "ab93020a86d3ba611cace9ad0bf3f491557930cffec4d02c2ce637ba1ffeba6e"
HEADER = CheckpointHeader(
    job_id="digits", step=7, samples=448, lineage=1, segment_id="digits__seg_2", epoch=5,
    layout=Layout(data=2), written_at=1_700_000_000.25,
)  # fmt: skip
URI = checkpoint_uri(HEADER, "0f1e2d3c")
SCALARS = {
    "optimizer": {"lr": 0.1, "betas": {"tuple": [0.9, 0.999]}},
    "order_version": 1,
    "text": "naïve",
    "none": None,
}


def golden_tensors() -> dict[str, torch.Tensor]:
    return {
        "model/weight": (torch.arange(96, dtype=torch.float32) / 7).reshape(12, 8),
        "model/half": torch.tensor([1.5, -2.0, float("inf"), float("nan")]).bfloat16(),
        "model/counter": torch.tensor(2**40 + 1),
        "model/mask": torch.tensor([[True], [False]]),
        "model/eighth": torch.tensor([0.5, 448.0]).to(torch.float8_e4m3fn),
        "model/empty": torch.empty(0, 4, dtype=torch.float64),
        "optim/weight/step": torch.tensor(7.0),
        "rng/torch/0": torch.arange(9, dtype=torch.uint8),
    }


def write_golden(folder: Path) -> str:
    store = open_store(str(folder))
    tensors = golden_tensors()
    weight = tensors.pop("model/weight")
    parts = [
        {**tensors, "model/weight": weight[:5]},
        {"model/weight": weight[5:]},
    ]
    places = [Box((0, 0), (5, 8)), Box((5, 0), (7, 8))]
    infos = [
        write_shard(store, URI, rank, part, {"model/weight": places[rank]}, {"model/weight": (12, 8)})
        for rank, part in enumerate(parts)
    ]
    return write_manifest(store, URI, infos, HEADER, SCALARS).sha256


def test_the_kept_checkpoint_is_read_as_it_was_written() -> None:
    store = open_store(str(GOLDEN))
    manifest = read_manifest(store, URI, SHA256)
    assert manifest.header == HEADER
    assert manifest.scalars == SCALARS
    found = read_tensors(store, manifest)
    expected = golden_tensors()
    assert found.keys() == expected.keys()
    assert all(same_bits(found[name], expected[name]) for name in expected)
    assert verify(store, URI, SHA256).num_tiles == 14


def test_the_same_bytes_are_still_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writing, "tiles", lambda box, itemsize: boxes.tiles(box, itemsize, 64))
    assert write_golden(tmp_path) == SHA256
    for name in ("manifest.json", "shard-0.safetensors", "shard-1.safetensors"):
        assert (tmp_path / URI / name).read_bytes() == (GOLDEN / URI / name).read_bytes(), name


if __name__ == "__main__":
    shutil.rmtree(GOLDEN, ignore_errors=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "tiles", lambda box, itemsize: boxes.tiles(box, itemsize, 64))
        print(write_golden(GOLDEN))
