"""Plans of a change of layout: the least bytes, by device, by host and from the store."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.domain import Slot
from elastic_core.errors import UserError
from elastic_core.state.layout.boxes import Box, tiling_fault
from elastic_core.state.layout.layout import (
    DATA,
    PIPELINE,
    REPLICATED,
    TENSOR,
    Mesh,
    Placement,
    Split,
    StateLayout,
    TensorMeta,
    partition,
)
from elastic_core.state.layout.overlap import HeldBoxes, Need, needs_of
from elastic_core.state.reshard.assignment import Moved, best_map, moved_by
from elastic_core.state.reshard.change_plan import Plan, holdings, plan_change
from elastic_core.state.reshard.pieces import Link, merge_boxes
from tests.state.random_layouts import layouts_of, models, slots

METAS = {name: TensorMeta("float32", (24, 24)) for name in ("layers.0.w", "layers.1.w")}
S = 2 * 24 * 24 * 4


def ddp(places: Sequence[Slot]) -> StateLayout:
    return StateLayout(Mesh((DATA,), (len(places),)), dict.fromkeys(METAS, REPLICATED), tuple(places))


def fsdp(places: Sequence[Slot]) -> StateLayout:
    return StateLayout(Mesh((DATA,), (len(places),)), dict.fromkeys(METAS, Placement((Split(DATA, 0),))), tuple(places))


def tensor_parallel(places: Sequence[Slot]) -> StateLayout:
    cuts = Placement((Split(TENSOR, 0),))
    return StateLayout(Mesh((TENSOR,), (len(places),)), dict.fromkeys(METAS, cuts), tuple(places))


def tensor_by_pipeline(places: Sequence[Slot]) -> StateLayout:
    cuts = (Split(TENSOR, 0),)
    stages = {name: Placement(cuts, {PIPELINE: (i,)}) for i, name in enumerate(METAS)}
    return StateLayout(Mesh((PIPELINE, TENSOR), (2, 2)), stages, tuple(places))


def change(source: StateLayout, target: StateLayout, lost: Sequence[Slot] = (), **options: object) -> Plan:
    return plan_change(METAS, holdings(source, METAS, lost), target, **options)  # type: ignore[arg-type]


def in_copies(moved: Moved) -> tuple[Fraction, Fraction, Fraction]:
    """(device, host, store) in full copies of the state."""
    return Fraction(moved.device, S), Fraction(moved.host, S), Fraction(moved.store, S)


HERE = slots(4)
ELSEWHERE = tuple(Slot("other", i, "cpu") for i in range(2))


class TestWorkedCases:
    """Those of the issue, exactly. S is one full copy."""

    def test_fewer_replicas_move_nothing(self) -> None:
        plan = change(ddp(HERE), ddp(HERE[:2]))
        assert in_copies(plan.bound) == in_copies(plan.moved) == (0, 0, 0)
        assert plan.released == HERE[2:]

    def test_more_replicas_on_the_same_host_copy_within_it(self) -> None:
        plan = change(ddp(HERE[:2]), ddp(HERE))
        assert in_copies(plan.bound) == in_copies(plan.moved) == (2, 0, 0)

    def test_more_replicas_on_a_new_host_fetch_one_copy(self) -> None:
        plan = change(ddp(HERE[:2]), ddp((*HERE[:2], *ELSEWHERE)))
        assert in_copies(plan.bound) == in_copies(plan.moved) == (2, 1, 0)
        assert plan.num_bytes == {Link.LOCAL: 2 * S, Link.HOST: S, Link.NETWORK: S, Link.STORE: 0}

    def test_tensor_by_pipeline_to_tensor(self) -> None:
        identity = change(tensor_by_pipeline(HERE), tensor_parallel(HERE), keep_map=True)
        assert in_copies(identity.bound) == in_copies(identity.moved) == (Fraction(3, 4), 0, 0)
        best = change(tensor_by_pipeline(HERE), tensor_parallel(HERE))
        assert in_copies(best.bound) == in_copies(best.moved) == (Fraction(1, 2), 0, 0)
        assert best.proven

    def test_sharded_data_from_four_to_three(self) -> None:
        source, options = fsdp(HERE), {"candidates": HERE}
        for released, copies in ((0, Fraction(1, 2)), (1, Fraction(1, 3)), (2, Fraction(1, 3)), (3, Fraction(1, 2))):
            kept = [slot for i, slot in enumerate(HERE) if i != released]
            assert in_copies(change(source, fsdp(kept)).bound) == (copies, 0, 0)
        plan = change(source, fsdp(HERE[:3]), **options)
        assert in_copies(plan.bound) == in_copies(plan.moved) == (Fraction(1, 3), 0, 0)
        assert plan.released in ((HERE[1],), (HERE[2],))

    def test_sharded_data_with_a_device_lost(self) -> None:
        plan = change(fsdp(HERE), fsdp(HERE[:3]), lost=[HERE[3]])
        assert in_copies(plan.bound) == in_copies(plan.moved) == (Fraction(1, 2), Fraction(1, 4), Fraction(1, 4))


Change = tuple[dict[str, TensorMeta], dict[Slot, HeldBoxes], StateLayout, list[Slot]]


@st.composite
def changes(
    draw: st.DrawFn, max_world: int = 8
) -> tuple[dict[str, TensorMeta], dict[Slot, object], StateLayout, list[Slot]]:
    """(tensors, what survivors hold, new layout, candidates) on one to four hosts."""
    metas = draw(models(optimizer="sgd"))
    old, new = draw(layouts_of(metas, max_world)), draw(layouts_of(metas, max_world))
    per_node = draw(st.sampled_from([1, 2, 3, 8]))
    old = StateLayout(old.mesh, old.placements, slots(old.world, per_node))
    lost = draw(st.sets(st.sampled_from(old.slots), max_size=2))
    first = draw(st.integers(0, 3))
    spare = draw(st.integers(0, 2)) if new.world < max_world else 0
    candidates = [s for s in slots(first + new.world + spare + 2, per_node)[first:] if s not in lost]
    return metas, holdings(old, metas, lost), new, candidates[: new.world + spare]


@given(changes())
@settings(deadline=None, max_examples=120)
def test_the_pieces_move_the_lower_bound_and_make_up_every_part(case: Change) -> None:
    metas, held, new, candidates = case
    plan = plan_change(metas, held, new, candidates=candidates)
    assert plan.moved == plan.bound
    for rank, boxes in enumerate(partition(plan.target, metas)):
        for name, box in boxes.items():
            parts = [p.box for p in plan.pieces if p.tensor == name and rank in p.targets]
            assert all(part.intersect(box) == part for part in parts)
            moved = [Box(tuple(a - o for a, o in zip(p.start, box.start, strict=True)), p.shape) for p in parts]
            assert tiling_fault(box.shape, moved) is None
    for piece in plan.pieces:
        nodes = {plan.target.slots[rank].node for rank in (piece.fetcher, *piece.targets)}
        assert len(nodes) == 1
        if piece.source is not None and not piece.relay:
            assert any(piece.box.intersect(box) == piece.box for box in held[piece.source][piece.tensor])
        if piece.link is Link.HOST:
            assert piece.source is not None
            assert {piece.source.node} == nodes


def brute_force(needs: Sequence[Need], hosts: Sequence[str], num: int, world: int) -> Moved:
    return min(moved_by(needs, hosts, devices) for devices in itertools.permutations(range(num), world))


@given(changes(max_world=6))
@settings(deadline=None, max_examples=40)
def test_no_map_of_up_to_six_ranks_is_better(case: Change) -> None:
    metas, held, new, candidates = case
    candidates = candidates[:6] if new.world <= 5 else candidates[: new.world]
    devices = [*candidates, *sorted(set(held) - set(candidates))]
    needs = needs_of(metas, [held.get(slot, {}) for slot in devices], partition(new, metas))
    hosts = [slot.node for slot in devices]
    found = best_map(needs, hosts, range(len(candidates)), new.world)
    assert found.proven
    assert found.moved == moved_by(needs, hosts, found.devices) == brute_force(needs, hosts, len(candidates), new.world)


needs_lists = st.lists(
    st.builds(Need, st.integers(0, 2**6 - 1), st.integers(1, 2**5 - 1), st.integers(1, 50)), min_size=1, max_size=8
)


@given(needs_lists, st.lists(st.sampled_from("abc"), min_size=6, max_size=6), st.integers(5, 6))
@settings(deadline=None, max_examples=80)
def test_no_map_is_better_whoever_holds_and_needs_what(needs: list[Need], hosts: list[str], num: int) -> None:
    found = best_map(needs, hosts, range(num), 5)
    assert found.moved == brute_force(needs, hosts, num, 5)
    stopped = best_map(needs, hosts, range(num), 5, max_nodes=1)
    assert stopped.moved >= found.moved
    assert stopped.moved == found.moved or not stopped.proven


def test_without_a_reason_to_move_every_rank_stays() -> None:
    for places in (HERE, (*HERE[:2], *ELSEWHERE), slots(4, per_node=1)):
        for layout in (ddp(places), fsdp(places)):
            plan = change(layout, layout)
            assert plan.target.slots == tuple(places)
            assert plan.moved == Moved(0, 0, 0)


def test_replicas_share_the_sending_and_ranks_the_fetching() -> None:
    new_host = tuple(Slot("new", i, "cpu") for i in range(2))
    metas = {f"layers.{i}.w": TensorMeta("float32", (64,)) for i in range(8)}
    old = StateLayout(Mesh((DATA,), (2,)), dict.fromkeys(metas, REPLICATED), slots(2, per_node=1))
    new = StateLayout(Mesh((DATA,), (2,)), dict.fromkeys(metas, REPLICATED), new_host)
    plan = plan_change(metas, holdings(old, metas), new)
    for key in ("source", "fetcher"):
        counts = [
            sum(getattr(p, key) == value for p in plan.pieces) for value in {getattr(p, key) for p in plan.pieces}
        ]
        assert counts == [4, 4]


def test_what_two_hosts_lack_of_the_store_is_read_once_and_passed_on() -> None:
    plan = plan_change(METAS, {}, ddp(slots(4, per_node=2)))
    assert plan.bound == plan.moved == Moved(2 * S, 4 * S, S)
    relays = [piece for piece in plan.pieces if piece.relay]
    assert sum(piece.num_bytes for piece in relays) == S
    for relay in relays:
        source = plan.target.slots.index(relay.source)  # type: ignore[arg-type]
        assert any(p.link is Link.STORE and source in p.targets and p.box == relay.box for p in plan.pieces)


def test_a_tile_of_the_store_is_read_by_one_rank_of_a_host() -> None:
    columns = Placement((Split(TENSOR, 1),))
    target = StateLayout(Mesh((TENSOR,), (4,)), dict.fromkeys(METAS, columns), HERE)
    tiles = {name: [Box((row, 0), (8, 24)) for row in (0, 8, 16)] for name in METAS}
    plan = plan_change(METAS, {}, target, tiles=tiles)
    readers = {
        (name, tile): {p.fetcher for p in plan.pieces if p.tensor == name and p.box.intersect(tile)}
        for name, boxes in tiles.items()
        for tile in boxes
    }
    assert all(len(ranks) == 1 for ranks in readers.values())
    assert len(set().union(*readers.values())) == 4
    assert plan.moved == plan.bound


def test_too_few_devices_are_refused() -> None:
    for keep_map in (True, False):
        with pytest.raises(UserError, match="4 ranks do not fit 2 devices"):
            change(ddp(HERE), ddp(HERE), candidates=HERE[:2], keep_map=keep_map)


def test_neighbouring_boxes_are_joined() -> None:
    quarters = [Box((r, c), (2, 3)) for r in (0, 2) for c in (0, 3)]
    assert merge_boxes(quarters) == [Box((0, 0), (4, 6))]
    assert sorted(b.volume for b in merge_boxes(quarters[:3])) == [6, 12]
    assert merge_boxes([Box((), ())]) == [Box((), ())]
