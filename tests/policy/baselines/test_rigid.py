"""Gangs in an order: the requested count or nothing, gaps filled, who goes on stays where it is."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.domain import Snapshot
from elastic_core.policy.base.queue import held_count, held_type, queue_of
from elastic_core.policy.baselines.fixed import request_of
from elastic_core.policy.baselines.rigid import on_emptiest_nodes, serve
from tests.policy.builders import holding, job, limits, nodes, snapshot
from tests.policy.strategies import BUSY, snapshots


def asks(count: int) -> object:
    return limits((1, 2, 4, 8), (16, 64), requested_slots=count)


@pytest.mark.nightly
@settings(BUSY, max_examples=80)
@given(picture=snapshots(), data=st.data())
def test_the_requested_count_or_nothing_and_nothing_only_where_it_does_not_fit(
    picture: Snapshot, data: st.DataObject
) -> None:
    ordered = data.draw(st.permutations(queue_of(picture)))
    targets = serve(ordered, picture, lambda view: view.name)
    room = picture.capacity()
    for view in ordered:
        kinds, count = request_of(view, picture.capacity())
        target = targets[view.job_id]
        if target.num_slots:
            assert target.num_slots == count
            for kind in target.counts:
                room[kind] -= count
        else:
            assert all(room[kind] < count for kind in kinds)


@settings(BUSY, max_examples=80)
@given(picture=snapshots(), data=st.data())
def test_wishes_are_disjoint_and_beside_those_that_stay(picture: Snapshot, data: st.DataObject) -> None:
    ordered = data.draw(st.permutations(queue_of(picture)))
    targets = serve(ordered, picture, lambda view: view.name)
    left = {node.name: node.num_slots for node in picture.nodes if node.present}
    for view in ordered:
        target = targets[view.job_id]
        if target.nodes is not None:
            assert sum(target.nodes.values()) == target.num_slots
            for name, number in target.nodes.items():
                left[name] -= number
        elif target.num_slots:
            assert (held_type(view), held_count(view)) == (next(iter(target.counts)), target.num_slots)
            for slot in view.allocation.slots if view.allocation else ():
                left[slot.node] -= 1
    assert min(left.values(), default=0) >= 0


def test_a_small_job_fills_the_gap_in_front_of_a_large_one_and_gives_way() -> None:
    pool = nodes(4, 4)
    first, large, small = job("a", lim=asks(4)), job("b", 1, lim=asks(8)), job("c", 2, lim=asks(2))
    plan = serve([first, large, small], snapshot(pool, first, large, small), lambda view: "its turn")
    assert [plan[name].num_slots for name in "abc"] == [4, 0, 2]
    assert plan["b"].reason == "waits: it asks for 8 slots of any type, and those before it leave 4 cpu; its turn"
    running = holding(small, *pool[1].slots()[:2])
    later = serve([large, running], snapshot(pool, large, running), lambda view: "its turn")
    assert [later[name].num_slots for name in "bc"] == [8, 0]


def test_the_emptiest_node_first_and_as_few_nodes_as_that_gives() -> None:
    view = job("a")
    free = {"cpu": {"x": 1, "y": 3, "z": 4}}
    assert on_emptiest_nodes([(view, "cpu", 5)], free) == {"a": {"z": 4, "y": 1}}
    assert free == {"cpu": {"x": 1, "y": 2, "z": 0}}
