"""Which slots, once it is decided how many: own slots first, then the fewest nodes, then the best fit.

Fewest nodes because gradients that stay inside a node are cheap; best fit (the smallest node that still takes
everything) because it leaves large nodes whole for the next job. Deterministic: ties go by node name.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from elastic_core.domain import Slot
from elastic_core.errors import UserError


def choose(
    free: Collection[Slot],
    counts: Mapping[str, int],
    keep: Sequence[Slot] = (),
    preferred: Mapping[str, int] | None = None,
) -> tuple[Slot, ...]:
    """`counts[type]` slots of each type out of `free` and `keep`, sorted by (node, index).

    `keep` are the job's own slots, which it may go on with (a slot may be in both). As many of them as possible
    stay; a job that shrinks keeps those on the fewest nodes. `preferred`, slots by node, goes first where all of it
    can be had. Raises `UserError` when there are too few slots.
    """
    own = set(keep)
    others = set(free) - own
    preferred_slots = _on_preferred(own | others, counts, preferred) if preferred else ()
    if preferred_slots:
        return preferred_slots
    chosen: list[Slot] = []
    for kind, count in sorted(counts.items()):
        own_slots = [slot for slot in own if slot.type == kind]
        free_slots = [slot for slot in others if slot.type == kind]
        if count > len(own_slots) + len(free_slots):
            raise UserError(
                f"{count} slots of type {kind!r} were asked for, and {len(own_slots) + len(free_slots)} can be had "
                f"({len(own_slots)} held already, {len(free_slots)} free). Ask for at most as many."
            )
        chosen += _choose_one_type(own_slots, free_slots, count)
    return tuple(sorted(chosen))


def _on_preferred(slots: Collection[Slot], counts: Mapping[str, int], preferred: Mapping[str, int]) -> tuple[Slot, ...]:
    """The preferred slots, () unless they are there and make up the counts."""
    chosen: list[Slot] = []
    for node, number in preferred.items():
        chosen += sorted(slot for slot in slots if slot.node == node)[:number]
    requested = Counter({kind: count for kind, count in counts.items() if count})
    complete = len(chosen) == sum(preferred.values()) and Counter(slot.type for slot in chosen) == requested
    return tuple(sorted(chosen)) if complete else ()


def _choose_one_type(own_slots: list[Slot], free_slots: list[Slot], count: int) -> list[Slot]:
    nodes = place(Counter(slot.node for slot in free_slots), count, Counter(slot.node for slot in own_slots))
    chosen: list[Slot] = []
    for node, number in nodes.items():
        of_node = sorted(slot for slot in own_slots if slot.node == node)
        of_node += sorted(slot for slot in free_slots if slot.node == node)
        chosen += of_node[:number]
    return chosen


def place(free: Mapping[str, int], count: int, keep: Mapping[str, int] | None = None) -> dict[str, int]:
    """The same rule in numbers: `count` slots of one type by node, out of `free` and `keep` (slots by node)."""
    own = dict(keep or {})
    placed = _fewest_nodes(own, min(count, sum(own.values())))
    on_same_nodes = {node: free[node] for node in placed if free.get(node)}
    _add(placed, _fewest_nodes(on_same_nodes, min(count - sum(placed.values()), sum(on_same_nodes.values()))))
    if sum(placed.values()) < count:
        on_other_nodes = {node: number for node, number in free.items() if number and node not in placed}
        _add(placed, _fewest_nodes(on_other_nodes, count - sum(placed.values())))
    return placed


def _add(placed: dict[str, int], more: Mapping[str, int]) -> None:
    for node, number in more.items():
        placed[node] = placed.get(node, 0) + number


def _fewest_nodes(available: Mapping[str, int], count: int) -> dict[str, int]:
    """Largest nodes first, until one node takes the rest: then the smallest that does."""
    free_slots = dict(available)
    chosen: dict[str, int] = {}
    while count > 0:
        fitting = [node for node, number in free_slots.items() if number >= count]
        if fitting:
            node = min(fitting, key=lambda name: (free_slots[name], name))
        else:
            node = min(free_slots, key=lambda name: (-free_slots[name], name))
        chosen[node] = min(free_slots.pop(node), count)
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
