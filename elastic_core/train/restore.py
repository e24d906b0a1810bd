"""Where training starts from: the newest checkpoint that every rank can read unharmed.

Ranks read by themselves and agree afterwards; if one finds a checkpoint corrupt, none uses it, the ledger is told,
and the next older one is tried. When none is left that is an error: a job with history never starts at step 0.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from elastic_core.control.contract import CheckpointRecord
from elastic_core.crashing import crash_here
from elastic_core.errors import CorruptCheckpoint, InfrastructureError
from elastic_core.state.contract import CheckpointStore
from elastic_core.state.format import Box, Manifest, read_manifest, read_tensors
from elastic_core.train.group import Group
from elastic_core.train.training_state import MODEL

MarkBad = Callable[[int, str], None]
Boxes = Callable[[Manifest], Mapping[str, Box] | None]

_TRIES = 3


@dataclass(frozen=True, slots=True)
class Restored:
    """`record` is None for a new job."""

    record: CheckpointRecord | None
    tensors: Mapping[str, Tensor]
    scalars: Mapping[str, Any]
    seconds: float


def restore(
    candidates: tuple[CheckpointRecord, ...],
    store: CheckpointStore,
    group: Group,
    mark_bad: MarkBad | None,
    boxes: Boxes | None = None,
) -> Restored:
    """Read the newest good candidate, the same on every rank. `mark_bad` is rank 0's.

    `boxes`: the parts of the model's and the optimizer's tensors that this rank needs; whole ones, if that is None.

    Raises `InfrastructureError` when there are candidates and all are corrupt, or the store does not answer.
    """
    started = time.perf_counter()
    faults = []
    for record in candidates:
        loaded, fault = _read(record, store, group, boxes)
        if loaded is not None:
            return Restored(record, loaded[0], loaded[1], time.perf_counter() - started)
        print(f"elastic: checkpoint {record.uri} is passed over: {fault}", file=sys.stderr, flush=True)
        faults.append(fault)
        if mark_bad is not None:
            _tell(mark_bad, record, fault)
    if faults:
        raise InfrastructureError(
            f"None of the {len(faults)} checkpoints of the job can be read, and a job with history does not start from "
            f"step 0: {'; '.join(faults)}. Roll back to an older checkpoint, or start a new job."
        )
    return Restored(None, {}, {}, time.perf_counter() - started)


def read_weights(
    store: CheckpointStore, uri: str, sha256: str | None = None, boxes: Boxes | None = None
) -> dict[str, Tensor]:
    """The model's tensors of a checkpoint, or this rank's parts of them, nothing else of it."""
    manifest = read_manifest(store, uri, sha256)
    parts = boxes(manifest) if boxes is not None else None
    names = [name for name in (manifest.tensors if parts is None else parts) if name.startswith(MODEL)]
    return read_tensors(store, manifest, names, parts)


def _read(
    record: CheckpointRecord, store: CheckpointStore, group: Group, boxes: Boxes | None
) -> tuple[tuple[dict[str, Tensor], Mapping[str, Any]] | None, str]:
    """(tensors, scalars) if every rank could read them, else None and the first rank's fault."""
    loaded, fault = None, ""
    try:
        crash_here("restore.begun")
        manifest = read_manifest(store, record.uri, record.manifest_sha256)
        parts = boxes(manifest) if boxes is not None else None
        mine = [name for name in manifest.tensors if _concerns(name, group.rank, parts)]
        loaded = (read_tensors(store, manifest, mine, parts), manifest.scalars)
        crash_here("restore.read")
    except CorruptCheckpoint as error:
        fault = str(error)
    faults = [data.decode() for data in group.gather_bytes(fault.encode())]
    if any(faults):
        return None, next(fault for fault in faults if fault)
    return loaded, ""


def _concerns(name: str, rank: int, parts: Mapping[str, Box] | None) -> bool:
    """Every rank's own tensors end in, or hold, its number."""
    kind, _, rest = name.partition("/")
    if kind == "rng":
        return rest.rpartition("/")[2] == str(rank)
    if kind == "comm":
        return rest.partition("/")[0] == str(rank)
    return parts is None or name in parts


def _tell(mark_bad: MarkBad, record: CheckpointRecord, fault: str) -> None:
    """The ledger keeps a note for the user; while it is away, restoring is more urgent."""
    for attempt in range(_TRIES):
        try:
            mark_bad(record.checkpoint_id, fault)
            return
        except InfrastructureError as error:
            if attempt == _TRIES - 1:
                print(f"elastic: {record.uri} could not be reported as bad: {error}", file=sys.stderr, flush=True)
