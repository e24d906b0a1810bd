"""A rank's part of the model, and the state of what it holds, by where it stands."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.optim import Optimizer

from elastic_core.train.checkpoint.training_state import TrainingState
from elastic_core.train.gradients.noise import NoiseState
from elastic_core.train.layouts import Declared
from elastic_core.train.parallel.places import Places
from elastic_core.train.placed.stage_places import StagePlaces
from elastic_core.train.servers.server_places import ServerPlaces

if TYPE_CHECKING:  # at run time where a layout needs them: they load torch's parallel libraries
    from elastic_core.train.gradients.gradients_of import AnyPart


def own_part(
    model: nn.Module,
    optimizer: Optimizer,
    scheduler: Any | None,
    places: Places,
    declared: Declared,
    device: torch.device,
    context: Callable[[], AbstractContextManager[Any]],
) -> tuple[AnyPart | None, TrainingState]:
    """None for a rank that holds and steps all of the model. `context` surrounds forward passes (autocast)."""
    noise = NoiseState()
    if places.replicated:
        model.to(device)
        return None, TrainingState(model, optimizer, scheduler, noise)
    from elastic_core.train.checkpoint.partitioned_state import PartitionedState
    from elastic_core.train.parallel.partitioning import partition_model

    if isinstance(places, ServerPlaces):
        from elastic_core.train.checkpoint.served_state import WorkerState
        from elastic_core.train.servers.server_parts import server_part, worker_part

        if places.serves:
            rows = server_part(model, optimizer, places)
            return rows, PartitionedState(rows.model, optimizer, scheduler, noise, rows, places)
        whole = worker_part(model, optimizer, places, device)
        return whole, WorkerState(model, optimizer, scheduler, noise, whole, places)
    if isinstance(places, StagePlaces):
        from elastic_core.train.placed.stage_part import cut_stage

        stage = cut_stage(model, optimizer, places, declared, device, context)
        return stage, PartitionedState(stage.model, optimizer, scheduler, noise, stage, places)
    part = partition_model(model, optimizer, places, declared, device, context)
    return part, PartitionedState(part.model, optimizer, scheduler, noise, part, places)
