"""Collective reshard: one rank's part in a change of layout between processes, without the store in the middle.

`prepare`: the ranks of a host map each other's shared memory for the new shards. `reshard_collectively`: each rank
fetches its pieces, from its host's memory or from peers on other hosts, and then what is passed on between hosts.
`exchange` is an all-gather of bytes (a process group's); at each one the ranks report errors, so that a reshard that
fails on one rank fails on all, for the same reason.
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
from elastic_core.state.layout.boxes import Box
from elastic_core.state.layout.layout import StateLayout, TensorMeta, partition
from elastic_core.state.reshard import shared
from elastic_core.state.reshard.change_plan import Plan
from elastic_core.state.reshard.peers import Address, PeerSource, RangeServer
from elastic_core.state.reshard.transform import FillFromStore, Memory, MemorySource, Received, Source, Transformer

T = TypeVar("T")
Exchange = Callable[[bytes], Sequence[bytes]]

CHANGE, SHARING = "The change of layout", "Sharing memory"  # that failed
_KINDS: Mapping[str, type[ElasticError]] = {**BY_CODE, shared.CannotShare.code: shared.CannotShare}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReshardGroup:
    """The ranks of one reshard. `secret` is theirs, `host` where this rank listens, `folder` a memory file system."""

    secret: bytes
    exchange: Exchange
    host: str = "127.0.0.1"
    folder: Path = shared.FOLDER


def prepare(layout: StateLayout, rank: int, metas: Mapping[str, TensorMeta], group: ReshardGroup) -> dict[int, Memory]:
    """Memory for this rank's shard and that of every other rank of its host, by rank; zeros.

    It lives while a rank maps it and has no name: no crash leaves it behind. Raises `InfrastructureError` on every rank
    alike.
    """
    boxes = partition(layout, {name: metas[name] for name in layout.placements})
    host_ranks = [other for other, slot in enumerate(layout.slots) if slot.node == layout.slots[rank].node]
    return map_collectively({other: boxes[other] for other in host_ranks}, rank, metas, group.exchange, group.folder)


def map_collectively(
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
        places = [(path, device, inode) for path, device, inode in run_on_all_ranks(exchange, create, SHARING)[1]]
        new = run_on_all_ranks(exchange, attach, SHARING)[0]
    finally:
        for fd in made:
            os.close(fd)
    crash_here("transfer.mapped")
    return new


def reshard_collectively(
    plan: Plan,
    rank: int,
    new: Mapping[int, Memory],
    old: Mapping[Slot, Address],
    group: ReshardGroup,
    own: Memory | None = None,
    fill_from_store: FillFromStore | None = None,
) -> Received:
    """Fill the memory that was prepared for the plan's target; what this rank received.

    `old` are the servers of the old memories, which outlive this call on every rank; `own` is what this process holds
    of them itself. Raises `InfrastructureError` on every rank alike; then the memory holds anything.
    """
    slots = plan.target.slots
    with ExitStack() as stack:
        sources: dict[Slot, Source] = {slot: _peer(address, group, stack) for slot, address in old.items()}
        if own is not None:
            sources[slots[rank]] = MemorySource(own)
        transformer = Transformer(plan, rank, new, sources, fill_from_store)
        passes_on = any(piece.relay and piece.source == slots[rank] for piece in plan.pieces)
        address = None
        if passes_on:
            address = stack.enter_context(RangeServer(new[rank], group.secret, group.host)).address
        received, addresses = run_on_all_ranks(group.exchange, lambda: (transformer.first(), address), CHANGE)
        relays = {slots[r]: _peer((at[0], at[1]), group, stack) for r, at in enumerate(addresses) if at is not None}
        received.add(run_on_all_ranks(group.exchange, lambda: (fetched(transformer.relays(relays)), None), CHANGE)[0])
    return received


def fetched(what: T) -> T:
    """Where the last thing that a rank fetches has come."""
    crash_here("transfer.fetched")
    return what


def _peer(address: Address, group: ReshardGroup, stack: ExitStack) -> PeerSource:
    peer = PeerSource(address, group.secret)
    stack.callback(peer.close)
    return peer


def run_on_all_ranks(exchange: Exchange, work: Callable[[], tuple[T, Any]], what: str) -> tuple[T, list[Any]]:
    """Do this rank's work; its result, and the message (JSON) of every rank's. Collective.

    A fault of any rank is raised on all, as the same class of error: a checkpoint that one rank found damaged is
    damaged for all, before anything else, and what the user got wrong comes before what may pass.
    """
    result: T | None = None
    message, code, fault = None, "", ""
    try:
        result, message = work()
    except ElasticError as error:
        code, fault = error.code, str(error) or type(error).__name__
    report = json.dumps({"code": code, "fault": fault, "message": message}, separators=(",", ":"))
    answers = [json.loads(data) for data in exchange(report.encode())]
    faults = [(rank, answer["code"], answer["fault"]) for rank, answer in enumerate(answers) if answer["code"]]
    if faults:
        raise _worst(faults, what)
    return cast(T, result), [answer["message"] for answer in answers]


def _worst(faults: Sequence[tuple[int, str, str]], what: str) -> ElasticError:
    kinds = [_KINDS.get(code, InfrastructureError) for _, code, _ in faults]
    for most_telling in (CorruptCheckpoint, UserError):
        for (_, _, fault), kind in zip(faults, kinds, strict=True):
            if issubclass(kind, most_telling):
                return kind(fault)
    texts = "; ".join(f"rank {rank}: {fault}" for rank, _, fault in faults)
    worst: type[ElasticError] = kinds[0] if len(set(kinds)) == 1 else InfrastructureError
    return worst(f"{what} failed: {texts}")
