"""What is free, by node: of all of it, what one job's processes can go on with."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from elastic_core.domain import Allocation, Layout, Slot, Target
from elastic_core.policy.plans.free_slots import FreeSlots
from elastic_core.policy.plans.grants import in_place

KINDS = {"a": "cpu", "b": "cpu", "c": "cpu", "d": "cpu", "e": "gpu", "f": "gpu"}  # of the nodes
EACH = 4


@st.composite
def pools(draw: st.DrawFn) -> tuple[FreeSlots, Allocation, Target]:
    """Some slots of each node are free, others held by the job, on one node or more, and what it is to hold next."""
    states = {node: draw(st.lists(st.sampled_from("fhx"), min_size=EACH, max_size=EACH)) for node in KINDS}
    by_node = {node: (KINDS[node], free) for node, each in states.items() if (free := places(each, "f"))}
    held = [Slot(node, index, KINDS[node]) for node, each in states.items() for index in places(each, "h")]
    slots = tuple(held[: draw(st.integers(1, 6))]) or (Slot("z", 0, "cpu"),)
    count, kind = draw(st.integers(1, 12)), draw(st.sampled_from(["cpu", "gpu"]))
    nodes = draw(st.none() | st.dictionaries(st.sampled_from(sorted(KINDS)), st.integers(1, EACH), max_size=3))
    target = Target(counts={kind: count}, global_batch=64, layout=Layout(data=count), reason="", nodes=nodes)
    allocation = Allocation(slots=slots, global_batch=64, layout=Layout(data=len(slots)))
    return FreeSlots(by_node), allocation, replace(target, migrate=draw(st.booleans()))


def places(states: list[str], wanted: str) -> list[int]:
    return [index for index, state in enumerate(states) if state == wanted]


@given(pools())
def test_by_what_is_near_a_job_goes_on_as_by_all_that_is_free(pool: tuple[FreeSlots, Allocation, Target]) -> None:
    free, held, target = pool
    near = free.near(target, held)
    assert in_place(target, held, near) == in_place(target, held, free.on(free.by_node))
    assert set(near) <= set(free.on(free.by_node))


def test_of_many_nodes_few_are_near() -> None:
    """Its own, those that it is to be on, and else as few as can be."""
    free = FreeSlots({f"n{number:03}": ("cpu", range(8)) for number in range(200)})
    held = Allocation(slots=(Slot("n005", 8, "cpu"),), global_batch=64, layout=Layout(data=1))
    target = Target(counts={"cpu": 20}, global_batch=64, layout=Layout(data=20), reason="", nodes={"n100": 4})
    assert {slot.node for slot in free.near(target, held)} == {"n000", "n001", "n005", "n100"}


def test_slots_of_each_type_are_counted() -> None:
    free = FreeSlots({"a": ("cpu", [0, 2]), "b": ("cpu", [1]), "e": ("gpu", [3])})
    assert free.counts() == {"cpu": 3, "gpu": 1}
    assert free.on(["e", "a", "unknown"]) == [Slot("a", 0, "cpu"), Slot("a", 2, "cpu"), Slot("e", 3, "gpu")]
    assert len(free.on(free.by_node)) == 4
    pool = free.pool()
    assert all(slot in pool for slot in free.on(free.by_node))
    assert (pool.counts, pool.by_node()) == ({"cpu": 3, "gpu": 1}, {"a": 2, "b": 1, "e": 1})
