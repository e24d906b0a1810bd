"""One rank's part in a change of layout between processes: shared memory within its host, peers' ranges beyond it.

First `prepare`: the ranks of a host map each other's memory for the new shards. Then `take_part`: each fetches its
pieces, and when all have, what is passed on. Ranks meet through `exchange` (every rank's message to all, as a process
group's gather); each time they tell each other of faults, so that a change that fails on one rank fails on all, with
the reason.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from elastic_core.crashing import crash_here
from elastic_core.domain import Slot
from elastic_core.errors import BY_CODE, CorruptCheckpoint, ElasticError, InfrastructureError, UserError
from elastic_core.state import shared
from elastic_core.state.boxes import Box
from elastic_core.state.layout import StateLayout, TensorMeta, partition
from elastic_core.state.peers import Address, PeerSource, RangeServer
from elastic_core.state.reshard import Plan
from elastic_core.state.transform import FillFromStore, Memory, MemorySource, Received, Source, Transformer

T = TypeVar("T")
Exchange = Callable[[bytes], Sequence[bytes]]

CHANGE, SHARING = "The change of layout", "Sharing memory"  # that failed
_KINDS: Mapping[str, type[ElasticError]] = {**BY_CODE, shared.CannotShare.code: shared.CannotShare}


@dataclass(frozen=True, slots=True, kw_only=True)
class Meeting:
    """What the ranks of a change share. `host` is where this rank listens, `folder` a memory file system."""

    secret: bytes
    exchange: Exchange
    host: str = "127.0.0.1"
    folder: Path = shared.FOLDER


def prepare(layout: StateLayout, rank: int, metas: Mapping[str, TensorMeta], meeting: Meeting) -> dict[int, Memory]:
    """Memory for this rank's shard and that of every other rank of its host, by rank; zeros.

    It lives while a rank maps it and has no name: no crash leaves it behind. Raises `InfrastructureError` on every rank
    alike.
    """
    boxes = partition(layout, {name: metas[name] for name in layout.placements})
    mates = [other for other, slot in enumerate(layout.slots) if slot.node == layout.slots[rank].node]
    return map_together({mate: boxes[mate] for mate in mates}, rank, metas, meeting.exchange, meeting.folder)


def map_together(
    boxes: Mapping[int, Mapping[str, Box]],
    rank: int,
    metas: Mapping[str, TensorMeta],
    exchange: Exchange,
    folder: Path,
) -> dict[int, Memory]:
    """The same for any boxes, by rank of this rank's host. Raises `shared.CannotShare` on every rank alike."""
    made: list[int] = []

    def create() -> tuple[None, shared.Place]:
        made.append(shared.create(folder, boxes[rank], metas))
        return None, shared.place_of(made[0])

    def attach() -> tuple[dict[int, Memory], None]:
        crash_here("transfer.memory-made")
        return {other: shared.attach(places[other], boxes[other], metas) for other in boxes}, None

    try:
        places = [(path, device, inode) for path, device, inode in together(exchange, create, SHARING)[1]]
        new = together(exchange, attach, SHARING)[0]
    finally:
        for fd in made:
            os.close(fd)
    crash_here("transfer.mapped")
    return new


def take_part(
    plan: Plan,
    rank: int,
    new: Mapping[int, Memory],
    old: Mapping[Slot, Address],
    meeting: Meeting,
    own: Memory | None = None,
    fill_from_store: FillFromStore | None = None,
) -> Received:
    """Fill the memory that was prepared for the plan's target; what this rank received.

    `old` are the servers of the old memories, which outlive this call on every rank; `own` is what this process holds
    of them itself. Raises `InfrastructureError` on every rank alike; then the memory holds anything.
    """
    slots = plan.target.slots
    with ExitStack() as stack:
        sources: dict[Slot, Source] = {slot: _peer(address, meeting, stack) for slot, address in old.items()}
        if own is not None:
            sources[slots[rank]] = MemorySource(own)
        transformer = Transformer(plan, rank, new, sources, fill_from_store)
        passes_on = any(piece.relay and piece.source == slots[rank] for piece in plan.pieces)
        address = None
        if passes_on:
            address = stack.enter_context(RangeServer(new[rank], meeting.secret, meeting.host)).address
        received, addresses = together(meeting.exchange, lambda: (transformer.first(), address), CHANGE)
        relays = {slots[r]: _peer((at[0], at[1]), meeting, stack) for r, at in enumerate(addresses) if at is not None}
        received.add(together(meeting.exchange, lambda: (fetched(transformer.relays(relays)), None), CHANGE)[0])
    return received


def fetched(what: T) -> T:
    """Where the last thing that a rank fetches has come."""
    crash_here("transfer.fetched")
    return what


def _peer(address: Address, meeting: Meeting, stack: ExitStack) -> PeerSource:
    peer = PeerSource(address, meeting.secret)
    stack.callback(peer.close)
    return peer


def together(exchange: Exchange, work: Callable[[], tuple[T, Any]], what: str) -> tuple[T, list[Any]]:
    """Do this rank's work; its result, and what every rank has to tell.

    A fault of any rank is raised on all, as the same class of error: a checkpoint that one rank found damaged is
    damaged for all, before anything else, and what the user got wrong comes before what may pass.
    """
    result: T | None = None
    message, code, fault = None, "", ""
    try:
        result, message = work()
    except ElasticError as error:
        code, fault = error.code, str(error) or type(error).__name__
    mine = json.dumps({"code": code, "fault": fault, "message": message}, separators=(",", ":"))
    answers = [json.loads(data) for data in exchange(mine.encode())]
    faults = [(rank, answer["code"], answer["fault"]) for rank, answer in enumerate(answers) if answer["code"]]
    if faults:
        raise _worst(faults, what)
    return cast(T, result), [answer["message"] for answer in answers]


def _worst(faults: Sequence[tuple[int, str, str]], what: str) -> ElasticError:
    kinds = [_KINDS.get(code, InfrastructureError) for _, code, _ in faults]
    for kind in (CorruptCheckpoint, UserError):
        for (_, _, fault), found in zip(faults, kinds, strict=True):
            if issubclass(found, kind):
                return found(fault)
    texts = "; ".join(f"rank {rank}: {fault}" for rank, _, fault in faults)
    worst: type[ElasticError] = kinds[0] if len(set(kinds)) == 1 else InfrastructureError
    return worst(f"{what} failed: {texts}")
