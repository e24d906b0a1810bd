"""Where processes go on that are tied to a node: in production as in the simulator.

On Ray a group's coordinator stays where it began, on the node of its first rank 0, and ends with that node: were no
rank left there, the node would take a group along that is none of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import replace

from elastic_core.domain import Allocation, Slot, Target
from elastic_core.policy.plans.grants import in_place
from elastic_core.policy.plans.packing import place

Free = Callable[[Target], Collection[Slot]]  # the free slots that a target's could be among


def in_place_with(tied_to: str | None, target: Target, held: Allocation, free: Free) -> tuple[Slot, ...] | None:
    """As `grants.in_place`; `tied_to`: the node without which none of the processes goes on, so that what is kept there
    comes before fewest nodes. None where they are tied to none."""
    chosen = in_place(target, held, free(target))
    if tied_to is None or chosen is None or _any_on(tied_to, chosen):
        return chosen
    if target.migrate:
        return None
    target = replace(target, nodes=_nodes_with(tied_to, target, held))
    chosen = in_place(target, held, free(target))
    return chosen if chosen is not None and _any_on(tied_to, chosen) else None


def _any_on(node: str, slots: Collection[Slot]) -> bool:
    return any(slot.node == node for slot in slots)


def _nodes_with(node: str, target: Target, held: Allocation) -> dict[str, int]:
    """Of a job that shrinks: what it holds on this node, and the rest on the fewest others that it holds."""
    own = Counter(slot.node for slot in held.slots)
    here = min(own.pop(node, 0), target.num_slots)
    return {node: here, **place({}, min(target.num_slots - here, own.total()), own)}
