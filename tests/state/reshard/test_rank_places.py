"""Ranks sit where the least has to move, and constraints come first."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.domain import Layout, Slot
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
from elastic_core.state.layout.overlap import needs_of
from elastic_core.state.reshard.assignment import best_map, moved_by
from elastic_core.state.reshard.rank_places import rank_places

LAYOUTS = [
    layout
    for sizes in itertools.product((1, 2, 3, 4), (1, 2, 4), (1, 2, 4))
    for sharded in (False, True)
    if (layout := Layout(data=sizes[0], tensor=sizes[1], pipeline=sizes[2], sharded=sharded)).world_size <= 4
    and (not sharded or layout.data > 1)
]
DIMS = {"embedding": (96, 24), "up": (48, 24), "down": (24, 48), "bias": (48,), "norm": (24,), "head": (96, 24)}
ROWS, COLUMNS = Split(TENSOR, 0), Split(TENSOR, 1)
BLOCKS = 4


def slots(*names: str) -> list[Slot]:
    """Such as "a0": the first slot of node a."""
    return [Slot(name[0], int(name[1:]), "cpu") for name in names]


def a_transformer() -> dict[str, TensorMeta]:
    """With the two moments of its optimizer."""
    of_block = ("up", "down", "bias", "norm")
    names = ["embedding", "head", *(f"{block}.{kind}" for block in range(BLOCKS) for kind in of_block)]
    return {
        f"{part}/{name}": TensorMeta("float32", DIMS[name.rpartition(".")[2]])
        for name in names
        for part in ("model", "first", "second")
    }


def laid_out(layout: Layout, places: Sequence[Slot]) -> StateLayout:
    """Its tensors as the platform's layouts place them: a row-wise and a column-wise half, stages of equal blocks."""
    shards = (Split(DATA, 0),) if layout.sharded else ()
    splits = {"up": (ROWS, *shards), "bias": (ROWS, *shards), "down": (COLUMNS, *shards)}
    placements = {"steps": REPLICATED}
    for name in a_transformer():
        kind = name.rpartition(".")[2].rpartition("/")[2]
        stage = {"embedding": 0, "head": layout.pipeline - 1}.get(kind)
        if stage is None:
            stage = int(name.rpartition("/")[2][0]) * layout.pipeline // BLOCKS
        placements[name] = Placement(splits.get(kind, shards), {PIPELINE: (stage,)})
    return StateLayout(Mesh.of(layout), placements, tuple(places))


def moves(before: Layout, held: Sequence[Slot], after: Layout, devices: Sequence[Slot]):
    metas = a_transformer()
    holding = [{name: (box,) for name, box in boxes.items()} for boxes in partition(laid_out(before, held), metas)]
    holding += [{}] * (len(devices) - len(held))
    ranks = [Slot("any", rank, "cpu") for rank in range(after.world_size)]
    return needs_of(metas, holding, partition(laid_out(after, ranks), metas))


@pytest.mark.parametrize("before", LAYOUTS, ids=str)
def test_no_other_map_moves_less_of_a_transformer_on_one_node(before: Layout) -> None:
    pool = slots("a0", "a1", "a2", "a3")
    held = pool[: before.world_size]
    for after in LAYOUTS:
        chosen = pool[: after.world_size]
        places = rank_places(before, held, after, chosen)
        assert places is not None
        devices = [*held, *sorted(set(chosen) - set(held))]
        needs, hosts = moves(before, held, after, devices), [slot.node for slot in devices]
        best = best_map(needs, hosts, range(len(devices)), after.world_size)
        assert moved_by(needs, hosts, [devices.index(slot) for slot in places]) == best.moved, after


@given(
    st.permutations(slots("a0", "a1", "b0", "b1")),
    st.sampled_from(LAYOUTS),
    st.sampled_from(LAYOUTS),
    st.randoms(use_true_random=False),
)
def test_nodes_keep_their_counts_and_follow_each_other_and_rank_0_lives_on(pool, before, after, random) -> None:
    held = pool[: before.world_size]
    chosen = random.sample(pool, after.world_size)
    places = rank_places(before, held, after, chosen)
    if {slot.node for slot in chosen}.isdisjoint(slot.node for slot in held):
        assert places is None  # nobody is left to be rank 0
        return
    assert places is not None
    assert Counter(slot.node for slot in places) == Counter(slot.node for slot in chosen)
    assert len(set(places)) == after.world_size
    assert set(places) <= {*held, *chosen}
    assert len([*itertools.groupby(places, key=lambda slot: slot.node)]) == len({slot.node for slot in places})
    assert places[0] in held


def test_the_halves_of_a_tensor_parallel_job_come_together_where_the_first_of_each_is() -> None:
    held = slots("a0", "a1", "a2", "a3")
    assert rank_places(Layout(tensor=4), held, Layout(tensor=2), held[:2]) == tuple(slots("a0", "a2"))


def test_what_replicas_give_up_is_the_last_and_everyone_else_stays_who_he_was() -> None:
    held = slots("a1", "a0", "a3")
    assert rank_places(Layout(data=3), held, Layout(data=2), slots("a0", "a1")) == tuple(slots("a1", "a0"))
    assert rank_places(Layout(data=3), held, Layout(data=4), slots("a0", "a1", "a2", "a3")) == tuple(
        slots("a1", "a0", "a3", "a2")
    )


def test_where_the_node_of_rank_0_is_given_up_a_rank_of_another_takes_its_place() -> None:
    held = slots("b0", "a0", "a1")
    assert rank_places(Layout(data=3), held, Layout(data=2), slots("a0", "a1")) == tuple(slots("a1", "a0"))


def test_more_nodes_than_can_be_tried_in_every_order_keep_theirs() -> None:
    held = slots(*(f"{node}0" for node in "gfedcba"))
    assert rank_places(Layout(data=7), held, Layout(data=6), held[:6]) == tuple(held[:6])
