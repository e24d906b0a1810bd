"""Which exchange is compared with the exact sum while a job trains: one that the spec names, of whole replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elastic_core.comm.algorithms import averages, class_of
from elastic_core.comm.hierarchy import hierarchy_of
from elastic_core.comm.tuning.against_exact import AgainstExact
from elastic_core.domain import AUTO, EXACT, Allocation
from elastic_core.spec.parts.job_comm import Comm
from elastic_core.train.gradients.gradients import Gradients
from elastic_core.train.gradients.gradients_of import nodes_within
from elastic_core.train.parallel.group import Group

if TYPE_CHECKING:
    from elastic_core.train.gradients.gradients_of import AnyGradients


def against_exact(gradients: AnyGradients, group: Group, allocation: Allocation, options: Comm) -> AgainstExact | None:
    """None for the exact sum, for one that is chosen by measurement, which has tried that, and where nothing predicts
    it: averages of weights within nodes first, and CUDA devices."""
    comm = allocation.comm
    if not isinstance(gradients, Gradients) or gradients.comm is None or comm in (EXACT, AUTO) or group.world == 1:
        return None
    if group.device.type != "cpu":
        return None
    hierarchy = hierarchy_of(nodes_within(allocation, options))
    if hierarchy is not None and averages(comm):
        return None
    shapes = [parameter.shape for parameter in gradients.parameters]
    leaders = hierarchy.leaders if hierarchy is not None else None
    return AgainstExact(gradients.comm, class_of(comm), shapes, options.steps_of(comm), leaders=leaders)
