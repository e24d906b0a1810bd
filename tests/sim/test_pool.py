"""The simulated pool: slots are lent once, come back, and are taken where the product's packing rule says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from elastic_core.domain import Slot
from elastic_core.sim.pool import SlotPool
from tests.policy.builders import nodes

POOL = (*nodes(4, 4, 2, kind="a"), *nodes(3, kind="b"))
moves = st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 6), st.integers(0, 9)), max_size=30)


@given(moves=moves)
def test_no_slot_is_lent_twice_and_none_is_lost(moves: list[tuple[str, int, int]]) -> None:
    """Take while there is room, give back an old loan now and then."""
    pool = SlotPool(POOL)
    everything = {slot for node in POOL for slot in node.slots()}
    loans: list[tuple[Slot, ...]] = []
    for kind, count, back in moves:
        out = [slot for loan in loans for slot in loan]
        if sum(slot.type == kind for slot in everything - set(out)) >= count:
            by_node, slots = pool.take(kind, count, {})
            assert len(slots) == count == sum(by_node.values())
            assert {slot.type for slot in slots} == {kind}
            assert {name: sum(slot.node == name for slot in slots) for name in by_node} == by_node
            assert not set(slots) & set(out)
            assert set(slots) <= everything
            loans.append(slots)
        if back < len(loans):
            pool.give_back(loans.pop(back))
    for loan in loans:
        pool.give_back(loan)
    assert set(pool.take("a", 10, {})[1]) | set(pool.take("b", 3, {})[1]) == everything


def test_a_job_that_grows_keeps_its_node_and_spills_over_as_little_as_can_be() -> None:
    pool = SlotPool(nodes(4, 4, kind="a"))
    before, slots = pool.take("a", 2, {})
    pool.give_back(slots)
    assert pool.take("a", 3, before)[0] == {"a-0": 3}
    assert pool.take("a", 5, {})[0] == {"a-1": 4, "a-0": 1}


def test_the_fewest_nodes_and_of_those_the_tightest() -> None:
    pool = SlotPool(nodes(4, 2, 3, kind="a"))
    assert pool.take("a", 2, {})[0] == {"a-1": 2}
    assert pool.take("a", 3, {})[0] == {"a-2": 3}


def test_a_wish_for_nodes_is_followed_where_all_of_it_is_free() -> None:
    pool = SlotPool(nodes(4, 4, kind="a"))
    assert pool.take("a", 4, {}, {"a-0": 2, "a-1": 2})[0] == {"a-0": 2, "a-1": 2}
    assert pool.take("a", 2, {}, {"a-0": 1, "b-7": 1})[0] == {"a-0": 2}, "a node that is not there is no wish to follow"
