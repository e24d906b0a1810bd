"""One rank's part of a checkpoint: what it has to write, writing it, and what it tells the others of it.

Ranks that hold the whole state share the writing; a rank of a partitioned model writes the boxes that are its own.
What was read since the last checkpoint goes with it. Nothing here talks to other ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from elastic_core.errors import ElasticError
from elastic_core.state.format.checkpoint_format import Box, ShardInfo, plan_writers, write_shard
from elastic_core.state.reshard.memories import Memory, Part
from elastic_core.state.stores.store import CheckpointStore
from elastic_core.train.checkpoint.collection import Collection
from elastic_core.train.data.audit import Indices, Reads, dump_indices
from elastic_core.train.parallel.group import Group
from elastic_core.train.parallel.places import Places

Measure = Callable[[str], Mapping[str, float]]
"""Metrics of a complete checkpoint, by its uri."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Content:
    """One rank's view of what to save. `metrics` and `timings` matter on rank 0 only, `scalars` on the first rank of
    each stage."""

    step: int
    samples: int
    shared: Mapping[str, Tensor]  # the model's and the optimizer's: alike on every rank, or its parts of them
    own: Mapping[str, Tensor]  # this rank's
    scalars: Mapping[str, Any]
    metrics: Mapping[str, float]
    timings: Mapping[str, float]
    measure: Measure | None = None  # rank 0's: more metrics, of the checkpoint as it lies in the store
    progress: float | None = None  # this and what follows as in `Commit`
    gain: float | None = None
    notes: tuple[str, ...] = ()
    collection: Collection | None = None  # None: every rank holds the whole state


@dataclass(frozen=True, slots=True)
class RankPart:
    """What a rank tells the others of its writing; `error` is empty where it succeeded."""

    shard: ShardInfo | None
    reads: Reads
    error: str = ""
    scalars: dict[str, Any] | None = None  # of the stages after the first, which rank 0 does not know


def tensors_to_write(content: Content, collection: Collection | None, group: Group) -> dict[str, Tensor]:
    """This rank's share of what all hold alike (`collection` is None), or of its parts; and what only it holds."""
    if collection is not None:
        return {**{name: collection.parts[name] for name in collection.boxes}, **content.own}
    sizes = {name: tensor.numel() * tensor.element_size() for name, tensor in content.shared.items()}
    names = plan_writers(sizes, group.world)[group.rank]
    return {**{name: content.shared[name] for name in names}, **content.own}


def held_parts(tensors: Mapping[str, Tensor], collection: Collection | None, rank: int) -> Memory:
    """A rank's tensors as parts of the whole ones; what belongs to the rank alone, and all without a `collection`, is
    whole."""
    parts: dict[str, tuple[Part]] = {}
    for name, tensor in tensors.items():
        box: Box | None = Box.whole(tensor.shape)
        if collection is not None and name in collection.parts:
            box = collection.layout.box(name, collection.metas[name].shape, rank)
        if box is not None:  # else it holds no element of it
            parts[name] = (Part(box, tensor.detach()),)
    return parts


def write_part(
    store: CheckpointStore,
    uri: str,
    places: Places,
    content: Content,
    collection: Collection | None,
    tensors: Mapping[str, Tensor],
    reads: Reads,
    indices: Mapping[int, Indices],
) -> RankPart:
    """Write this rank's shard and the indices it has read. An `ElasticError` becomes the part's `error`."""
    boxes: Mapping[str, Box] = collection.boxes if collection is not None else {}
    shapes = {name: collection.metas[name].shape for name in boxes} if collection is not None else {}
    try:
        shard = write_shard(store, uri, places.rank, tensors, boxes, shapes)
        written_reads = _write_indices(store, uri, places.rank, reads, indices)
    except ElasticError as error:
        return RankPart(None, Reads(), f"rank {places.rank}: {error}")
    leads_stage = places.stage > 0 and places.data == 0 and places.tensor == 0
    return RankPart(shard, written_reads, scalars=dict(content.scalars) if leads_stage else None)


def _write_indices(store: CheckpointStore, uri: str, rank: int, reads: Reads, indices: Mapping[int, Indices]) -> Reads:
    """Write what was read index by index (audit: full), beside the checkpoints, and name it in the fingerprint."""
    job, lineage, name = uri.rsplit("/", 2)
    keys = {}
    for epoch, values in indices.items():
        keys[epoch] = f"{job}/audit/{lineage}/{name}-rank{rank}-pass{epoch}.npy"
        store.put(keys[epoch], dump_indices(values))
    return Reads(
        tuple(
            replace(epoch_reads, objects=(keys[epoch_reads.epoch],)) if epoch_reads.epoch in keys else epoch_reads
            for epoch_reads in reads.epochs
        )
    )
