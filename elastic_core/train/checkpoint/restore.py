"""Where training starts from: the newest checkpoint that every rank can read unharmed.

Ranks read together (`state.reshard.collective_load`): what several of a host need is read once. If one finds a
checkpoint corrupt, none uses it, the ledger is told, and the next older one is tried. When none is left that is an
error: a job with history never starts at step 0.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from elastic_core.crashing import crash_here
from elastic_core.domain import Slot
from elastic_core.errors import CorruptCheckpoint, InfrastructureError
from elastic_core.protocol.records import CheckpointRecord
from elastic_core.state.format.checkpoint_format import Box, Manifest, read_manifest, read_tensors
from elastic_core.state.layout.layout import of_one_rank
from elastic_core.state.reshard import shared
from elastic_core.state.reshard.collective_load import READING, LoadGroup, load_collectively
from elastic_core.state.reshard.exchange import run_on_all_ranks
from elastic_core.state.stores.store import CheckpointStore
from elastic_core.train.checkpoint.training_state import MODEL
from elastic_core.train.parallel.group import Group

MarkBad = Callable[[int, str], None]
Boxes = Callable[[Manifest], Mapping[str, Box] | None]
Concerns = Callable[[str, int], bool]  # whether a rank may want a tensor

_TRIES = 3
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Restored:
    """`record` is None for a new job. `num_bytes`: what this rank read of tensors, wherever it came from."""

    record: CheckpointRecord | None = None
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    scalars: Mapping[str, Any] = field(default_factory=dict)
    num_bytes: int = 0


def restore(
    candidates: tuple[CheckpointRecord, ...],
    store: CheckpointStore,
    group: Group,
    slots: Sequence[Slot],
    mark_bad: MarkBad | None,
    boxes: Boxes | None = None,
) -> Restored:
    """Read the newest good candidate, the same on every rank. `mark_bad` is rank 0's, `slots` are those of the ranks.

    `boxes`: the parts of the model's and the optimizer's tensors that this rank needs; whole ones, if that is None.

    Raises `InfrastructureError` when there are candidates and all are corrupt, or the store does not answer.
    """
    faults = []
    for record in candidates:
        try:
            tensors, scalars, num_bytes = _read(
                store, record.uri, record.manifest_sha256, group, slots, boxes, _of_rank
            )
        except CorruptCheckpoint as error:
            fault = str(error)
        else:
            return Restored(record, tensors, scalars, num_bytes)
        _log.warning("checkpoint %s is passed over: %s", record.uri, fault)
        faults.append(fault)
        if mark_bad is not None:
            _report_bad(mark_bad, record, fault)
    if faults:
        raise InfrastructureError(
            f"None of the {len(faults)} checkpoints of the job can be read, and a job with history does not start from "
            f"step 0: {'; '.join(faults)}. Roll back to an older checkpoint, or start a new job."
        )
    return Restored()


def warm_start(
    store: CheckpointStore, uri: str, sha256: str | None, group: Group, slots: Sequence[Slot], boxes: Boxes
) -> Restored:
    """The model's tensors of a checkpoint of another job, or this rank's parts of them. Collective.

    `sha256`: what its manifest must have, if that is known. Raises `CorruptCheckpoint`.
    """
    tensors, _, num_bytes = _read(store, uri, sha256, group, slots, boxes, lambda name, _: name.startswith(MODEL))
    return Restored(None, tensors, {}, num_bytes)


def read_weights(store: CheckpointStore, uri: str, sha256: str | None = None) -> dict[str, Tensor]:
    """The model's tensors of a checkpoint, nothing else of it."""
    manifest = read_manifest(store, uri, sha256)
    return read_tensors(store, manifest, [name for name in manifest.tensors if name.startswith(MODEL)])


def _read(
    store: CheckpointStore,
    uri: str,
    sha256: str | None,
    group: Group,
    slots: Sequence[Slot],
    boxes: Boxes | None,
    concerns: Concerns,
) -> tuple[dict[str, Tensor], Mapping[str, Any], int]:
    """(tensors, scalars, bytes read). Raises on every rank alike."""

    def plan_reading() -> tuple[Manifest, dict[str, Any]]:
        crash_here("restore.begun")
        manifest = read_manifest(store, uri, sha256)
        needed = boxes(manifest) if boxes is not None else None
        listed = None
        if needed is not None:
            listed = [(name, box.start, box.shape) for name, box in needed.items() if concerns(name, group.rank)]
        return manifest, {"boxes": listed, "room": shared.room(shared.FOLDER)}

    manifest, plans = run_on_all_ranks(group.gather_bytes, plan_reading, READING)
    wanted = [_boxes_of_rank(manifest, plan["boxes"], rank, concerns) for rank, plan in enumerate(plans)]
    room = [plan["room"] for plan in plans]
    load_group = LoadGroup(rank=group.rank, slots=slots, exchange=group.gather_bytes, room=room)
    loaded = load_collectively(store, manifest, wanted, load_group, group.log)
    crash_here("restore.read")
    return loaded.tensors, manifest.scalars, loaded.received.store_bytes


def _boxes_of_rank(
    manifest: Manifest, listed: Sequence[tuple[str, Sequence[int], Sequence[int]]] | None, rank: int, concerns: Concerns
) -> dict[str, Box]:
    """A rank's parts of what ranks share, as it listed them or else whole, and whole what belongs to it alone."""
    names = [name for name in manifest.tensors if concerns(name, rank)]
    whole = {name: Box.whole(manifest.tensors[name].shape) for name in names if listed is None or of_one_rank(name)}
    return whole | {name: Box(tuple(start), tuple(shape)) for name, start, shape in listed or ()}


def _of_rank(name: str, rank: int) -> bool:
    """Every rank's own tensors end in, or hold, its number; the others are of all."""
    kind, _, rest = name.partition("/")
    if kind == "rng":
        return rest.rpartition("/")[2] == str(rank)
    return kind != "comm" or rest.partition("/")[0] == str(rank)


def _report_bad(mark_bad: MarkBad, record: CheckpointRecord, fault: str) -> None:
    """The ledger keeps a note for the user; while it is away, restoring is more urgent."""
    for attempt in range(_TRIES):
        try:
            mark_bad(record.checkpoint_id, fault)
            return
        except InfrastructureError as error:
            if attempt == _TRIES - 1:
                _log.warning("%s could not be reported as bad: %s", record.uri, error)
