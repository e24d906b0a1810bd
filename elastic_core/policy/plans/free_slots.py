"""The slots that nobody holds, by node: of ten thousand, a question about one job needs a node's or two."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from elastic_core.domain import Allocation, Slot, Target
from elastic_core.policy.plans.packing import SlotPool, place


@dataclass(frozen=True, slots=True)
class FreeSlots:
    """`by_node`: of each node that has some, its slots' type and their indices."""

    by_node: Mapping[str, tuple[str, Sequence[int]]]

    def counts(self) -> Counter[str]:
        """By type."""
        counts: Counter[str] = Counter()
        for kind, indices in self.by_node.values():
            counts[kind] += len(indices)
        return counts

    def on(self, nodes: Iterable[str]) -> list[Slot]:
        return [
            Slot(node, index, kind)
            for node in sorted(set(nodes))
            for kind, indices in [self.by_node.get(node, ("", ()))]
            for index in indices
        ]

    def pool(self) -> SlotPool:
        """A new one, of all."""
        pool = SlotPool()
        for node, (kind, indices) in self.by_node.items():
            pool.add(kind, node, indices)
        return pool

    def near(self, target: Target, held: Allocation) -> list[Slot]:
        """Those that processes on what is held can go on with: `grants.in_place` answers by them as by all."""
        if len(target.wanted) != 1:
            return []
        ((wanted, count),) = target.wanted.items()
        own = Counter(slot.node for slot in held.slots)
        numbers = {node: len(indices) for node, (kind, indices) in self.by_node.items() if kind == wanted}
        chosen = place(numbers, min(count, sum(numbers.values()) + own.total()), own)
        return self.on({*own, *(target.nodes or {}), *chosen})
