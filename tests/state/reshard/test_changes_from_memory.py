"""The laws of a change of layout from memories: every tensor bit for bit, the bytes moved the lower bound."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from elastic_core.domain import Slot
from elastic_core.errors import InfrastructureError
from elastic_core.state.layout.boxes import TILE_BYTES, Box
from elastic_core.state.layout.layout import (
    DATA,
    REPLICATED,
    TENSOR,
    Mesh,
    Placement,
    Split,
    StateLayout,
    TensorMeta,
    partition,
)
from elastic_core.state.reshard import peers as peers_module
from elastic_core.state.reshard import rounds, shared
from elastic_core.state.reshard.change_plan import Plan, holdings, plan_change
from elastic_core.state.reshard.collective_load import carry_out
from elastic_core.state.reshard.memories import Memory, Part, find
from elastic_core.state.reshard.peers import RangeServer
from elastic_core.state.reshard.pieces import Link
from elastic_core.state.reshard.rank_load import Checkpoint, LoadGroup, OldMemories
from elastic_core.state.reshard.tenplex_central import tenplex_central_plans
from elastic_core.state.stores.local_store import LocalStore
from elastic_core.state.stores.store import CheckpointStore
from tests.state.changing_ranks import METAS, SECRET, STATE, laid, places, state_of
from tests.state.loading_ranks import assert_whole, carried_out, memories, save
from tests.state.random_layouts import layouts_of, models, slots

HEALTH = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few elements a piece, so that small tensors have many."""
    monkeypatch.setattr(rounds, "PULL_BYTES", 64)


KINDS = [("sgd", "float32"), ("sgd", "bfloat16"), ("adamw", "float32"), ("adamw", "bfloat16")]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("optimizer", "dtype"), KINDS)
@given(data=st.data())
@settings(deadline=None, max_examples=30, suppress_health_check=HEALTH)
def test_any_layout_becomes_any_other_bit_for_bit_with_the_least_bytes(
    memory_folder: Path, optimizer: str, dtype: str, data: st.DataObject
) -> None:
    metas = data.draw(models(optimizer=optimizer, dtype=dtype))
    old, new = data.draw(layouts_of(metas)), data.draw(layouts_of(metas))
    per_node = data.draw(st.sampled_from([1, 2, 4, 8]))
    old = StateLayout(old.mesh, old.placements, slots(old.world, per_node))
    candidates = slots(max(old.world, new.world), per_node)
    state = state_of(metas, seed=data.draw(st.integers(0, 9)))
    plan = plan_change(metas, holdings(old, metas), new, candidates=candidates)
    found, received, _ = carried_out(plan, metas, memories(old, metas, state), memory_folder)
    assert_whole(found, plan.target, metas, state)
    assert received.by_link == plan.num_bytes
    assert plan.moved == plan.bound
    assert received.store_bytes == 0


@given(data=st.data())
@settings(deadline=None, max_examples=25, suppress_health_check=HEALTH)
def test_what_lost_devices_held_comes_from_the_store(
    tmp_path_factory: pytest.TempPathFactory, memory_folder: Path, data: st.DataObject
) -> None:
    metas = data.draw(models())
    old, new = data.draw(layouts_of(metas)), data.draw(layouts_of(metas))
    per_node = data.draw(st.sampled_from([1, 2, 8]))
    old = StateLayout(old.mesh, old.placements, slots(old.world, per_node))
    lost = data.draw(st.sets(st.sampled_from(old.slots)))
    new = StateLayout(new.mesh, new.placements, slots(new.world, per_node))
    state = state_of(metas, seed=1)
    store = LocalStore(tmp_path_factory.mktemp("s"))
    manifest = save(store, old, metas, state)
    tiles = {name: [tile.box for tile in entry.tiles] for name, entry in manifest.tensors.items()}
    plan = plan_change(metas, holdings(old, metas, lost), new, tiles=tiles)
    survivors = {slot: memory for slot, memory in memories(old, metas, state).items() if slot not in lost}
    found, received, _ = carried_out(plan, metas, survivors, memory_folder, Checkpoint(store, manifest))
    assert_whole(found, plan.target, metas, state)
    assert received.by_link == plan.num_bytes
    assert plan.moved == plan.bound


@pytest.mark.nightly
@given(data=st.data())
@settings(deadline=None, max_examples=25, suppress_health_check=HEALTH)
def test_the_central_way_gives_the_same_and_moves_no_less(memory_folder: Path, data: st.DataObject) -> None:
    metas = data.draw(models())
    old, new = data.draw(layouts_of(metas)), data.draw(layouts_of(metas))
    state = state_of(metas, seed=2)
    plan = plan_change(metas, holdings(old, metas), new)
    gather, scatter = tenplex_central_plans(metas, holdings(old, metas), plan.target, old.slots[0])
    (whole,), _, _ = carried_out(gather, metas, memories(old, metas, state), memory_folder)
    center = {old.slots[0]: {name: (Part(Box.whole(tensor.shape), tensor),) for name, tensor in whole.items()}}
    found, received, _ = carried_out(scatter, metas, center, memory_folder)
    assert_whole(found, plan.target, metas, state)
    assert received.by_link == scatter.num_bytes
    assert scatter.moved.device == scatter.bound.device
    assert gather.moved.device + scatter.moved.device >= plan.moved.device


@pytest.mark.parametrize("per_node", [1, 2, 8])
def test_old_memories_become_new_ones_within_and_across_hosts(per_node: int, memory_folder: Path) -> None:
    old = laid(2, 2, slots(4, per_node))
    plan = plan_change(METAS, holdings(old, METAS), laid(3, 1, slots(3, per_node)))
    found, received, _ = carried_out(plan, METAS, memories(old, METAS, STATE), memory_folder)
    assert_whole(found, plan.target, METAS, STATE)
    assert received.by_link == plan.num_bytes
    assert plan.moved == plan.bound
    assert list(memory_folder.iterdir()) == []  # what ranks share has no name


def test_a_new_job_reads_the_store_once_for_two_hosts(folder_store: CheckpointStore, memory_folder: Path) -> None:
    manifest = save(folder_store, laid(2, 2, slots(4)), METAS, STATE)
    tiles = {name: [tile.box for tile in entry.tiles] for name, entry in manifest.tensors.items()}
    whole = {name: Placement() for name in METAS}
    ddp = StateLayout(Mesh((DATA,), (4,)), whole, slots(4, per_node=2))
    plan = plan_change(METAS, {}, ddp, tiles=tiles)
    found, received, _ = carried_out(plan, METAS, {}, memory_folder, Checkpoint(folder_store, manifest))
    assert_whole(found, plan.target, METAS, STATE)
    size = sum(tensor.nbytes for tensor in STATE.values())
    assert received.by_link == {Link.LOCAL: 0, Link.HOST: 2 * size, Link.NETWORK: size, Link.STORE: size}


def test_what_a_rank_holds_as_it_is_needed_stays_where_it_is(memory_folder: Path) -> None:
    old = StateLayout(Mesh((DATA,), (2,)), dict.fromkeys(METAS, REPLICATED), places(0, 1))
    held = memories(old, METAS, STATE)
    plan = plan_change(METAS, holdings(old, METAS), replace(old, mesh=Mesh((DATA,), (3,)), slots=places(0, 1, 2)))
    found, received, _ = carried_out(plan, METAS, held, memory_folder)
    assert_whole(found, plan.target, METAS, STATE)
    for rank, slot in enumerate(old.slots):
        assert all(found[rank][name] is part.tensor for name, (part,) in held[slot].items())
    size = sum(tensor.nbytes for tensor in STATE.values())
    assert received.by_link == {Link.LOCAL: 2 * size, Link.HOST: size, Link.NETWORK: 0, Link.STORE: 0}


def test_what_a_memory_does_not_give_after_all_comes_from_the_store(
    folder_store: CheckpointStore, memory_folder: Path
) -> None:
    old = laid(2, 1, places(0, 1))
    manifest, held = save(folder_store, old, METAS, STATE), memories(old, METAS, STATE)
    plan = plan_change(METAS, holdings(old, METAS), laid(3, 1, places(5, 6, 7)))
    gone = {old.slots[0]: held[old.slots[0]], old.slots[1]: {}}
    found, received, said = carried_out(
        plan, METAS, held, memory_folder, Checkpoint(folder_store, manifest), given=gone
    )
    assert_whole(found, plan.target, METAS, STATE)
    of_the_gone = sum(piece.num_bytes for piece in plan.pieces if piece.source == old.slots[1])
    assert received.by_link[Link.STORE] == of_the_gone > 0
    assert received.by_link[Link.HOST] == plan.num_bytes[Link.HOST] - of_the_gone
    texts = [text for texts in said for text in texts]
    assert 1 <= len(texts) <= 3  # once a rank
    assert all(" holds is read from the store instead: " in text and "does not hold" in text for text in texts)


def test_a_memory_that_nobody_gave_is_named(memory_folder: Path) -> None:
    old = laid(2, 1, slots(2))
    plan = plan_change(METAS, holdings(old, METAS), laid(3, 1, slots(3)))
    held = memories(old, METAS, STATE)
    for given_memories, why in (
        ({old.slots[0]: {}, old.slots[1]: held[old.slots[1]]}, r"failed: rank \d: .*does not hold"),
        ({old.slots[1]: held[old.slots[1]]}, r"failed: rank \d: Nobody gave the memory of .*, which holds "),
    ):
        with pytest.raises(InfrastructureError, match=why):
            carried_out(plan, METAS, held, memory_folder, given=given_memories)
    nothing_held = plan_change(METAS, {}, laid(1, 1, slots(1)))
    with pytest.raises(InfrastructureError, match="is in no memory, and there is no store"):
        carried_out(nothing_held, METAS, {}, memory_folder)
    assert list(memory_folder.iterdir()) == []


def test_no_more_than_one_tile_is_on_its_way_at_once(monkeypatch: pytest.MonkeyPatch, memory_folder: Path) -> None:
    monkeypatch.setattr(rounds, "PULL_BYTES", TILE_BYTES // rounds.PULLS)
    lock, now, most = threading.Lock(), 0, 0
    read = peers_module.PeerSource.read

    def watched(source: peers_module.PeerSource, name: str, box: Box, out: Tensor) -> None:
        nonlocal now, most
        with lock:
            now += out.nbytes
            most = max(most, now)
        read(source, name, box, out)
        with lock:
            now -= out.nbytes

    monkeypatch.setattr(peers_module.PeerSource, "read", watched)
    metas = {"w": TensorMeta("float32", (2048, 4096))}
    one, other = slots(2)
    plan = plan_change(
        metas, {one: {"w": (Box.whole((2048, 4096)),)}}, StateLayout(Mesh((), ()), {"w": REPLICATED}, (other,))
    )
    state = torch.arange(2048.0 * 4096).reshape(2048, 4096)
    held: Mapping[Slot, Memory] = {one: {"w": (Part(Box.whole((2048, 4096)), state),)}}
    (found,), received, _ = carried_out(plan, metas, held, memory_folder)
    assert received.by_link[Link.HOST] == 32 << 20
    assert 0 < most <= TILE_BYTES
    assert torch.equal(found["w"], state)


def test_what_several_ranks_of_a_host_take_from_another_passes_through_one_tile(memory_folder: Path) -> None:
    """Of 24 MiB, fetched once for two ranks: several rounds of the staging buffer."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rounds, "PULL_BYTES", TILE_BYTES // rounds.PULLS)
        metas = {"a": TensorMeta("float32", (2048, 2048)), "b": TensorMeta("float32", (1024, 2048))}
        state = state_of(metas, 4)
        old = StateLayout(Mesh((), ()), dict.fromkeys(metas, REPLICATED), (Slot("far", 0, "cpu"),))
        new = StateLayout(Mesh((TENSOR,), (2,)), {"a": REPLICATED, "b": Placement((Split(TENSOR, 1),))}, places(0, 1))
        plan = plan_change(metas, holdings(old, metas), new)
        found, received, _ = carried_out(plan, metas, memories(old, metas, state), memory_folder)
    assert_whole(found, new, metas, state)
    assert received.by_link == plan.num_bytes
    assert plan.num_bytes[Link.NETWORK] == 24 << 20


def test_a_part_is_found_by_its_box_and_named_where_it_is_not() -> None:
    memory = {"w": (Part(Box((0,), (4,)), torch.arange(4.0)), Part(Box((6,), (2,)), torch.arange(6.0, 8.0)))}
    assert find(memory, "w", Box((6,), (1,))).tolist() == [6.0]
    with pytest.raises(InfrastructureError, match=r"does not hold \[3:7\] of w"):
        find(memory, "w", Box((3,), (4,)))


def _new_rank(rank: int, pipe: Connection, plan: Plan, served: dict[Slot, tuple[str, int]], folder: Path) -> None:
    def exchange(data: bytes) -> Sequence[bytes]:
        pipe.send(data)
        answer: Sequence[bytes] = pipe.recv()
        return answer

    room = [shared.room(folder)] * plan.target.world
    group = LoadGroup(rank=rank, slots=plan.target.slots, exchange=exchange, room=room, folder=folder)
    old = OldMemories(addresses=served, secret=SECRET)
    loaded = carry_out(plan.pieces, METAS, partition(plan.target, METAS), group, old, None, print)
    found = {name: tensor.reshape(-1).view(torch.uint8).tolist() for name, tensor in loaded.tensors.items()}
    pipe.send((found, loaded.received.by_link))


def _hand_round(pipes: Sequence[Connection]) -> Iterator[tuple[dict[str, list[int]], Mapping[Link, int]]]:
    while True:
        messages = [pipe.recv() for pipe in pipes]
        if isinstance(messages[0], tuple):
            yield from messages
            return
        for pipe in pipes:
            pipe.send(messages)


def test_processes_take_over_the_state_of_this_one(memory_folder: Path) -> None:
    old = laid(1, 2, slots(2))
    plan = plan_change(METAS, holdings(old, METAS), laid(3, 1, places(5, 6, 7)))
    context = multiprocessing.get_context("fork")
    with ExitStack() as stack:
        held = memories(old, METAS, STATE)
        served = {slot: stack.enter_context(RangeServer(memory, SECRET)).address for slot, memory in held.items()}
        pipes, processes = [], []
        for rank in range(3):
            here, there = context.Pipe()
            processes.append(context.Process(target=_new_rank, args=(rank, there, plan, served, memory_folder)))
            processes[-1].start()
            pipes.append(here)
        results = list(_hand_round(pipes))
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
