"""What processes still hold of the checkpoint that they committed last, for those who go on from it in their place.

At a resize in place each process of the old group keeps the tensors that it saved: those that the manifest's checksums
show to be unchanged, and no others. It serves them to its peers (`state.reshard.peers`), and all of the group tell each
other who holds what and where. Those who stay tell the new group; those who leave stay until the others have what they
need of them. Nothing depends on it: what a memory does not give is read from the checkpoint.
"""

from __future__ import annotations

import json
import logging
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from elastic_core.domain import Slot, from_json, to_json
from elastic_core.errors import ElasticError, InfrastructureError
from elastic_core.protocol.records import CheckpointRecord
from elastic_core.state.format.manifest import Manifest, parse_manifest
from elastic_core.state.format.unchanged import is_unchanged
from elastic_core.state.format.writing import StagingBuffer
from elastic_core.state.layout.boxes import Box
from elastic_core.state.layout.layout import TensorMeta, of_one_rank
from elastic_core.state.layout.overlap import HeldBoxes, cells_of
from elastic_core.state.reshard.memories import Memory, boxes_of
from elastic_core.state.reshard.peers import Address, PeerSource, RangeServer
from elastic_core.state.reshard.rank_load import OldMemories
from elastic_core.train.checkpoint.undrawn_weights import Drawn
from elastic_core.train.parallel.group import Group

SERVE_SECONDS = 60.0  # that a process which leaves stays at most for those who go on
_SECRET_BYTES = 32
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SavedState:
    """What a rank held of a checkpoint when it was written, as long as nothing writes to it. `manifest`: the bytes of
    the checkpoint's, on rank 0, which wrote it."""

    uri: str
    memory: Memory
    manifest: bytes = field(default=b"", repr=False)


class KeptState:
    """One process's part of what a group keeps of a checkpoint. Close it when the next group has its state."""

    def __init__(
        self,
        uri: str,
        slots: Sequence[Slot],
        rank: int,
        memory: Memory,
        manifest: Manifest | None,
        secret: bytes,
        drawn: Drawn | None,
        host: str,
    ) -> None:
        """`slots`: the group's, by rank. `drawn`: what the making of its model left (`undrawn_weights.make_model`).
        `host`: this node's address, where it is served."""
        self.uri, self.manifest, self._slots, self._secret = uri, manifest, slots, secret
        self.drawn = drawn
        self._own_slot, self._memory = slots[rank], dict(memory)
        self._server = _serve(self._memory, secret, host) if memory else None
        self._versions = _versions(memory)
        self._boxes: dict[Slot, HeldBoxes] = {}
        self._addresses: dict[Slot, Address] = {}
        self.seconds = 0.0  # that making it took

    @staticmethod
    def of(
        saved: SavedState,
        record: CheckpointRecord,
        group: Group,
        slots: Sequence[Slot],
        drawn: Drawn | None = None,
    ) -> KeptState | None:
        """Keep what was saved of `record`, the checkpoint that was just committed. Collective in the old group.

        None where a process of that is gone already: what follows needs only those who stay.
        """
        started = time.perf_counter()
        kept = None
        try:
            told = group.from_first(secrets.token_bytes(_SECRET_BYTES) + saved.manifest)
            secret, written = told[:_SECRET_BYTES], told[_SECRET_BYTES:]
            manifest, memory = _unchanged(saved, record, written)
            kept = KeptState(record.uri, slots, group.rank, memory, manifest, secret, drawn, group.address)
            messages = group.gather_bytes(json.dumps(kept._own_message()).encode())
        except InfrastructureError as error:
            _log.warning("nothing is kept of %s: %s", record.uri, error)
            if kept is not None:
                kept.close()
            return None
        kept._learn([json.loads(message) for message in messages])
        kept.seconds = time.perf_counter() - started
        return kept

    def message(self, slots: Sequence[Slot]) -> dict[str, Any] | None:
        """What the first process of the old group tells the new one, on `slots`; None on the others. Plain JSON."""
        first = next((slot for slot in slots if slot in self._slots), None)
        if first != self._own_slot:
            return None
        serving = [slot for slot in self._boxes if slot in slots or self._needed(slot, slots)]
        listed = [_to_json(slot, self._addresses[slot], self._boxes[slot]) for slot in serving]
        return {"secret": self._secret.hex(), "memories": listed}

    @property
    def memory(self) -> Memory:
        return self._memory

    def let_go(self, name: str) -> None:
        """No rank will read this tensor from here any more."""
        self._memory.pop(name, None)

    @property
    def unchanged(self) -> bool:
        """Nothing was written to what is kept since it was checked: a task may have given the same model again."""
        return self._versions == _versions(self._memory)

    def _needed(self, leaver: Slot, slots: Sequence[Slot]) -> bool:
        """Whether a group on `slots` may need something that `leaver`, none of them, holds: what nobody who stays, or
        nobody who stays on its node, has as well. The same on every process of the old group."""
        stay = [slot for slot in self._boxes if slot in slots]
        on_its_node = any(slot.node == leaver.node for slot in slots)
        near = [self._boxes[slot] for slot in stay if slot.node == leaver.node or not on_its_node]
        as_many = len(slots) == len(self._slots)  # else nobody wants what belongs to single ranks
        held = {name: boxes[0] for name, boxes in self._boxes[leaver].items() if as_many or not of_one_rank(name)}
        metas = {name: TensorMeta("uint8", box.end) for name, box in held.items()}  # large enough: only boxes matter
        return any(not cell.holders for _, cells in cells_of(metas, near, [held]) for cell in cells)

    def needed(self, slots: Sequence[Slot]) -> bool:
        """Whether the new group on `slots`, of which this process is none, may need something that it holds."""
        return self._own_slot in self._boxes and self._needed(self._own_slot, slots)

    def wait_until_taken(self) -> None:
        """Until the new group says that it has its state, or `SERVE_SECONDS`."""
        if self._server is not None:
            self._server.wait_until_done(SERVE_SECONDS)

    def loaded(self, slots: Sequence[Slot]) -> None:
        """The new group, on `slots`, has its state: let those go who left. Close this."""
        if self.message(slots) is not None:
            for slot, address in self._addresses.items():
                if slot not in slots and self._needed(slot, slots):
                    PeerSource(address, self._secret).tell_done()
        self.close()

    def close(self) -> None:
        """Lets go of the memory."""
        if self._server is not None:
            self._server.close()
        self._server, self._memory = None, {}

    def _own_message(self) -> dict[str, Any] | None:
        if self._server is None:
            return None
        return _to_json(self._own_slot, self._server.address, boxes_of(self._memory))

    def _learn(self, messages: Sequence[dict[str, Any] | None]) -> None:
        told = [_from_json(message) for message in messages if message is not None]
        self._boxes = {slot: boxes for slot, _, boxes in told}
        self._addresses = {slot: address for slot, address, _ in told}


def old_memories(
    messages: Sequence[dict[str, Any] | None], without: Sequence[Slot], kept: KeptState | None, host: str
) -> OldMemories:
    """What the new group was told by those of the old one (`KeptState.message`), the same on every rank but `own`.

    `without`: slots whose processes keep nothing, or nothing that can be used any more. `host`: this node's address,
    where this process serves what it passes on.
    """
    message = next((message for message in messages if message is not None), None)
    if message is None:
        return OldMemories()
    told = [_from_json(memory) for memory in message["memories"]]
    told = [memory for memory in told if memory[0] not in without]
    return OldMemories(
        boxes={slot: boxes for slot, _, boxes in told},
        addresses={slot: address for slot, address, _ in told},
        own=kept.memory if kept is not None else {},
        host=host,
        secret=bytes.fromhex(message["secret"]),
        let_go=kept.let_go if kept is not None else lambda _name: None,
    )


def _serve(memory: Memory, secret: bytes, host: str) -> RangeServer | None:
    """None where nothing can listen there: others then read from the store what this process holds."""
    try:
        return RangeServer(memory, secret, host)
    except InfrastructureError as error:
        _log.warning("what this process keeps is for itself alone: %s", error)
        return None


def _unchanged(saved: SavedState, record: CheckpointRecord, written: bytes) -> tuple[Manifest | None, Memory]:
    """The checkpoint's manifest, of which these bytes were written, and what of the saved state its checksums vouch
    for."""
    if saved.uri != record.uri:
        return None, {}
    try:
        manifest = parse_manifest(written, record.uri, record.manifest_sha256)
    except ElasticError as error:
        _log.warning("nothing is kept of %s: %s", record.uri, error)
        return None, {}
    buffer = StagingBuffer()
    kept = {
        name: parts
        for name, parts in saved.memory.items()
        if all(is_unchanged(manifest, name, part.box, part.tensor, buffer) for part in parts)
    }
    if len(kept) < len(saved.memory):
        changed = sorted(set(saved.memory) - set(kept))
        _log.warning("%d tensors were changed after they were saved and are read anew: %s", len(changed), changed[:5])
    return manifest, kept


def _versions(memory: Memory) -> list[int]:
    """PyTorch counts what is written to a tensor; of one made for inference it does not."""
    tensors = [part.tensor for parts in memory.values() for part in parts]
    return [0 if tensor.is_inference() else tensor._version for tensor in tensors]


def _to_json(slot: Slot, address: Address, boxes: HeldBoxes) -> dict[str, Any]:
    listed = [(name, box.start, box.shape) for name, parts in boxes.items() for box in parts]
    return {"slot": to_json(slot), "address": address, "boxes": listed}


def _from_json(value: Mapping[str, Any]) -> tuple[Slot, Address, HeldBoxes]:
    boxes: dict[str, tuple[Box, ...]] = {}
    for name, start, shape in value["boxes"]:
        boxes[name] = (*boxes.get(name, ()), Box(tuple(start), tuple(shape)))
    host, port = value["address"]
    return from_json(Slot, value["slot"]), (host, port), boxes
