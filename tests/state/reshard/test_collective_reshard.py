"""Ranks that change layout between processes: shared memory on a host, peers beyond it, faults on all alike."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch

from elastic_core.domain import Slot
from elastic_core.errors import InfrastructureError
from elastic_core.state.format.reading import fill
from elastic_core.state.layout.boxes import Box
from elastic_core.state.layout.layout import DATA, Mesh, Placement, StateLayout, TensorMeta
from elastic_core.state.reshard import shared
from elastic_core.state.reshard.change_plan import Plan, holdings, plan_change
from elastic_core.state.reshard.collective_reshard import ReshardGroup, prepare, reshard_collectively
from elastic_core.state.reshard.peers import RangeServer
from elastic_core.state.reshard.pieces import Link
from elastic_core.state.reshard.transform import FillFromStore, Memory, Received
from elastic_core.state.stores.store import CheckpointStore
from tests.state.changing_ranks import METAS, SECRET, STATE, laid, places
from tests.state.random_layouts import slots
from tests.state.reshard.test_transform import assert_whole, memories, save


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


def in_threads(
    plan: Plan,
    old: Mapping[Slot, Memory],
    folder: Path,
    fill_from_store: FillFromStore | None = None,
    folder_of: Mapping[int, Path] | None = None,
) -> tuple[dict[int, Memory], Received]:
    world = plan.target.world
    threads = Threads(world)
    with ExitStack() as stack, ThreadPoolExecutor(world) as pool:
        servers = {slot: stack.enter_context(RangeServer(memory, SECRET)).address for slot, memory in old.items()}

        def part(rank: int) -> tuple[Memory, Received]:
            group = ReshardGroup(secret=SECRET, exchange=threads.of(rank), folder=(folder_of or {}).get(rank, folder))
            new = prepare(plan.target, rank, METAS, group)
            own = old.get(plan.target.slots[rank])
            return new[rank], reshard_collectively(plan, rank, new, servers, group, own, fill_from_store)

        parts = [pool.submit(part, rank) for rank in range(world)]
        results = [part.result(60) for part in parts]
    total = Received()
    for _, received in results:
        total.add(received)
    return {rank: memory for rank, (memory, _) in enumerate(results)}, total


@pytest.mark.parametrize("per_node", [1, 2, 8])
def test_old_memories_become_new_ones_within_and_across_hosts(per_node: int, memory_folder: Path) -> None:
    old = laid(2, 2, slots(4, per_node))
    plan = plan_change(METAS, holdings(old, METAS), laid(3, 1, slots(3, per_node)))
    new, received = in_threads(plan, memories(old, METAS, STATE), memory_folder)
    assert_whole(new, plan.target, METAS, STATE)
    assert received.by_link == plan.num_bytes
    assert plan.moved == plan.bound
    assert list(memory_folder.iterdir()) == []  # the memory lives on without its name


def test_a_new_job_reads_the_store_once_for_two_hosts(folder_store: CheckpointStore, memory_folder: Path) -> None:
    manifest = save(folder_store, laid(2, 2, slots(4)), METAS, STATE)
    tiles = {name: [tile.box for tile in entry.tiles] for name, entry in manifest.tensors.items()}
    whole = {name: Placement() for name in METAS}
    ddp = StateLayout(Mesh((DATA,), (4,)), whole, slots(4, per_node=2))
    plan = plan_change(METAS, {}, ddp, tiles=tiles)
    new, received = in_threads(plan, {}, memory_folder, lambda places: fill(folder_store, manifest, places))
    assert_whole(new, plan.target, METAS, STATE)
    size = sum(tensor.nbytes for tensor in STATE.values())
    assert received.by_link == {Link.LOCAL: 0, Link.HOST: 2 * size, Link.NETWORK: size, Link.STORE: size}


def test_a_fault_of_one_rank_is_the_fault_of_all(memory_folder: Path) -> None:
    old = laid(2, 1, slots(2))
    plan = plan_change(METAS, holdings(old, METAS), laid(3, 1, slots(3)))
    held = memories(old, METAS, STATE)
    held[old.slots[0]] = {}
    with pytest.raises(InfrastructureError, match=r"The change of layout failed: rank \d: .*does not hold"):
        in_threads(plan, held, memory_folder)
    assert list(memory_folder.iterdir()) == []


def test_memory_that_cannot_be_made_is_the_fault_of_all(memory_folder: Path) -> None:
    old = laid(2, 1, slots(2))
    plan = plan_change(METAS, holdings(old, METAS), old)
    with pytest.raises(InfrastructureError, match="rank 1: Cannot share"):
        in_threads(plan, memories(old, METAS, STATE), memory_folder, folder_of={1: memory_folder / "not there"})
    assert list(memory_folder.iterdir()) == []


def test_shared_memory_is_one_memory_for_its_user_alone(memory_folder: Path) -> None:
    boxes = {name: Box((0,) * len(meta.shape), meta.shape) for name, meta in METAS.items()}
    fd = shared.create(memory_folder, boxes, METAS)
    mine, theirs = (shared.attach(shared.place_of(fd), boxes, METAS) for _ in range(2))
    assert os.fstat(fd).st_mode & 0o777 == 0o600
    assert list(memory_folder.iterdir()) == []
    for name, tensor in STATE.items():
        mine[name][0].tensor.copy_(tensor)
    os.close(fd)
    assert_whole({0: theirs}, laid(1, 1, slots(1)), METAS, STATE)


def test_memory_that_is_gone_or_another_is_not_mapped(memory_folder: Path) -> None:
    box, metas = {"w": Box((0,), (8,))}, {"w": TensorMeta("float32", (8,))}
    fd = shared.create(memory_folder, box, metas)
    path, device, inode = shared.place_of(fd)
    with pytest.raises(shared.CannotShare, match="it is not the memory that was made for it"):
        shared.attach((path, device, inode + 1), box, metas)
    os.close(fd)
    with pytest.raises(shared.CannotShare, match="Cannot map"):
        shared.attach((path, device, inode), box, metas)


def test_without_room_for_the_shards_it_says_so(memory_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(InfrastructureError, match=r"Cannot share \d+ bytes .* No space left on device.*/dev/shm"):
        shared.create(memory_folder, {"w": Box((4,), (4,))}, {"w": TensorMeta("float32", (8,))})
    assert list(memory_folder.iterdir()) == []


def _new_rank(rank: int, pipe: Connection, plan: Plan, servers: dict[Slot, tuple[str, int]], folder: Path) -> None:
    def exchange(data: bytes) -> Sequence[bytes]:
        pipe.send(data)
        answer: Sequence[bytes] = pipe.recv()
        return answer

    group = ReshardGroup(secret=SECRET, exchange=exchange, folder=folder)
    new = prepare(plan.target, rank, METAS, group)
    received = reshard_collectively(plan, rank, new, servers, group)
    found = {name: part.tensor.reshape(-1).view(torch.uint8).tolist() for name, (part,) in new[rank].items()}
    pipe.send((found, received.by_link))


def test_processes_take_over_the_state_of_this_one(memory_folder: Path) -> None:
    old = laid(1, 2, slots(2))
    plan = plan_change(METAS, holdings(old, METAS), laid(3, 1, places(5, 6, 7)))
    context = multiprocessing.get_context("fork")
    with ExitStack() as stack:
        held = memories(old, METAS, STATE)
        servers = {slot: stack.enter_context(RangeServer(memory, SECRET)).address for slot, memory in held.items()}
        pipes, processes = [], []
        for rank in range(3):
            here, there = context.Pipe()
            processes.append(context.Process(target=_new_rank, args=(rank, there, plan, servers, memory_folder)))
            processes[-1].start()
            pipes.append(here)
        for _ in range(4):
            messages = [pipe.recv() for pipe in pipes]
            for pipe in pipes:
                pipe.send(messages)
        results = [pipe.recv() for pipe in pipes]
        for process in processes:
            process.join(10)
    for rank, (found, _) in enumerate(results):
        for name, values in found.items():
            box = plan.target.box(name, METAS[name].shape, rank)
            assert box is not None
            want = STATE[name][box.slices()].contiguous().reshape(-1).view(torch.uint8).tolist()
            assert values == want
    moved = {link: sum(by_link[link] for _, by_link in results) for link in Link}
    assert moved == plan.num_bytes
    assert [process.exitcode for process in processes] == [0, 0, 0]
