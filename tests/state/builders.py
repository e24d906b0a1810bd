"""Tensors and checkpoints for tests."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from elastic_core.state.format.checkpoint_format import (
    CheckpointHeader,
    Written,
    checkpoint_uri,
    plan_writers,
    write_manifest,
    write_shard,
)
from elastic_core.state.stores.store import CheckpointStore

HEADER = CheckpointHeader(job_id="job-1", step=12, samples=345, lineage=2, segment_id="job-1__seg_3", epoch=7)
URI = checkpoint_uri(HEADER, "nonce")


def same_bits(one: Tensor, other: Tensor) -> bool:
    """Equal in shape, element type and every bit (NaN included)."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    a, b = (t.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for t in (one, other))
    return torch.equal(a, b)


def some_tensors() -> dict[str, Tensor]:
    """One of each kind that a checkpoint meets; the largest is cut into several tiles in tests that lower the limit."""
    generator = torch.Generator().manual_seed(0)
    return {
        "model.weight": torch.randn(40, 24, generator=generator),
        "model.bias": torch.randn(24, generator=generator).bfloat16(),
        "model.counter": torch.tensor(5, dtype=torch.int64),
        "model.mask": torch.tensor([True, False, True]),
        "optim/weight/exp_avg": torch.randn(40, 24, generator=generator),
        "optim/weight/step": torch.tensor(12.0),
        "empty": torch.empty(0, 3),
        "rng/torch/0": torch.arange(100, dtype=torch.uint8),
    }


def write(store: CheckpointStore, tensors: Mapping[str, Tensor], world: int = 1, uri: str = URI) -> Written:
    """A checkpoint written by `world` ranks."""
    shares = plan_writers({name: t.numel() * t.element_size() for name, t in tensors.items()}, world)
    infos = [write_shard(store, uri, rank, {n: tensors[n] for n in share}) for rank, share in enumerate(shares)]
    return write_manifest(store, uri, infos, HEADER, {"cursor": 345, "lr": 0.1})
