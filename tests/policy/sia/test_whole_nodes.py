"""No fragments, and as few moves as that allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.domain import JobView, Slot
from elastic_core.policy.sia.whole_nodes import on_whole_nodes
from tests.policy.builders import holding, job, nodes, snapshot
from tests.policy.strategies import BUSY


def on(name: str, **held: int) -> JobView:
    """A job that holds slots of nodes cpu-0, cpu-1, ... given as n0=2, n1=1; slot indices do not matter here."""
    slots = [Slot(f"cpu-{node[1:]}", i, "cpu") for node, count in held.items() for i in range(count)]
    return holding(job(name), *slots) if slots else job(name)


def place(grants: Mapping[str, int], *views: JobView, pool: tuple[int, ...] = (4, 4)) -> dict[str, dict[str, int]]:
    picture = snapshot(nodes(*pool), *views)
    found = on_whole_nodes({name: ("cpu", count) for name, count in grants.items()}, picture.jobs, picture)
    return {name: dict(where) for name, where in found.items()}


def test_who_keeps_its_configuration_stays_and_the_others_fill_up_the_tightest_node() -> None:
    assert place({"a": 2, "b": 1}, on("a", n1=2), on("b")) == {"a": {"cpu-1": 2}, "b": {"cpu-1": 1}}


def test_small_jobs_give_way_to_a_whole_node_where_the_least_has_to_move() -> None:
    found = place({"a": 1, "b": 2, "c": 4}, on("a", n0=1), on("b", n1=2), on("c"))
    assert found == {"a": {"cpu-1": 1}, "b": {"cpu-1": 2}, "c": {"cpu-0": 4}}


def test_a_job_in_fragments_is_brought_together() -> None:
    assert place({"a": 2, "b": 3}, on("a", n0=1, n1=1), on("b", n0=3)) == {"a": {"cpu-1": 2}, "b": {"cpu-0": 3}}


def test_a_count_that_finds_no_proper_place_is_left_to_the_packing_rule() -> None:
    assert place({"a": 3, "b": 3, "c": 2}, on("a"), on("b"), on("c")) == {"a": {"cpu-0": 3}, "b": {"cpu-1": 3}}


@st.composite
def granted(draw: st.DrawFn) -> tuple[dict[str, int], list[JobView]]:
    """Powers of two and whole nodes on four nodes of four; some hold what they get, somewhere."""
    free = Counter({f"n{i}": 4 for i in range(4)})
    grants: dict[str, int] = {}
    views = []
    room = 16
    for i in range(draw(st.integers(1, 8))):
        count = draw(st.sampled_from([n for n in (1, 2, 4, 8) if n <= room] or [0]))
        if not count:
            break
        room -= count
        grants[f"j{i}"] = count
        held: dict[str, int] = {}
        if draw(st.booleans()):
            for name in draw(st.permutations(sorted(free))):
                held[name] = min(free[name], count - sum(held.values()))
                free[name] -= held[name]
        views.append(on(f"j{i}", **{name: number for name, number in held.items() if number}))
    return grants, views


@settings(BUSY, max_examples=150)
@given(granted())
def test_powers_of_two_always_find_one_node_or_whole_nodes(case: tuple[dict[str, int], list[JobView]]) -> None:
    grants, views = case
    found = place(grants, *views, pool=(4, 4, 4, 4))
    used: Counter[str] = Counter()
    for name, count in grants.items():
        where = found[name]
        assert sum(where.values()) == count
        assert len(where) == 1 or set(where.values()) == {4}
        used.update(where)
    assert max(used.values()) <= 4


@pytest.mark.parametrize("count", [1, 4])
def test_a_job_on_a_node_that_has_left_is_placed_anew(count: int) -> None:
    assert place({"a": count}, on("a", n7=count)) == {"a": {"cpu-0": count}}
