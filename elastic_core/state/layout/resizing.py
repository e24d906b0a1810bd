"""The layout of a job at other parallel sizes, from one that it has: the splits stay, their number of parts changes.

Stages can be merged, since who holds which layer is known; they cannot be split, since the task says where.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from elastic_core import domain
from elastic_core.domain import Slot
from elastic_core.errors import UserError
from elastic_core.state.layout.layout import PIPELINE, REPLICATED, Mesh, Placement, StateLayout, TensorMeta, of_one_rank


def resized(layout: StateLayout, sizes: Mapping[str, int], slots: Sequence[Slot]) -> StateLayout:
    """The same placements on a mesh whose axes have other sizes; axes that are not named keep theirs.

    What belongs to single ranks (their random state) is left out. The first slots are taken. Raises `UserError` for an
    axis that the mesh does not have, a number of stages that the old one is no multiple of, too few slots, or a split
    whose sizes were written down.
    """
    unknown = sorted(set(sizes) - set(layout.mesh.axes))
    if unknown:
        raise UserError(f"The layout has the axes {list(layout.mesh.axes)}, not {unknown}.")
    mesh = Mesh(layout.mesh.axes, tuple(sizes.get(axis, layout.mesh.size(axis)) for axis in layout.mesh.axes))
    before, after = layout.mesh.size(PIPELINE), mesh.size(PIPELINE)
    if before % after:
        raise UserError(
            f"{before} pipeline stages cannot be turned into {after} without the task's split: give a layout as JSON, "
            f"or another checkpoint that has it."
        )
    if len(slots) < mesh.world:
        raise UserError(
            f"{dict(zip(mesh.axes, mesh.sizes, strict=True))} needs {mesh.world} slots, not {len(slots)}: name as many."
        )
    placements = {
        name: _merged(placement, mesh, before // after)
        for name, placement in layout.placements.items()
        if not set(placement.at) - {PIPELINE}
    }
    for split in (split for placement in placements.values() for split in placement.cuts):
        if split.sizes and mesh.size(split.axis) != layout.mesh.size(split.axis):
            raise UserError(
                f"Splits over {split.axis!r} have written sizes {split.sizes}: give the new layout as JSON."
            )
    return StateLayout(mesh, placements, tuple(slots[: mesh.world]))


def replicated_layout(layout: domain.Layout, metas: Mapping[str, TensorMeta]) -> StateLayout:
    """What a checkpoint without a layout was written under: every rank of one host held all that ranks share."""
    mesh = Mesh.of(layout)
    shared = {name: REPLICATED for name in metas if not of_one_rank(name)}
    return StateLayout(mesh, shared, tuple(Slot("local", i, "cpu") for i in range(mesh.world)))


def parse_sizes(text: str) -> dict[str, int] | None:
    """`data=2,tensor=4` as a mapping; None for something else."""
    parts = [part.partition("=") for part in text.split(",")]
    if not all(axis.isidentifier() and size.isdigit() and int(size) for axis, _, size in parts):
        return None
    return {axis: int(size) for axis, _, size in parts}


def _merged(placement: Placement, mesh: Mesh, factor: int) -> Placement:
    if PIPELINE not in placement.at:
        return placement
    stages = tuple(sorted({stage // factor for stage in placement.at[PIPELINE]}))
    return replace(placement, at={} if mesh.size(PIPELINE) == 1 else {PIPELINE: stages})
