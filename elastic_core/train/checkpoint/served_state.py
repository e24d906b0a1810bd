"""What a checkpoint needs of a worker of parameter servers: its buffers, and random state. Servers hold all else.

A worker reads the whole model of any checkpoint, so that it need not pull before its first step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from elastic_core.domain import Slot
from elastic_core.state.format.manifest import Manifest
from elastic_core.state.format.optimizer_state import load_optimizer
from elastic_core.state.format.writing import plan_shards
from elastic_core.state.layout.boxes import Box
from elastic_core.state.layout.layout import Mesh, StateLayout
from elastic_core.train.checkpoint.collection import Collection
from elastic_core.train.checkpoint.partitioned_state import of_parameters, told_of_stages
from elastic_core.train.checkpoint.training_state import MODEL, TrainingState, load_scheduler_and_noise
from elastic_core.train.parallel.group import Group
from elastic_core.train.servers.server_parts import WorkerPart
from elastic_core.train.servers.server_places import ServerPlaces


@dataclass
class WorkerState(TrainingState):
    """`TrainingState` of a worker, whose optimizer holds no parameter."""

    part: WorkerPart
    places: ServerPlaces

    def tensors(self) -> dict[str, Tensor]:
        """The model's buffers."""
        parameters = {name for name, _ in self.model.named_parameters(remove_duplicate=False)}
        return {MODEL + name: value for name, value in self.model.state_dict().items() if name not in parameters}

    def boxes(self, manifest: Manifest) -> Mapping[str, Box]:
        """All of the model, nothing of the optimizer. Raises nothing: `load` finds another model's tensors."""
        return {name: Box.whole(entry.shape) for name, entry in manifest.tensors.items() if name.startswith(MODEL)}

    def load(self, tensors: Mapping[str, Tensor], scalars: Mapping[str, Any], unheld: bool = False) -> None:
        self.check_order(scalars)
        self.load_weights(tensors, unheld)
        load_optimizer(self.optimizer, (), {}, _without_tensors(of_parameters(scalars["optimizer"], ())))
        load_scheduler_and_noise(self, scalars)

    def collect(self, tensors: Mapping[str, Tensor], group: Group, slots: Sequence[Slot]) -> Collection:
        """Collective: servers say what they hold."""
        places = self.part.place
        metas, placements = {}, {}
        for name, tensor in tensors.items():
            metas[name], placements[name] = places(name.removeprefix(MODEL), tensor)
        metas, placements = told_of_stages(metas, placements, group, self.places)
        layout = StateLayout(Mesh.of(self.places.layout), placements, tuple(slots))
        return Collection(layout, metas, dict(tensors), plan_shards(layout, metas)[group.rank])


def _without_tensors(optimizer: Mapping[str, Any]) -> dict[str, Any]:
    """Options that are tensors, and state of no parameter, are the servers'."""
    groups = [
        {**group, "options": {key: value for key, value in group["options"].items() if not _is_tensor(value)}}
        for group in optimizer["groups"]
    ]
    return {**optimizer, "groups": groups, "shared": {}}


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Mapping) and "tensor" in value
