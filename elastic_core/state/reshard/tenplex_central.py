"""Tenplex-Central, the baseline of Tenplex (arXiv 2312.05181): one process gathers the whole state, then scatters it.

Two plans, carried out one after the other. No job uses them: they are measured against the plan of
`state.reshard.change_plan`, and check its result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from elastic_core.domain import Slot
from elastic_core.state.layout.dtypes import itemsize
from elastic_core.state.layout.layout import REPLICATED, Mesh, StateLayout, TensorMeta, partition
from elastic_core.state.layout.overlap import HeldBoxes, needs_of
from elastic_core.state.reshard.assignment import moved_by
from elastic_core.state.reshard.change_plan import Plan, plan_change
from elastic_core.state.reshard.pieces import Link, Piece


def tenplex_central_plans(
    metas: Mapping[str, TensorMeta], held: Mapping[Slot, HeldBoxes], target: StateLayout, center: Slot
) -> tuple[Plan, Plan]:
    """(gather to the center, scatter to the ranks of the target on the slots that it names)."""
    gathered = StateLayout(Mesh((), ()), dict.fromkeys(metas, REPLICATED), (center,))
    wanted = partition(target, metas)
    whole = partition(gathered, metas)[0]
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
    return replace(plan_change(metas, held, gathered), released=()), scatter


def _link(source: Slot, target: Slot) -> Link:
    if source == target:
        return Link.LOCAL
    return Link.HOST if source.node == target.node else Link.NETWORK
