"""Where training starts from: the newest checkpoint that every rank can read unharmed.

Ranks read together (`state.reshard.collective_load`): what several of a host need is read once, and what processes of
the group before have kept (`kept_state`) is taken from their memory. If one finds a checkpoint corrupt, none uses it,
and the next older one is tried; once one is read, the ledger is told of those that were passed over. When none is left
that is an error, and none is given up: a job with history never starts at step 0, and where nothing can be read, the
store may be away (an empty mount point).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from elastic_core.crashing import crash_here
from elastic_core.domain import Layout, Slot
from elastic_core.errors import CorruptCheckpoint, InfrastructureError
from elastic_core.protocol.records import CheckpointRecord
from elastic_core.state.format.checkpoint_format import Box, Manifest, read_manifest, read_tensors
from elastic_core.state.format.manifest import parse_manifest
from elastic_core.state.layout.layout import of_one_rank
from elastic_core.state.memory_tier.cached_store import MemoryTier
from elastic_core.state.reshard import shared
from elastic_core.state.reshard.collective_load import NO_MEMORY, load_collectively
from elastic_core.state.reshard.exchange import run_on_all_ranks
from elastic_core.state.reshard.memories import Received
from elastic_core.state.reshard.pieces import Link
from elastic_core.state.reshard.rank_load import READING, LoadGroup
from elastic_core.state.stores.store import CheckpointStore
from elastic_core.train.checkpoint.kept_state import KeptState, old_memories
from elastic_core.train.checkpoint.training_state import MODEL
from elastic_core.train.parallel.group import Group

MarkBad = Callable[[int, str], None]
Boxes = Callable[[Manifest], Mapping[str, Box] | None]
Concerns = Callable[[str, int], bool]  # whether a rank may want a tensor

_TRIES = 3
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Restored:
    """`record` is None for a new job. `same_ranks`: as many ranks in the same layout wrote it, so that what belongs to
    single ranks is among the tensors. `received`: over which link this rank's bytes came; `seconds` by phase."""

    record: CheckpointRecord | None = None
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    scalars: Mapping[str, Any] = field(default_factory=dict)
    same_ranks: bool = False
    received: Received = field(default_factory=Received)
    from_memories: bool = False  # the memories of processes took part in it
    seconds: Mapping[str, float] = field(default_factory=dict)


def restore(
    candidates: tuple[CheckpointRecord, ...],
    store: CheckpointStore,
    group: Group,
    slots: Sequence[Slot],
    layout: Layout,
    mark_bad: MarkBad | None,
    boxes: Boxes | None = None,
    kept: KeptState | None = None,
    into: Mapping[str, Tensor] = NO_MEMORY,
) -> Restored:
    """Read the newest good candidate, the same on every rank. `mark_bad` is rank 0's, `slots` are those of the ranks.

    `boxes`: the parts of the model's and the optimizer's tensors that this rank needs; whole ones, if that is None.
    `kept`: what this process kept of a checkpoint; as far as peers have kept it, nothing of it is read from the store.
    `into`: memory for this rank's parts, as in `load_collectively`.

    Raises `InfrastructureError` when there are candidates and all are corrupt, or the store does not answer. Of an only
    one the ledger is told: it says so where nothing can be done (a fork whose start is corrupt).
    """
    passed: list[tuple[CheckpointRecord, str]] = []
    for record in candidates:

        def of_same_ranks(manifest: Manifest, record: CheckpointRecord = record) -> bool:
            return record.layout == layout and manifest.scalars.get("world") == group.world

        kept_of_it = kept if kept and kept.uri == record.uri else None
        source = _Source(store, record.uri, record.manifest_sha256, kept_of_it)
        try:
            restored = replace(_read(source, group, slots, boxes, of_same_ranks, _of_rank, into), record=record)
        except CorruptCheckpoint as error:
            _log.warning("checkpoint %s is passed over: %s", record.uri, error)
            passed.append((record, str(error)))
            continue
        _report_bad(mark_bad, passed)
        return restored
    if not passed:
        return Restored()
    if len(candidates) == 1:
        _report_bad(mark_bad, passed)
    raise InfrastructureError(
        f"None of the {len(passed)} checkpoints of the job can be read, and a job with history does not start from "
        f"step 0: {'; '.join(fault for _, fault in passed)}. If its store is away (is it mounted?), bring it back and "
        "revive the job; else roll back to an older checkpoint, or start a new job."
    )


def warm_start(
    store: CheckpointStore,
    uri: str,
    sha256: str | None,
    group: Group,
    slots: Sequence[Slot],
    boxes: Boxes,
    into: Mapping[str, Tensor] = NO_MEMORY,
) -> Restored:
    """The model's tensors of a checkpoint of another job, or this rank's parts of them. Collective.

    `sha256`: what its manifest must have, if that is known. `into` as in `restore`. Raises `CorruptCheckpoint`.
    """
    source = _Source(store, uri, sha256, None)
    of_model: Concerns = lambda name, _: name.startswith(MODEL)  # noqa: E731
    return replace(_read(source, group, slots, boxes, lambda _: False, of_model, into), scalars={})


def timings_of(
    restored: Restored, load_seconds: float, kept: KeptState | None, group: Group, memory: MemoryTier | None
) -> dict[str, float]:
    """What a checkpoint's timings say of a restore; empty where nothing was restored. Collective.

    Seconds of this rank: `restore_keep` (before the old group parted), `restore_agree` on who needs and has what,
    `restore_fetch`, `restore_load` into model and optimizer. Bytes that all ranks together took, `restored_from_...`:
    `own_memory`, `same_host` and `other_hosts` from what processes had kept; `own_node` and `other_nodes` from cache
    servers; `store` from the store itself.
    """
    links, found = restored.received.by_link, {}
    if restored.from_memories:
        found = {"own_memory": links[Link.LOCAL], "same_host": links[Link.HOST], "other_hosts": links[Link.NETWORK]}
    read = memory.taken() if memory is not None else {"store": restored.received.store_bytes}
    by_source = {**found, **read}
    totals = [sum(ranks) for ranks in zip(*group.gather_vectors(list(by_source.values())), strict=True)]
    if not any(totals):
        return {}
    seconds = {**({} if kept is None else {"keep": kept.seconds}), **restored.seconds, "load": load_seconds}
    return {
        **{f"restore_{phase}": span for phase, span in seconds.items()},
        **{f"restored_from_{source}_bytes": total for source, total in zip(by_source, totals, strict=True)},
    }


def read_weights(store: CheckpointStore, uri: str, sha256: str | None = None) -> dict[str, Tensor]:
    """The model's tensors of a checkpoint, nothing else of it."""
    manifest = read_manifest(store, uri, sha256)
    return read_tensors(store, manifest, [name for name in manifest.tensors if name.startswith(MODEL)])


@dataclass(frozen=True, slots=True)
class _Source:
    """A checkpoint. `kept`: what this process has kept of it."""

    store: CheckpointStore
    uri: str
    sha256: str | None
    kept: KeptState | None

    def manifest(self, told: bytes) -> tuple[Manifest, int]:
        """Kept, or else from the bytes that a process of the old group has `told`; without them from the store. And
        the bytes read from there."""
        if self.kept is not None and self.kept.manifest is not None:
            return self.kept.manifest, 0
        if told:
            return parse_manifest(told, self.uri, self.sha256), 0
        manifest = read_manifest(self.store, self.uri, self.sha256)
        return manifest, len(manifest.content)

    def manifest_told(self, group: Group) -> bytes:
        """The manifest's bytes, from a process that has kept them to those who join it; none if there is no such
        process, or nobody who needs them. Collective."""
        content = self.kept.manifest.content if self.kept is not None and self.kept.manifest is not None else b""
        has = [bool(flag) for flag in group.gather_bytes(b"1" if content else b"")]
        return group.from_rank(has.index(True), content) if any(has) and not all(has) else b""


def _read(
    source: _Source,
    group: Group,
    slots: Sequence[Slot],
    boxes: Boxes | None,
    of_same_ranks: Callable[[Manifest], bool],
    concerns: Concerns,
    into: Mapping[str, Tensor],
) -> Restored:
    """Without its record. Raises on every rank alike."""
    started = time.perf_counter()
    kept = source.kept
    told_manifest = source.manifest_told(group)

    def needs() -> tuple[tuple[Manifest, int], dict[str, Any]]:
        crash_here("restore.begun")
        manifest, num_read = source.manifest(told_manifest)
        needed = boxes(manifest) if boxes is not None else None
        listed = None
        if needed is not None:
            listed = [(name, box.start, box.shape) for name, box in needed.items() if concerns(name, group.rank)]
        told, sound = (kept.message(slots), kept.unchanged) if kept is not None else (None, False)
        return (manifest, num_read), {"boxes": listed, "room": shared.room(shared.FOLDER), "kept": told, "sound": sound}

    (manifest, num_read), answers = run_on_all_ranks(group.gather_bytes, needs, READING)
    same_ranks = of_same_ranks(manifest)
    names = [name for name in manifest.tensors if same_ranks or not of_one_rank(name)]
    wanted = [_boxes_of_rank(manifest, names, answer["boxes"], rank, concerns) for rank, answer in enumerate(answers)]
    load_group = LoadGroup(
        rank=group.rank, slots=slots, exchange=group.gather_bytes, room=[answer["room"] for answer in answers]
    )
    old = old_memories(
        [answer["kept"] for answer in answers],
        [slot for slot, answer in zip(slots, answers, strict=True) if not answer["sound"]],
        kept,
        group.address,
    )
    agreed = time.perf_counter()
    loaded = load_collectively(source.store, manifest, wanted, load_group, _log.warning, old, into)
    loaded.received.store_bytes += num_read
    crash_here("restore.read")
    return Restored(
        tensors=loaded.tensors,
        scalars=manifest.scalars,
        same_ranks=same_ranks,
        received=loaded.received,
        from_memories=bool(old.boxes),
        seconds={"agree": agreed - started, "fetch": time.perf_counter() - agreed},
    )


def _boxes_of_rank(
    manifest: Manifest,
    names: Sequence[str],
    listed: Sequence[tuple[str, Sequence[int], Sequence[int]]] | None,
    rank: int,
    concerns: Concerns,
) -> dict[str, Box]:
    """Of the tensors of these names a rank's parts of what ranks share, as it listed them or else whole, and whole what
    belongs to it alone."""
    mine = [name for name in names if concerns(name, rank)]
    whole = {name: Box.whole(manifest.tensors[name].shape) for name in mine if listed is None or of_one_rank(name)}
    return whole | {name: Box(tuple(start), tuple(shape)) for name, start, shape in listed or ()}


def _of_rank(name: str, rank: int) -> bool:
    """Every rank's own tensors end in, or hold, its number; the others are of all."""
    kind, _, rest = name.partition("/")
    if kind == "rng":
        return rest.rpartition("/")[2] == str(rank)
    return kind != "comm" or rest.partition("/")[0] == str(rank)


def _report_bad(mark_bad: MarkBad | None, passed: Sequence[tuple[CheckpointRecord, str]]) -> None:
    """Raises `InfrastructureError` while the ledger is away: what goes on from an older one than it knows of as the
    newest could commit nothing."""
    if mark_bad is None:
        return
    for record, fault in passed:
        for attempt in range(1, _TRIES + 1):
            try:
                mark_bad(record.checkpoint_id, fault)
                break
            except InfrastructureError:
                if attempt == _TRIES:
                    raise
