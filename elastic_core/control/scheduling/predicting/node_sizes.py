"""How many nodes of a type it takes at least, for what is said of slots that no decision has given yet."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from elastic_core.domain import Node


def sizes_by_type(nodes: Sequence[Node], types: tuple[str, ...]) -> dict[str, list[int]]:
    """Slots of each present node of a type that is allowed (all where none is named), the largest first."""
    sizes: dict[str, list[int]] = {}
    for node in nodes:
        if node.present and node.num_slots and (not types or node.type in types):
            sizes.setdefault(node.type, []).append(node.num_slots)
    return {kind: sorted(each, reverse=True) for kind, each in sorted(sizes.items())}


def fewest_nodes(sizes: Sequence[int], count: int) -> int:
    """0 where they have not so many slots. `sizes`: the largest first."""
    return next((number for number, held in enumerate(accumulate(sizes), 1) if held >= count), 0)
