"""A small job in a store, as its workers would have left it: two checkpoints, with how the data was read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from elastic_core.domain import Layout, Slot
from elastic_core.state.format.checkpoint_format import (
    CheckpointHeader,
    checkpoint_uri,
    plan_shards,
    write_manifest,
    write_shard,
)
from elastic_core.state.layout.layout import Mesh, Placement, Split, StateLayout, TensorMeta
from elastic_core.state.stores.store import CheckpointStore
from elastic_core.train.data.data_state import DataState

SEED, DATASET, TOTAL = 5, 57, 300
DATA = DataState(
    seed=SEED, dataset_samples=DATASET, total_samples=TOTAL, global_batch=20, since_step=4, since_samples=50
)
LAYOUT = StateLayout(
    Mesh.of(Layout(data=2, tensor=2)),
    {
        "model/blocks.0.weight": Placement((Split("tensor", 0), Split("data", 0))),
        "model/bias": Placement(),
    },
    tuple(Slot("n", i, "cpu") for i in range(4)),
)


def tensors() -> dict[str, torch.Tensor]:
    return {
        "model/blocks.0.weight": torch.arange(48.0).reshape(8, 6),
        "model/bias": torch.arange(6).to(torch.bfloat16) / 3,
    }


def write_job(store: CheckpointStore, job: str = "digits", step: int = 7, **scalars: Any) -> str:
    """A checkpoint after `step` steps, written by 2 x 2 ranks; its uri."""
    header = CheckpointHeader(
        job_id=job, step=step, samples=DATA.since_samples + (step - DATA.since_step) * DATA.global_batch, epoch=3,
        layout=LAYOUT.mesh.parallel, written_at=1_700_000_000.0,
    )  # fmt: skip
    uri = checkpoint_uri(header, "abc")
    content = tensors()
    metas = {name: TensorMeta(str(t.dtype).removeprefix("torch."), tuple(t.shape)) for name, t in content.items()}
    infos = []
    for rank, boxes in enumerate(plan_shards(LAYOUT, metas)):
        parts = {name: content[name][box.slices((0,) * len(box.shape))].contiguous() for name, box in boxes.items()}
        infos.append(write_shard(store, uri, rank, parts, boxes, {name: metas[name].shape for name in boxes}))
    write_manifest(store, uri, infos, header, {"order": 1, **DATA.to_scalars(), **scalars}, LAYOUT)
    return uri


def flip_last_byte(file: Path) -> None:
    """A disk's mistake: the last bit of the last tile is another."""
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
