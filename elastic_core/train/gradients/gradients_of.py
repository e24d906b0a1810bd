"""The gradients of a model by how it lies on the ranks, and by the algorithm of its allocation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn
from torch.optim import Optimizer

from elastic_core.comm.algorithms import averages, steps_weights
from elastic_core.comm.optimizers.frozen_adam import thaw
from elastic_core.domain import Allocation
from elastic_core.spec.parts.job_comm import Comm
from elastic_core.train.gradients.gradients import Gradients
from elastic_core.train.gradients.local_steps import LocalSteps
from elastic_core.train.parallel.group import Group
from elastic_core.train.parallel.places import Places
from elastic_core.train.placed.stage_places import StagePlaces
from elastic_core.train.servers.server_places import ServerPlaces

if TYPE_CHECKING:  # at run time where a layout needs them: they load torch's parallel libraries
    from elastic_core.train.gradients.partitioned_gradients import PartitionedGradients
    from elastic_core.train.gradients.server_gradients import ServerGradients
    from elastic_core.train.gradients.stage_gradients import StageGradients
    from elastic_core.train.parallel.partitioning import ModelPartition
    from elastic_core.train.placed.stage_part import StagePart
    from elastic_core.train.servers.server_parts import ServerPart, WorkerPart

    AnyGradients = Gradients | PartitionedGradients | StageGradients | ServerGradients
    AnyPart = ModelPartition | StagePart | WorkerPart | ServerPart


def gradients_of(
    model: nn.Module,
    optimizer: Optimizer,
    partition: AnyPart | None,
    group: Group,
    places: Places,
    allocation: Allocation,
    options: Comm,
    *,
    find_unused_parameters: bool,
    fixed_parts: bool,
) -> AnyGradients:
    """`partition`: None of a model that every rank holds whole. `allocation`: its algorithm, what a choice tries first,
    and on which nodes ranks are; `options`: the spec's, of the algorithm.
    Collective."""
    if not steps_weights(allocation.comm):
        thaw(optimizer)  # which a job may have frozen that has fallen back, or that this one is forked from
    if isinstance(places, StagePlaces):
        from elastic_core.train.gradients.stage_gradients import StageGradients
        from elastic_core.train.placed.stage_part import StagePart

        assert isinstance(partition, StagePart), "stages cut the model"
        return StageGradients(partition, optimizer, group, places)
    if isinstance(places, ServerPlaces):
        from elastic_core.train.gradients.server_gradients import ServerGradients
        from elastic_core.train.servers.server_parts import ServerPart, WorkerPart

        assert isinstance(partition, WorkerPart | ServerPart), "workers and servers have parts of their own"
        return ServerGradients(partition, optimizer, group, places)
    if partition is not None:
        from elastic_core.train.gradients.partitioned_gradients import PartitionedGradients
        from elastic_core.train.parallel.partitioning import ModelPartition

        assert isinstance(partition, ModelPartition)
        return PartitionedGradients(partition, group, places)
    comm, nodes = allocation.comm, nodes_within(allocation, options)
    if averages(comm):
        return LocalSteps(model, optimizer, group, comm, options.steps_between_averages, nodes)
    return Gradients(
        model, group, comm, find_unused_parameters, optimizer, fixed_parts=fixed_parts,
        warmup_steps=options.warmup_steps, among=options.candidates, nodes=nodes, first=allocation.expected_comm,
    )  # fmt: skip


def nodes_within(allocation: Allocation, options: Comm) -> list[str]:
    """By rank, the nodes within which gradients are summed first; none where they are not."""
    return [slot.node for slot in allocation.slots] if options.hierarchical else []
