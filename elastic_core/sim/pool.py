"""The simulated pool: which slots of which node are free, and where a job goes (by the product's packing rule)."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence

from elastic_core.domain import Node, Slot
from elastic_core.policy.packing import place


class SlotPool:
    def __init__(self, nodes: Sequence[Node]) -> None:
        self.nodes = tuple(nodes)
        self._kind = {node.name: node.type for node in nodes}
        self._free = {node.name: list(range(node.num_slots)) for node in nodes}  # heaps of slot indices

    def give_back(self, slots: Sequence[Slot]) -> None:
        for slot in slots:
            heapq.heappush(self._free[slot.node], slot.index)

    def take(
        self, kind: str, count: int, keep: Mapping[str, int], wish: Mapping[str, int] | None = None
    ) -> tuple[dict[str, int], tuple[Slot, ...]]:
        """(slots by node, the slots). `keep`: the nodes it was on; what is free there is taken first.

        `wish`, slots by node, is followed where all of it is free.
        """
        free = {name: len(left) for name, left in self._free.items() if left and self._kind[name] == kind}
        if wish and all(free.get(name, 0) >= number for name, number in wish.items()):
            chosen = dict(wish)
        else:
            kept = {name: min(number, free[name]) for name, number in keep.items() if name in free}
            rest = {name: number - kept.get(name, 0) for name, number in free.items()}
            chosen = place(rest, count, {name: number for name, number in kept.items() if number})
        slots = [
            Slot(name, heapq.heappop(self._free[name]), kind) for name, number in chosen.items() for _ in range(number)
        ]
        return chosen, tuple(sorted(slots))
