"""Who moves for whom: a job that fits one node gets one where that gains more than the restarts lose."""

from __future__ import annotations

from collections import Counter
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elastic_core.policy.plans.consolidation import Stake, consolidate
from tests.policy.strategies import BUSY

TWO = {"a": 4, "b": 4}


def stays(cost: float = 1.0, gain: float = 0.0, **held: int) -> Stake:
    return Stake(count=sum(held.values()), gain=gain, cost=cost, held=held, near=frozenset(held))


def grows(count: int, cost: float = 1.0, gain: float = 0.0, **held: int) -> Stake:
    return Stake(count=count, gain=gain, cost=cost, held=held, near=frozenset(held))


def starts(count: int, gain: float = 0.0, *near: str) -> Stake:
    return Stake(count=count, gain=gain, near=frozenset(near))


@pytest.mark.parametrize(("gain", "placed"), [(2.5, {"b": 4}), (1.5, {"a": 3, "b": 1}), (0.0, {"a": 3, "b": 1})])
def test_small_jobs_make_room_where_their_restarts_lose_less_than_a_whole_node_gains(gain: float, placed) -> None:
    crowd = {"one": stays(a=1), "two": stays(b=1), "three": stays(b=1), "four": stays(b=1), "new": starts(4, gain)}
    free = {**crowd, "one": stays(cost=9.0, a=1), "three": stays(cost=0.5, b=1), "four": stays(cost=0.5, b=1)}
    found = consolidate(free, {"a": 4, "b": 4})
    assert found["new"] == placed
    assert found["one"] == {"a": 1}
    assert all(found[name] == ({"a": 1} if gain > 2.0 else {"b": 1}) for name in ("two", "three", "four"))


@pytest.mark.parametrize(("gain", "placed"), [(1.5, {"b": 2}), (0.5, {"a": 1, "b": 1})])
def test_a_job_over_several_nodes_is_brought_onto_one_where_that_pays_for_its_restart(gain: float, placed) -> None:
    found = consolidate({"apart": stays(gain=gain, a=1, b=1), "big": stays(a=3)}, TWO)
    assert found == {"apart": placed, "big": {"a": 3}}


def test_it_stays_where_no_node_has_room_for_all_of_it() -> None:
    full = {"apart": stays(gain=inf, a=1, b=1), "one": stays(a=3), "two": stays(b=3)}
    assert consolidate(full, TWO) == {name: dict(stake.held) for name, stake in full.items()}


def test_nobody_moves_for_a_job_of_its_own_size() -> None:
    found = consolidate({"one": stays(cost=0.0, a=2), "two": stays(cost=0.0, b=2), "new": starts(4, inf)}, TWO)
    assert found["new"] == {"b": 4} or found["new"] == {"a": 4}
    equal = consolidate({"one": stays(cost=0.0, a=4), "two": stays(cost=0.0, b=2), "new": starts(2, inf)}, TWO)
    assert equal == {"one": {"a": 4}, "two": {"b": 2}, "new": {"b": 2}}


def test_of_equal_nodes_the_one_is_taken_where_the_job_has_slots_already() -> None:
    assert consolidate({"grows": starts(4, 1.0, "b")}, TWO) == {"grows": {"b": 4}}


@pytest.mark.parametrize(("gain", "placed"), [(1.5, {"b": 4}), (0.5, {"a": 2, "b": 2})])
def test_a_job_that_grows_leaves_its_node_only_where_another_is_worth_the_restart(gain: float, placed) -> None:
    found = consolidate({"big": stays(a=2), "grows": grows(4, gain=gain, a=2)}, TWO)
    assert found == {"big": {"a": 2}, "grows": placed}


def test_a_job_that_grows_takes_what_is_free_beside_its_own_slots_first() -> None:
    held = {"one": stays(a=1), "two": stays(b=1), "grows": grows(6, a=2)}
    assert consolidate(held, {"a": 4, "b": 4, "c": 4})["grows"] in ({"a": 3, "b": 3}, {"a": 3, "c": 3})


def test_what_a_job_that_grows_goes_on_with_goes_to_nobody_who_starts() -> None:
    found = consolidate({"new": starts(4, 0.5), "grows": grows(3, cost=9.0, a=2)}, {"a": 4, "b": 3})
    assert found == {"grows": {"a": 3}, "new": {"a": 1, "b": 3}} or found == {
        "grows": {"a": 2, "b": 1},
        "new": {"a": 2, "b": 2},
    }


def test_a_small_job_that_grows_makes_room_too_where_its_restart_loses_less() -> None:
    crowd = {"grows": grows(3, cost=0.5, a=2), "stays": stays(cost=9.0, b=2), "new": starts(4, 2.0)}
    found = consolidate(crowd, {"a": 4, "b": 4, "c": 1})
    assert found == {"new": {"a": 4}, "stays": {"b": 2}, "grows": {"b": 2, "c": 1}}


def test_who_needs_several_nodes_leaves_its_own_for_whole_ones_where_that_costs_nothing() -> None:
    sizes = {"a": 4, "b": 4, "c": 4}
    assert consolidate({"big": stays(a=2), "grows": grows(8, cost=0.0, a=2)}, sizes)["grows"] == {"b": 4, "c": 4}
    assert consolidate({"big": stays(a=2), "grows": grows(8, a=2)}, sizes)["grows"] in (
        {"a": 2, "b": 4, "c": 2},
        {"a": 2, "b": 2, "c": 4},
    )


def test_the_tightest_fit_leaves_whole_nodes_whole() -> None:
    assert consolidate({"one": stays(a=3), "new": starts(1)}, TWO)["new"] == {"a": 1}


def test_who_needs_several_nodes_takes_whole_free_ones_or_what_is_left() -> None:
    free = {"a": 4, "b": 4, "c": 4}
    assert consolidate({"new": starts(8)}, free)["new"].keys() <= free.keys()
    assert consolidate({"one": stays(b=1), "new": starts(8)}, free)["new"] == {"a": 4, "c": 4}
    left = consolidate({"one": stays(b=1), "two": stays(c=1), "new": starts(8)}, free)
    assert left["new"]["a"] == 4
    assert sum(left["new"].values()) == 8
    assert left["one"] == {"b": 1}


def test_a_job_on_a_node_that_is_not_there_is_left_alone() -> None:
    assert consolidate({"old": stays(gone=2), "new": starts(4)}, {"a": 4}) == {"old": {"gone": 2}, "new": {"a": 4}}


def test_who_finds_too_few_slots_is_not_in_the_answer() -> None:
    assert consolidate({"one": stays(a=3), "new": starts(2)}, {"a": 4}) == {"one": {"a": 3}}


@st.composite
def pools(draw: st.DrawFn) -> tuple[dict[str, Stake], dict[str, int]]:
    """Jobs that fit the pool together, some of which hold slots of it."""
    sizes = {f"n{number}": draw(st.sampled_from([1, 2, 4, 8])) for number in range(draw(st.integers(1, 5)))}
    slots = draw(st.permutations([node for node, size in sizes.items() for _ in range(size)]))
    stakes, worth = {}, st.floats(0.0, 10.0)
    while slots and len(stakes) < 8:
        count = draw(st.integers(1, len(slots)))
        own, slots = slots[:count], slots[count:]
        held = Counter(own[: draw(st.sampled_from([0, count, draw(st.integers(0, count))]))])
        cost = draw(worth) if held else 0.0
        stakes[f"j{len(stakes)}"] = Stake(
            count=count, gain=draw(worth), cost=cost, held=dict(held), near=frozenset(held)
        )
    return stakes, sizes


def left(found: dict[str, dict[str, int]], stakes: dict[str, Stake]) -> list[str]:
    """Jobs that do not stay, or grow where nothing of them is."""
    return [
        job for job, of in stakes.items()
        if of.held and (found[job].keys().isdisjoint(of.held) if of.grows else found[job] != of.held)
    ]  # fmt: skip


@BUSY
@given(pools())
def test_every_job_gets_its_count_within_what_nodes_have(pool: tuple[dict[str, Stake], dict[str, int]]) -> None:
    stakes, sizes = pool
    found = consolidate(stakes, sizes)
    assert {job: sum(nodes.values()) for job, nodes in found.items()} == {job: of.count for job, of in stakes.items()}
    used = sum((Counter(nodes) for nodes in found.values()), Counter())
    assert all(number <= sizes[node] for node, number in used.items())
    assert all(number > 0 for nodes in found.values() for number in nodes.values())


@BUSY
@given(pools())
def test_moves_cost_less_than_the_jobs_on_one_node_gain(pool: tuple[dict[str, Stake], dict[str, int]]) -> None:
    stakes, sizes = pool
    found = consolidate(stakes, sizes)
    moved = left(found, stakes)
    on_one = [job for job in found if len(found[job]) == 1 and (job in moved or not stakes[job].held)]
    assert sum(stakes[job].cost for job in moved) <= sum(stakes[job].gain for job in on_one) + 1e-9


@BUSY
@given(pools())
def test_where_one_node_is_worth_nothing_nobody_moves(pool: tuple[dict[str, Stake], dict[str, int]]) -> None:
    stakes, sizes = pool
    idle = {job: Stake(count=of.count, cost=of.cost + 1.0, held=of.held) for job, of in stakes.items()}
    found = consolidate(idle, sizes)
    assert left(found, idle) == []
