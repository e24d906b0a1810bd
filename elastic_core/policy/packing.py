"""Which slots, once it is decided how many: own slots first, then the fewest nodes, then the best fit.

Fewest nodes because gradients that stay inside a node are cheap; best fit (the smallest node that still takes
everything) because it leaves large nodes whole for the next job. Deterministic: ties go by node name.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence

from elastic_core.domain import Slot
from elastic_core.errors import UserError


def choose(
    free: Sequence[Slot], counts: Mapping[str, int], keep: Sequence[Slot] = (), wish: Mapping[str, int] | None = None
) -> tuple[Slot, ...]:
    """`counts[type]` slots of each type out of `free` and `keep`, sorted by (node, index).

    `keep` are the job's own slots, which it may go on with (a slot may be in both). As many of them as possible
    stay; a job that shrinks keeps those on the fewest nodes. `wish`, slots by node, goes before that where all of it
    can be had. Raises `UserError` when there are too few slots.
    """
    own = set(keep)
    others = set(free) - own
    wished = _wished(sorted(own | others), counts, wish or {})
    if wished:
        return wished
    chosen: list[Slot] = []
    for kind, count in sorted(counts.items()):
        mine = [slot for slot in own if slot.type == kind]
        spare = [slot for slot in others if slot.type == kind]
        if count > len(mine) + len(spare):
            raise UserError(
                f"{count} slots of type {kind!r} were asked for, and {len(mine) + len(spare)} can be had "
                f"({len(mine)} held already, {len(spare)} free). Ask for at most as many."
            )
        chosen += _choose_one_type(mine, spare, count)
    return tuple(sorted(chosen))


def _wished(slots: Sequence[Slot], counts: Mapping[str, int], wish: Mapping[str, int]) -> tuple[Slot, ...]:
    """The slots wished for, () unless they are there and make up the counts."""
    chosen: list[Slot] = []
    for node, number in wish.items():
        chosen += [slot for slot in slots if slot.node == node][:number]
    asked = Counter({kind: count for kind, count in counts.items() if count})
    there = len(chosen) == sum(wish.values()) and Counter(slot.type for slot in chosen) == asked
    return tuple(sorted(chosen)) if there else ()


def _choose_one_type(mine: list[Slot], spare: list[Slot], count: int) -> list[Slot]:
    nodes = place(Counter(slot.node for slot in spare), count, Counter(slot.node for slot in mine))
    chosen: list[Slot] = []
    for node, number in nodes.items():
        here = [slot for slot in sorted(mine) if slot.node == node] + [
            slot for slot in sorted(spare) if slot.node == node
        ]
        chosen += here[:number]
    return chosen


def place(free: Mapping[str, int], count: int, keep: Mapping[str, int] | None = None) -> dict[str, int]:
    """The same rule in numbers: `count` slots of one type by node, out of `free` and `keep` (slots by node)."""
    own = dict(keep or {})
    placed = _fewest_nodes(own, min(count, sum(own.values())))
    beside = {node: free[node] for node in placed if free.get(node)}
    _add(placed, _fewest_nodes(beside, min(count - sum(placed.values()), sum(beside.values()))))
    if sum(placed.values()) < count:
        away = {node: number for node, number in free.items() if number and node not in placed}
        _add(placed, _fewest_nodes(away, count - sum(placed.values())))
    return placed


def _add(placed: dict[str, int], more: Mapping[str, int]) -> None:
    for node, number in more.items():
        placed[node] = placed.get(node, 0) + number


def _fewest_nodes(available: Mapping[str, int], count: int) -> dict[str, int]:
    """Largest nodes first, until one node takes the rest: then the smallest that does."""
    left = dict(available)
    chosen: dict[str, int] = {}
    while count > 0:
        fitting = [node for node, number in left.items() if number >= count]
        if fitting:
            node = min(fitting, key=lambda name: (left[name], name))
        else:
            node = min(left, key=lambda name: (-left[name], name))
        chosen[node] = min(left.pop(node), count)
        count -= chosen[node]
    return chosen


class Room:
    """What is free on the nodes of one type, for placing many jobs one after the other by the rule of `place`."""

    def __init__(self, free: Mapping[str, int]) -> None:
        self.total = sum(free.values())
        self._by_size: dict[int, list[str]] = {}  # heaps of names
        for node in sorted(free):
            self._by_size.setdefault(free[node], []).append(node)

    def take(self, count: int) -> dict[str, int]:
        """`count` slots, at most `total`, by node."""
        self.total -= count
        chosen: dict[str, int] = {}
        while count > 0:
            sizes = [size for size, nodes in self._by_size.items() if nodes and size]
            size = min((size for size in sizes if size >= count), default=None) or max(sizes)
            node = heapq.heappop(self._by_size[size])
            chosen[node] = min(size, count)
            heapq.heappush(self._by_size.setdefault(size - chosen[node], []), node)
            count -= chosen[node]
        return chosen
