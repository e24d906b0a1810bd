"""What a step takes in whichever form a job runs: as replicas, cut, with parameter servers, in roles, or in stages.

Every truth has replicas; the other forms are of those that know them. One that knows no cuts runs a cut job as replicas
on as many slots.
"""

from __future__ import annotations

from collections.abc import Mapping

from elastic_core.domain import Allocation, Layout
from elastic_core.predict.speed.layout_speeds import is_plain
from elastic_core.sim.ground_truth.cut_physics import CutPhysics
from elastic_core.sim.ground_truth.physics import Split, split
from elastic_core.sim.ground_truth.placed_physics import PlacedPhysics
from elastic_core.sim.ground_truth.servers import RolePhysics, ServedPhysics
from elastic_core.sim.ground_truth.workload import SimJob

Step = tuple[float, float]  # seconds, and those of them in which the workers wait for each other


def step_at(
    job: SimJob, kind: str, nodes: Mapping[str, int], allocation: Allocation | None, batch: int
) -> tuple[Split, Step]:
    """How a global batch is split on what is held (slots of workers by node, of one type), and what a step takes."""
    physics = job.physics
    if allocation is not None and allocation.roles:
        assert isinstance(physics, RolePhysics)
        seconds = physics.role_seconds(allocation.counts(), allocation.roles, batch)
        return _at_once(batch, dict(allocation.roles)["worker"]), seconds
    if allocation is not None and allocation.stages:
        assert isinstance(physics, PlacedPhysics)
        return _at_once(batch, allocation.num_slots), (physics.stage_seconds(allocation.stages), 0.0)
    if allocation is not None and allocation.layout.servers:
        assert isinstance(physics, ServedPhysics)
        seconds = physics.served_seconds(kind, len(nodes), allocation.layout, batch)
        return _at_once(batch, allocation.layout.data), seconds
    placement = tuple(nodes.values())
    cap, own = physics.max_local(kind, placement), job.limits.max_local(kind)
    divided = split(batch, sum(placement), cap if own is None else min(cap, own), job.limits.max_batch)
    step, waits = physics.seconds(kind, placement, divided.local, divided.accumulation)
    cut = layout_measured(job, allocation)
    factor = physics.cut_factor(cut) if cut is not None and isinstance(physics, CutPhysics) else 1.0
    return divided, (step * factor, waits * factor)


def layout_measured(job: SimJob, allocation: Allocation | None) -> Layout | None:
    """That a report says what was measured in; None: replicas, or what the truth takes for them."""
    if allocation is None or is_plain(allocation.layout):
        return None
    return allocation.layout if allocation.layout.servers or isinstance(job.physics, CutPhysics) else None


def _at_once(batch: int, workers: int) -> Split:
    return Split(-(-batch // workers), 1, batch)
