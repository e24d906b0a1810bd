"""The baseline: one process takes in the whole state and hands every rank its part, as most systems reshard.

Two plans, to be carried out one after the other. It exists to be measured against, and to check the other against.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from elastic_core.domain import Slot
from elastic_core.state.assignment import moved_by
from elastic_core.state.dtypes import itemsize
from elastic_core.state.layout import REPLICATED, Mesh, StateLayout, TensorMeta, partition
from elastic_core.state.overlap import Held, needs_of
from elastic_core.state.reshard import Link, Piece, Plan, plan_change


def central_plans(
    metas: Mapping[str, TensorMeta], held: Mapping[Slot, Held], target: StateLayout, center: Slot
) -> tuple[Plan, Plan]:
    """(gather to the center, scatter to the ranks of the target on the slots that it names)."""
    one = StateLayout(Mesh((), ()), dict.fromkeys(metas, REPLICATED), (center,))
    wanted = partition(target, metas)
    whole = partition(one, metas)[0]
    needs = needs_of(metas, [{name: (box,) for name, box in whole.items()}, *({} for _ in target.slots)], wanted)
    hosts = [center.node, *(slot.node for slot in target.slots)]
    ranks = [0 if slot == center else 1 + rank for rank, slot in enumerate(target.slots)]
    pieces = tuple(
        Piece(name, box, box.volume * itemsize(metas[name].dtype), _link(center, slot), center, rank, (rank,))
        for rank, (slot, boxes) in enumerate(zip(target.slots, wanted, strict=True))
        for name, box in boxes.items()
        if box.volume
    )
    scatter = Plan(target, pieces, moved_by(needs, hosts, ranks), False, ())
    return replace(plan_change(metas, held, one), released=()), scatter


def _link(source: Slot, target: Slot) -> Link:
    if source == target:
        return Link.LOCAL
    return Link.HOST if source.node == target.node else Link.NETWORK
