"""Which slots, once it is decided how many: own slots first, then the fewest nodes, then the best fit.

Fewest nodes because gradients that stay inside a node are cheap; best fit (the smallest node that still takes
everything) because it leaves large nodes whole for the next job. Deterministic: ties go by node name.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from elastic_core.domain import Slot
from elastic_core.errors import UserError


class SlotPool:
    """Slots that are free, for choosing of them for one job after the other: a question about a job looks at how many
    each node has, and at the slots of the nodes that it gets."""

    def __init__(self, slots: Iterable[Slot] = ()) -> None:
        self.counts: Counter[str] = Counter()  # by type
        self._indices: dict[str, dict[str, list[int]]] = {}  # by type and node
        for slot in slots:
            self.add(slot.type, slot.node, (slot.index,))

    def add(self, kind: str, node: str, indices: Sequence[int]) -> None:
        """Slots of one node, which are not there yet."""
        self._indices.setdefault(kind, {}).setdefault(node, []).extend(indices)
        self.counts[kind] += len(indices)

    def take(self, slots: Iterable[Slot]) -> None:
        for slot in slots:
            self._indices[slot.type][slot.node].remove(slot.index)
            self.counts[slot.type] -= 1

    def __contains__(self, slot: Slot) -> bool:
        return slot.index in self._indices.get(slot.type, {}).get(slot.node, ())

    def covers(self, counts: Mapping[str, int]) -> bool:
        """There are as many of each type."""
        return all(count <= self.counts[kind] for kind, count in counts.items())

    def by_node(self) -> Counter[str]:
        """How many each node has."""
        numbers: Counter[str] = Counter()
        for nodes in self._indices.values():
            for node, indices in nodes.items():
                numbers[node] += len(indices)
        return numbers

    def choose(
        self, counts: Mapping[str, int], keep: Sequence[Slot] = (), preferred: Mapping[str, int] | None = None
    ) -> tuple[Slot, ...]:
        """`counts[type]` slots of each type of the pool and of `keep`, sorted by (node, index). None is taken yet.

        `keep` are the job's own slots, which it may go on with (a slot may be in both). As many of them as possible
        stay; a job that shrinks keeps those on the fewest nodes. `preferred`, slots by node, goes first where all of it
        can be had. Raises `UserError` when there are too few slots.
        """
        own = set(keep)
        preferred_slots = self._on_preferred(own, counts, preferred) if preferred else ()
        if preferred_slots:
            return preferred_slots
        chosen: list[Slot] = []
        for kind, count in sorted(counts.items()):
            chosen += self._of_one_type(kind, count, [slot for slot in own if slot.type == kind])
        return tuple(sorted(chosen))

    def _on_preferred(
        self, own: set[Slot], counts: Mapping[str, int], preferred: Mapping[str, int]
    ) -> tuple[Slot, ...]:
        """The preferred slots, () unless they are there and make up the counts."""
        chosen: list[Slot] = []
        for node, number in preferred.items():
            there = {slot for slot in own if slot.node == node}
            for kind in self._indices:
                there.update(self._on(kind, node))
            chosen += sorted(there, key=lambda slot: (slot not in own, slot))[:number]
        requested = Counter({kind: count for kind, count in counts.items() if count})
        complete = len(chosen) == sum(preferred.values()) and Counter(slot.type for slot in chosen) == requested
        return tuple(sorted(chosen)) if complete else ()

    def _of_one_type(self, kind: str, count: int, own: Sequence[Slot]) -> list[Slot]:
        free = {node: len(indices) for node, indices in self._indices.get(kind, {}).items()}
        for slot in own:
            if slot in self:
                free[slot.node] -= 1
        if count > len(own) + sum(free.values()):
            raise UserError(
                f"{count} slots of type {kind!r} were asked for, and {len(own) + sum(free.values())} can be had "
                f"({len(own)} held already, {sum(free.values())} free). Ask for at most as many."
            )
        chosen: list[Slot] = []
        for node, number in place(free, count, Counter(slot.node for slot in own)).items():
            of_node = sorted(slot for slot in own if slot.node == node)
            of_node += sorted(set(self._on(kind, node)).difference(of_node))
            chosen += of_node[:number]
        return chosen

    def _on(self, kind: str, node: str) -> list[Slot]:
        return [Slot(node, index, kind) for index in self._indices.get(kind, {}).get(node, ())]


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
