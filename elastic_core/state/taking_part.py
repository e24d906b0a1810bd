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
from typing import Any, cast

from elastic_core.crashing import crash_here
from elastic_core.domain import Slot
from elastic_core.errors import ElasticError, InfrastructureError
from elastic_core.state import shared
from elastic_core.state.layout import StateLayout, TensorMeta, partition
from elastic_core.state.peers import Address, PeerSource, RangeServer
from elastic_core.state.reshard import Plan
from elastic_core.state.transform import FillFromStore, Memory, MemorySource, Received, Source, Transformer

Exchange = Callable[[bytes], Sequence[bytes]]


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
    made: list[int] = []

    def create() -> tuple[None, str]:
        made.append(shared.create(meeting.folder, boxes[rank], metas))
        return None, str(shared.path_of(made[0]))

    def attach() -> tuple[dict[int, Memory], None]:
        crash_here("transfer.memory-made")
        return {other: shared.attach(Path(paths[other]), boxes[other], metas) for other in mates}, None

    try:
        paths = _together(meeting.exchange, create)[1]
        new = cast(dict[int, Memory], _together(meeting.exchange, attach)[0])
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
        received, addresses = _together(meeting.exchange, lambda: (transformer.first(), address))
        relays = {slots[r]: _peer((at[0], at[1]), meeting, stack) for r, at in enumerate(addresses) if at is not None}
        received.add(_together(meeting.exchange, lambda: (_relayed(transformer, relays), None))[0])
    return cast(Received, received)


def _relayed(transformer: Transformer, relays: Mapping[Slot, Source]) -> Received:
    received = transformer.relays(relays)
    crash_here("transfer.fetched")
    return received


def _peer(address: Address, meeting: Meeting, stack: ExitStack) -> PeerSource:
    peer = PeerSource(address, meeting.secret)
    stack.callback(peer.close)
    return peer


def _together(exchange: Exchange, work: Callable[[], tuple[Any, Any]]) -> tuple[Any, list[Any]]:
    """Do this rank's work; its result, and what every rank has to tell. Raises for a fault on any rank."""
    result, message, fault = None, None, ""
    try:
        result, message = work()
    except ElasticError as error:
        fault = str(error) or type(error).__name__
    answers = [json.loads(data) for data in exchange(json.dumps({"fault": fault, "message": message}).encode())]
    faults = [f"rank {rank}: {answer['fault']}" for rank, answer in enumerate(answers) if answer["fault"]]
    if faults:
        raise InfrastructureError(f"The change of layout failed: {'; '.join(faults)}")
    return result, [answer["message"] for answer in answers]
