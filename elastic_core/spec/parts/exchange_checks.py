"""What a job's exchange cannot be beside the rest of its spec, in words. Raises `ValueError`, as validators do."""

from __future__ import annotations

from elastic_core.domain import AUTO, EXACT
from elastic_core.spec.parts.job_comm import Comm
from elastic_core.spec.parts.job_slots import Layouts


def check_layouts(comm: Comm, layouts: Layouts) -> None:
    """Replicas of the whole model exchange in many ways, parts of it in one; stages besides."""
    if comm.hierarchical and layouts != Layouts():
        raise ValueError(
            "comm.hierarchical is true, which is for replicas of the whole model, and layouts may cut it; possible "
            "are layouts left out, or hierarchical left out"
        )
    if comm.algorithm != EXACT and layouts != Layouts():
        raise ValueError(
            f"comm.algorithm is {comm.algorithm!r}, which is for replicas of the whole model, and layouts may "
            f"cut it; possible are layouts left out, or comm.algorithm: {EXACT}"
        )
    if comm.stage_ratio is not None and max(layouts.pipeline) == 1:
        raise ValueError(
            f"comm.stage_ratio is {comm.stage_ratio:g}, which is for what stages of a pipeline send each "
            "other, and layouts admit none; possible are layouts.pipeline: [1, 2], or stage_ratio left out"
        )


def check_noise(comm: Comm, learning_rate_rule: str, scale_invariant: bool) -> None:
    """What needs the gradient of the whole batch needs an algorithm that computes it; `comm` has none."""
    exchanges = "may exchange" if comm.algorithm == AUTO else "exchanges"
    does = f"comm.algorithm {comm.algorithm!r} {exchanges} {comm.exchanged}"
    why = f"needs the gradient of the whole batch, and {does}"
    instead = "an algorithm that exchanges whole gradients"
    if learning_rate_rule == "adascale":
        raise ValueError(
            f"batch.learning_rate_rule is 'adascale', which {why}; possible are linear, sqrt or none, or {instead}"
        )
    if scale_invariant:
        raise ValueError(f"work.measure is 'progress', which {why}; possible are measure: samples, or {instead}")
