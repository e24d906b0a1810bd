"""Ranks that load a state together, each a thread: from memories, from a checkpoint, or from both."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from torch import Tensor

from elastic_core.domain import Slot
from elastic_core.state.format.checkpoint_format import (
    Manifest,
    plan_shards,
    read_manifest,
    write_manifest,
    write_shard,
)
from elastic_core.state.layout.layout import StateLayout, TensorMeta, partition
from elastic_core.state.reshard import shared
from elastic_core.state.reshard.change_plan import Plan
from elastic_core.state.reshard.collective_load import Loaded, carry_out
from elastic_core.state.reshard.memories import Memory, Part, Received, boxes_of
from elastic_core.state.reshard.peers import RangeServer
from elastic_core.state.reshard.rank_load import Checkpoint, LoadGroup, OldMemories
from elastic_core.state.stores.store import CheckpointStore
from tests.state.builders import HEADER, URI, same_bits
from tests.state.changing_ranks import SECRET

State = Mapping[str, Tensor]


class Threads:
    """An exchange between ranks that are threads."""

    def __init__(self, world: int) -> None:
        self._barrier = threading.Barrier(world, timeout=20)
        self._messages = [b""] * world

    def of(self, rank: int) -> Callable[[bytes], Sequence[bytes]]:
        def exchange(data: bytes) -> Sequence[bytes]:
            self._messages[rank] = data
            self._barrier.wait()
            everyone = list(self._messages)
            self._barrier.wait()
            return everyone

        return exchange


def memories(layout: StateLayout, metas: Mapping[str, TensorMeta], state: State) -> dict[Slot, Memory]:
    """The state as the devices of a layout hold it."""
    return {
        slot: {name: (Part(box, state[name][box.slices()].clone()),) for name, box in boxes.items()}
        for slot, boxes in zip(layout.slots, partition(layout, metas), strict=True)
    }


def save(store: CheckpointStore, layout: StateLayout, metas: Mapping[str, TensorMeta], state: State) -> Manifest:
    shapes = {name: meta.shape for name, meta in metas.items()}
    infos = [
        write_shard(store, URI, rank, {n: state[n][b.slices()] for n, b in boxes.items()}, boxes, shapes)
        for rank, boxes in enumerate(plan_shards(layout, metas))
    ]
    write_manifest(store, URI, infos, HEADER, {}, layout)
    return read_manifest(store, URI)


def carried_out(
    plan: Plan,
    metas: Mapping[str, TensorMeta],
    old: Mapping[Slot, Memory],
    folder: Path,
    checkpoint: Checkpoint | None = None,
    *,
    given: Mapping[Slot, Memory] | None = None,
) -> tuple[list[Mapping[str, Tensor]], Received, list[list[str]]]:
    """What each rank of the plan's target has then, all that was received, and what each said.

    `old`: the memories that the plan counts on; `given`: those that are there, where these are others. Memories let go
    for good of what nobody reads from there any more, and nothing but what others read is left in them.
    """
    there = {slot: dict(memory) for slot, memory in (old if given is None else given).items()}
    slots, wanted = plan.target.slots, partition(plan.target, metas)
    threads, said = Threads(len(slots)), [list[str]() for _ in slots]
    with ExitStack() as stack, ThreadPoolExecutor(len(slots)) as pool:
        served = {slot: stack.enter_context(RangeServer(memory, SECRET)).address for slot, memory in there.items()}

        def load(rank: int) -> Loaded:
            room = [shared.room(folder)] * len(slots)
            group = LoadGroup(rank=rank, slots=slots, exchange=threads.of(rank), room=room, folder=folder)
            held = OldMemories(
                boxes={slot: boxes_of(memory) for slot, memory in old.items()},
                addresses=served, own=there.get(slots[rank], {}), secret=SECRET,
                let_go=lambda name: there[slots[rank]].pop(name),
            )  # fmt: skip
            return carry_out(plan.pieces, metas, wanted, group, held, checkpoint, said[rank].append)

        results = [future.result(60) for future in [pool.submit(load, rank) for rank in range(len(slots))]]
    total = Received()
    for rank, loaded in enumerate(results):
        total.add(loaded.received)
        read = {piece.tensor for piece in plan.pieces if piece.source == slots[rank] and not piece.relay
                and piece.fetcher != rank}  # fmt: skip
        assert given is not None or set(there.get(slots[rank], {})) == read & set(old.get(slots[rank], {}))
    return [loaded.tensors for loaded in results], total, said


def assert_whole(
    found: Sequence[Mapping[str, Tensor]], layout: StateLayout, metas: Mapping[str, TensorMeta], state: State
) -> None:
    for rank, boxes in enumerate(partition(layout, metas)):
        assert found[rank].keys() == boxes.keys()
        for name, box in boxes.items():
            assert same_bits(found[rank][name], state[name][box.slices()]), (rank, name)
