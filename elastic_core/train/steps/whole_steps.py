"""Steps that no loop over micro-batches can take, because a rank has a part of the model: those of a pipeline, and of
the stages of a placed job. Each runs all micro-batches of a step, and hands their losses to the gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Protocol

import torch

from elastic_core.state.order.sample_order import rank_share
from elastic_core.train.data.batches import DataPlan, MicroBatch, StepPlan, plan_step
from elastic_core.train.gradients.partitioned_gradients import PartitionedGradients
from elastic_core.train.gradients.pipe import Pipe, micro_batch_size
from elastic_core.train.gradients.stage_gradients import StageGradients
from elastic_core.train.parallel.loss_calls import Loss
from elastic_core.train.parallel.partitioning import ModelPartition
from elastic_core.train.parallel.places import Places
from elastic_core.train.placed.shares import plan_placed_step
from elastic_core.train.placed.stage_part import StagePart
from elastic_core.train.placed.stage_places import StagePlaces
from elastic_core.train.placed.stage_run import StageRun
from elastic_core.train.steps.prepared import Prepared

Read = Callable[[MicroBatch], Any]


Context = Callable[[], AbstractContextManager[Any]]


class WholeSteps(Protocol):
    def run(self, cursor: int, global_batch: int) -> StepPlan:
        """Forward and backward of the step that starts at sample `cursor`; this rank's part of it."""

    def close(self) -> None: ...


class PipelineSteps:
    def __init__(self, pipe: Pipe, gradients: PartitionedGradients, plan: DataPlan, places: Places, read: Read) -> None:
        self._pipe, self._gradients, self._plan, self._places, self._read = pipe, gradients, plan, places, read

    def run(self, cursor: int, global_batch: int) -> StepPlan:
        layout, data = self._places.layout, self._places.data
        share = rank_share(min(global_batch, self._plan.total_samples - cursor), data, layout.data)[1]
        plan = replace(self._plan, max_local=micro_batch_size(share, layout.pipeline, self._plan.max_local))
        step = plan_step(plan, cursor, global_batch, data, layout.data)
        losses = self._pipe.run(step.micro, [self._read(micro) for micro in step.micro])
        for micro, loss in zip(step.micro, losses, strict=True):
            self._gradients.add_micro_batch(micro, loss)
        return step

    def close(self) -> None:
        return None


class PlacedSteps:
    def __init__(self, stage: StageRun, gradients: StageGradients, plan: DataPlan, places: StagePlaces) -> None:
        self._stage, self._gradients, self._plan, self._places = stage, gradients, plan, places

    def run(self, cursor: int, global_batch: int) -> StepPlan:
        places = self._places
        step, sizes = plan_placed_step(self._plan, cursor, global_batch, places.counts, places.stage, places.data)
        self._gradients.add_losses(self._stage.run(step.micro, sizes))
        return step

    def close(self) -> None:
        self._stage.close()


def whole_steps(
    ready: Prepared,
    places: Places,
    loss: Loss,
    read: Read,
    device: torch.device,
    context: Context,
    stage_ratio: float | None = None,
) -> WholeSteps:
    """`read` gives the samples of a micro-batch; `context` surrounds forward passes (autocast); `stage_ratio`: of a
    pipeline, as of `Pipe`."""
    part, gradients = ready.partition, ready.gradients
    if isinstance(places, StagePlaces) and isinstance(part, StagePart):
        assert isinstance(gradients, StageGradients)
        run = StageRun(part, places, loss, read, device, context, ready.wire)
        return PlacedSteps(run, gradients, ready.plan, places)
    assert isinstance(part, ModelPartition), "a layout with stages partitions the model"
    assert isinstance(gradients, PartitionedGradients)
    return PipelineSteps(Pipe(part, places, loss, device, context, stage_ratio), gradients, ready.plan, places, read)
