"""The pool as policies count it: slots by node of every resource type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from elastic_core.domain import Snapshot
from elastic_core.predict.speed.throughput import Ints


@dataclass(frozen=True, slots=True)
class Pool:
    """Slots by node of every resource type, largest node first."""

    sizes: Mapping[str, tuple[int, ...]]

    @staticmethod
    def of(snapshot: Snapshot) -> Pool:
        sizes: dict[str, list[int]] = {}
        for node in snapshot.nodes:
            if node.present and node.num_slots:
                sizes.setdefault(node.type, []).append(node.num_slots)
        return Pool({kind: tuple(sorted(of_kind, reverse=True)) for kind, of_kind in sorted(sizes.items())})

    def capacity(self, kind: str) -> int:
        return sum(self.sizes.get(kind, ()))

    def nodes_for(self, kind: str, counts: Ints) -> Ints:
        """The fewest nodes that hold each count."""
        return np.searchsorted(np.cumsum(self.sizes[kind]), counts) + 1
