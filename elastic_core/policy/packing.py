"""Which slots, once it is decided how many: own slots first, then the fewest nodes, then the best fit.

Fewest nodes because gradients that stay inside a node are cheap; best fit (the smallest node that still takes
everything) because it leaves large nodes whole for the next job. Deterministic: ties go by node name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from elastic_core.domain import Slot
from elastic_core.errors import UserError


def choose(free: Sequence[Slot], counts: Mapping[str, int], keep: Sequence[Slot] = ()) -> tuple[Slot, ...]:
    """`counts[type]` slots of each type out of `free` and `keep`, sorted by (node, index).

    `keep` are the job's own slots, which it may go on with (a slot may be in both). As many of them as possible
    stay; a job that shrinks keeps those on the fewest nodes. Raises `UserError` when there are too few slots.
    """
    own = set(keep)
    others = set(free) - own
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


def _choose_one_type(mine: list[Slot], spare: list[Slot], count: int) -> list[Slot]:
    kept = _fewest_nodes(mine, min(count, len(mine)))
    home = {slot.node for slot in kept}
    beside = [slot for slot in spare if slot.node in home]
    grown = _fewest_nodes(beside, min(count - len(kept), len(beside)))
    away = [slot for slot in spare if slot.node not in home]
    return kept + grown + _fewest_nodes(away, count - len(kept) - len(grown))


def _fewest_nodes(slots: Iterable[Slot], count: int) -> list[Slot]:
    """Largest nodes first, until one node takes the rest: then the smallest that does."""
    by_node: dict[str, list[Slot]] = defaultdict(list)
    for slot in sorted(slots):
        by_node[slot.node].append(slot)
    chosen: list[Slot] = []
    while len(chosen) < count:
        need = count - len(chosen)
        fitting = [node for node, found in by_node.items() if len(found) >= need]
        if fitting:
            node = min(fitting, key=lambda name: (len(by_node[name]), name))
        else:
            node = min(by_node, key=lambda name: (-len(by_node[name]), name))
        chosen += by_node.pop(node)[:need]
    return chosen
