"""Writing and reading a checkpoint, format version 1 (`state.format.manifest`): what callers need, in one place.

    infos = write_shard(store, uri, rank, tensors)             # every rank, for the tensors that are its to write
    written = write_manifest(store, uri, infos, header, {})    # one rank, once all shards are written
    manifest = read_manifest(store, uri, written.sha256)       # any number of ranks later
    tensors = read_tensors(store, manifest, names)

A shard is a plain safetensors file: any reader of that format opens it, nothing in it can run code. A tensor that
fits one tile lies there under its own name, a larger one as tiles named `<tensor>#<row0>,<col0>`.

Ranks that each hold a part of the tensors (`state.layout.layout`) write and read by the boxes of their layout:

    boxes = plan_shards(layout, metas)[rank]                   # what this rank writes: name -> box of the whole
    write_shard(store, uri, rank, {name: local[name] for name in boxes}, boxes, shapes)
    write_manifest(store, uri, infos, header, {}, layout)
    boxes = partition(layout, manifest.metas)[rank]            # what this rank needs, of any layout
    tensors = read_tensors(store, manifest, boxes, boxes)
"""

from __future__ import annotations

from elastic_core.state.format.manifest import (
    CheckpointHeader,
    Manifest,
    ShardInfo,
    Written,
    checkpoint_uri,
    read_manifest,
    write_manifest,
)
from elastic_core.state.format.reading import Verified, read_tensors, verify
from elastic_core.state.format.writing import plan_shards, plan_writers, write_shard
from elastic_core.state.layout.boxes import Box
from elastic_core.state.layout.layout import StateLayout, TensorMeta, partition

__all__ = [
    "Box",
    "CheckpointHeader",
    "Manifest",
    "ShardInfo",
    "StateLayout",
    "TensorMeta",
    "Verified",
    "Written",
    "checkpoint_uri",
    "partition",
    "plan_shards",
    "plan_writers",
    "read_manifest",
    "read_tensors",
    "verify",
    "write_manifest",
    "write_shard",
]
