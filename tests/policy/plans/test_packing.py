"""Which slots: own first, then the fewest nodes, then the best fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.domain import Slot
from elastic_core.errors import UserError
from elastic_core.policy.plans.packing import Room, SlotPool, place
from tests.policy.strategies import BUSY


def slots(**nodes: int) -> list[Slot]:
    return [Slot(node, i, "cpu") for node, count in nodes.items() for i in range(count)]


def choose(
    free: Iterable[Slot],
    counts: Mapping[str, int],
    keep: Sequence[Slot] = (),
    preferred: Mapping[str, int] | None = None,
) -> tuple[Slot, ...]:
    return SlotPool(free).choose(counts, keep, preferred)


def names(chosen: tuple[Slot, ...]) -> list[str]:
    return [f"{slot.node}{slot.index}" for slot in chosen]


@pytest.mark.parametrize(
    ("free", "count", "keep", "want"),
    [
        pytest.param(slots(a=4, b=2), 2, [], ["b0", "b1"], id="the smallest node that takes all"),
        pytest.param(slots(a=2, b=4, c=3), 5, [], ["a0", "b0", "b1", "b2", "b3"], id="the largest, then the best fit"),
        pytest.param(slots(a=2, b=2), 2, [], ["a0", "a1"], id="equal nodes by name"),
        pytest.param(slots(a=2, b=1), 2, slots(b=2)[1:], ["b0", "b1"], id="grows on its own node"),
        pytest.param(slots(a=4), 3, slots(b=1), ["a0", "a1", "b0"], id="own slots stay though one node would do"),
        pytest.param([], 2, slots(a=1, b=2), ["b0", "b1"], id="shrinks to the fewest nodes"),
        pytest.param(slots(a=2), 2, slots(a=2), ["a0", "a1"], id="own slots may be listed as free too"),
        pytest.param(slots(a=2), 0, [], [], id="nothing"),
    ],
)
def test_choice(free: list[Slot], count: int, keep: list[Slot], want: list[str]) -> None:
    assert names(choose(free, {"cpu": count}, keep)) == want


def test_a_plans_preferred_nodes_go_before_the_jobs_own_slots() -> None:
    assert names(choose(slots(a=2, b=2), {"cpu": 2}, slots(b=2), preferred={"a": 2})) == ["a0", "a1"]


def test_on_a_preferred_node_a_job_keeps_the_slots_that_it_has_there() -> None:
    last = Slot("a", 3, "cpu")
    assert names(choose(slots(a=3, b=2), {"cpu": 2}, [last], preferred={"a": 2})) == ["a0", "a3"]


@pytest.mark.parametrize("preferred", [{"a": 3}, {"gone": 2}, {"a": 1}, {}])
def test_a_preference_that_cannot_be_followed_leaves_the_usual_rule(preferred: dict[str, int]) -> None:
    assert names(choose(slots(a=2, b=2), {"cpu": 2}, slots(b=2), preferred=preferred)) == ["b0", "b1"]


def test_too_few_slots_say_how_many_there_are() -> None:
    with pytest.raises(UserError) as caught:
        choose(slots(a=1), {"cpu": 3}, slots(b=1))
    assert "3 slots of type 'cpu' were asked for, and 2 can be had (1 held already, 1 free)" in str(caught.value)


@st.composite
def cases(draw: st.DrawFn) -> tuple[list[Slot], dict[str, int], list[Slot]]:
    """Up to nine slots on up to four nodes of two types; some held, some free, some neither."""
    everything = [
        Slot(f"n{node}", index, "cpu" if node % 2 else "gpu")
        for node in range(draw(st.integers(1, 4)))
        for index in range(draw(st.integers(1, 3)))
    ]
    states = draw(st.lists(st.sampled_from("fhx"), min_size=len(everything), max_size=len(everything)))
    free = [slot for slot, state in zip(everything, states, strict=True) if state == "f"]
    keep = [slot for slot, state in zip(everything, states, strict=True) if state == "h"]
    counts = {
        kind: draw(st.integers(0, sum(slot.type == kind for slot in free + keep)))
        for kind in sorted({slot.type for slot in free + keep})
    }
    return draw(st.permutations(free)), counts, draw(st.permutations(keep))


@settings(BUSY, max_examples=200)
@given(cases())
def test_no_other_choice_keeps_more_own_slots_or_needs_fewer_nodes(
    case: tuple[list[Slot], dict[str, int], list[Slot]],
) -> None:
    free, counts, keep = case
    chosen = choose(free, counts, keep)
    assert list(chosen) == sorted(set(chosen))
    assert chosen == choose(sorted(free), counts, sorted(keep))
    for kind, count in counts.items():
        mine = [slot for slot in chosen if slot.type == kind]
        assert len(mine) == count
        possible = [slot for slot in free + keep if slot.type == kind]
        assert _rank(mine, keep) == min(_rank(other, keep) for other in combinations(possible, count))


def _rank(chosen: list[Slot] | tuple[Slot, ...], keep: list[Slot]) -> tuple[int, int]:
    return (-len(set(chosen) & set(keep)), len({slot.node for slot in chosen}))


@settings(BUSY)
@given(
    free=st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 8), max_size=8),
    counts=st.lists(st.integers(1, 20), max_size=8),
)
def test_many_jobs_in_a_row_go_where_each_would_go_by_itself(free: dict[str, int], counts: list[int]) -> None:
    room = Room(free)
    for count in counts:
        if count <= room.total:
            nodes = place({name: number for name, number in free.items() if number}, count)
            assert room.take(count) == nodes
            free = {name: number - nodes.get(name, 0) for name, number in free.items()}
    assert room.total == sum(free.values())


@given(st.lists(cases(), min_size=1, max_size=4))
def test_a_pool_of_which_some_were_taken_is_one_of_what_is_left(
    several: list[tuple[list[Slot], dict[str, int], list[Slot]]],
) -> None:
    free = several[0][0]
    pool, left = SlotPool(free), set(free)
    for _, counts, keep in several:
        own = [slot for slot in keep if slot not in left]
        wanted = {kind: min(count, sum(slot.type == kind for slot in {*left, *own})) for kind, count in counts.items()}
        chosen = pool.choose(wanted, own)
        assert chosen == choose(left, wanted, own)
        pool.take(slot for slot in chosen if slot in left)
        left -= set(chosen)
        assert {slot for slot in free if slot in pool} == left
        assert +pool.counts == Counter(slot.type for slot in left)
        assert +pool.by_node() == Counter(slot.node for slot in left)
        assert pool.covers(+pool.counts)
        assert not any(pool.covers({kind: count + 1}) for kind, count in pool.counts.items())
