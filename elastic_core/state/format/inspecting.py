"""What a person asks of checkpoints: which there are, how two differ, the weights as one file, another layout.

Works on the store alone, without ledger or processes; one tensor (`compare`) or one rank's part (`reshard`) is in
memory at a time. `export` holds the tensors that it writes.
"""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from elastic_core.domain import to_json
from elastic_core.errors import CorruptCheckpoint, UserError
from elastic_core.state.format.manifest import CheckpointHeader, Manifest, Written, read_manifest, write_manifest
from elastic_core.state.format.reading import read_tensors
from elastic_core.state.format.writing import plan_shards, write_shard
from elastic_core.state.layout.layout import StateLayout
from elastic_core.state.stores.paths import MANIFEST, CheckpointPath
from elastic_core.state.stores.store import CheckpointStore


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint's directory in a store. `fault` says why there is no header: incomplete, or corrupt."""

    uri: str
    size_bytes: int
    header: CheckpointHeader | None
    fault: str = ""


def find(store: CheckpointStore, job: str) -> list[Found]:
    """Every checkpoint directory of a job, by lineage and step, as the store alone tells it."""
    sizes: dict[str, int] = {}
    complete: set[str] = set()
    for entry in store.entries(job):
        uri, _, name = entry.key.rpartition("/")
        path = CheckpointPath.parse(uri)
        if path is not None and path.job_id == job:
            sizes[uri] = sizes.get(uri, 0) + entry.size
            if name == MANIFEST:
                complete.add(uri)
    return [_found(store, uri, sizes[uri], uri in complete) for uri in sorted(sizes, key=_age)]


@dataclass(frozen=True, slots=True)
class TensorDifference:
    """How a tensor of one checkpoint differs from that of another. None: cannot be told (NaN, infinity)."""

    name: str
    what: str  # "only in the first" | "only in the second" | "type or shape: ..." | "values"
    num_different: int | None = None  # elements whose bits differ
    max_abs: float | None = None  # largest absolute difference


@dataclass(frozen=True, slots=True)
class Difference:
    """What differs between two checkpoints. `values` are header and scalars by path, with both values."""

    values: Mapping[str, tuple[Any, Any]]
    tensors: tuple[TensorDifference, ...]
    num_equal: int  # tensors that are equal bit for bit

    @property
    def same(self) -> bool:
        """Equal tensors and scalars; who wrote them and when does not count."""
        return not self.tensors and not any(path.startswith("scalars") for path in self.values)


def compare(store_a: CheckpointStore, a: Manifest, store_b: CheckpointStore, b: Manifest) -> Difference:
    """Compare two checkpoints, one tensor in memory at a time."""
    before = {"header": to_json(a.header), "scalars": a.scalars}
    after = {"header": to_json(b.header), "scalars": b.scalars}
    tensors = []
    for name in sorted({*a.tensors, *b.tensors}):
        if name not in b.tensors or name not in a.tensors:
            tensors.append(TensorDifference(name, f"only in the {'first' if name in a.tensors else 'second'}"))
            continue
        first, second = (read_tensors(s, m, [name])[name] for s, m in ((store_a, a), (store_b, b)))
        difference = _tensor_difference(name, first, second)
        if difference is not None:
            tensors.append(difference)
    total = len({*a.tensors, *b.tensors})
    return Difference(dict(_values(before, after, "")), tuple(tensors), total - len(tensors))


def export(store: CheckpointStore, manifest: Manifest, out: Path, prefix: str) -> tuple[str, ...]:
    """Write the tensors whose names start with `prefix`, whole and without it, as one safetensors file; their names.

    Raises `UserError` when there are none. `out` is replaced when the file is complete and not before.
    """
    names = [name for name in manifest.tensors if name.startswith(prefix)]
    if not names:
        raise UserError(f"Checkpoint {manifest.uri} holds no tensor whose name starts with {prefix!r}.")
    tensors = {name.removeprefix(prefix): tensor for name, tensor in read_tensors(store, manifest, names).items()}
    metadata = {"format": "pt", "job": manifest.header.job_id, "step": str(manifest.header.step)}
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent) as folder:
        save_file(tensors, Path(folder) / "export", metadata)
        os.replace(Path(folder) / "export", out)
    return tuple(sorted(tensors))


def reshard(store: CheckpointStore, manifest: Manifest, layout: StateLayout, out: CheckpointStore) -> Written:
    """Write a checkpoint into another store as the ranks of `layout` would have; one rank's part in memory at a time.

    Tensors that the layout does not place (what belongs to single ranks) stay with the first rank. The header's
    layout is the new one, all else of header and scalars is kept. Raises `UserError` when there is a checkpoint of that
    name already.
    """
    if out.size(f"{manifest.uri}/{MANIFEST}") is not None:
        raise UserError(f"{out.url} holds {manifest.uri} already: give a folder or prefix where it is not.")
    metas = {name: meta for name, meta in manifest.metas.items() if name in layout.placements}
    shapes = {name: meta.shape for name, meta in manifest.metas.items()}
    infos = []
    for rank, boxes in enumerate(plan_shards(layout, metas)):
        names = [*boxes, *(name for name in manifest.tensors if rank == 0 and name not in metas)]
        infos.append(write_shard(out, manifest.uri, rank, read_tensors(store, manifest, names, boxes), boxes, shapes))
    header = replace(manifest.header, layout=layout.mesh.parallel)
    return write_manifest(out, manifest.uri, infos, header, manifest.scalars, layout)


def _found(store: CheckpointStore, uri: str, size: int, complete: bool) -> Found:
    if not complete:
        return Found(uri, size, None, "incomplete")
    try:
        return Found(uri, size, read_manifest(store, uri).header)
    except CorruptCheckpoint as error:
        return Found(uri, size, None, str(error))


def _age(uri: str) -> tuple[int, int, int, str]:
    path = CheckpointPath.parse(uri)
    assert path is not None
    return (path.lineage, path.step, path.epoch, path.nonce)


def _tensor_difference(name: str, first: Tensor, second: Tensor) -> TensorDifference | None:
    if (first.dtype, first.shape) != (second.dtype, second.shape):
        words = " and ".join(f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)}" for t in (first, second))
        return TensorDifference(name, f"type or shape: {words}")
    bits = [t.reshape(-1).view(torch.uint8).reshape(t.numel(), t.element_size()) for t in (first, second)]
    num = int((bits[0] != bits[1]).any(dim=1).sum()) if first.numel() else 0
    if num == 0:
        return None
    wide = torch.complex128 if first.is_complex() else torch.float64
    largest = float((first.to(wide) - second.to(wide)).abs().max())
    return TensorDifference(name, "values", num, largest if math.isfinite(largest) else None)


def _values(first: Any, second: Any, path: str) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Leaves of two JSON values that differ, by path."""
    if isinstance(first, Mapping) and isinstance(second, Mapping):
        for key in sorted({*first, *second}):
            yield from _values(first.get(key), second.get(key), f"{path}.{key}" if path else str(key))
    elif first != second:
        yield path, (first, second)
