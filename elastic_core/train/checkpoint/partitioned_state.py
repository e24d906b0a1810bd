"""The state of a partitioned model: which parts a checkpoint needs of a rank, which a rank needs of a checkpoint.

A checkpoint holds whole tensors under global names, made of boxes. What a rank saves are the boxes that its
parameters' placements give it, each written by one of the ranks that hold it; what it reads are the same boxes of
whatever layout wrote them. Optimizer state of a parameter's shape is partitioned as the parameter is, any other is
whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from elastic_core.domain import Slot, from_json, to_json
from elastic_core.errors import CorruptCheckpoint
from elastic_core.state.format.manifest import Manifest
from elastic_core.state.format.optimizer_state import load_optimizer
from elastic_core.state.format.writing import plan_shards
from elastic_core.state.layout.boxes import Box
from elastic_core.state.layout.layout import Mesh, Placement, StateLayout, TensorMeta, slice_box
from elastic_core.state.layout.placements import local_of
from elastic_core.train.checkpoint.collection import Collection
from elastic_core.train.checkpoint.training_state import (
    MODEL,
    OPTIM,
    TrainingState,
    another_model,
    load_scheduler_and_noise,
    move_to,
    of_optimizer,
)
from elastic_core.train.parallel.group import Group
from elastic_core.train.parallel.partitioning import filled, plain_kernels
from elastic_core.train.parallel.places import Places

Scalars = Mapping[str, Any]


class Partition(Protocol):
    """One rank's part of a model: `parallel.partitioning.ModelPartition`, `placed.stage_part.StagePart`,
    `servers.server_parts.ServerPart`."""

    @property
    def skeleton(self) -> nn.Module:
        """The whole model, without its weights."""

    @property
    def kernels(self) -> Sequence[Mapping[str, Any]]:
        """The task's choice of each optimizer group's kernels."""

    def place(self, owner: str, tensor: Tensor) -> tuple[TensorMeta, Placement]:
        """The whole of a tensor that belongs to `owner` of the model, or is it, and how it lies."""


@dataclass
class PartitionedState(TrainingState):
    """`TrainingState` of one rank's part; `model` and `optimizer` are the part's."""

    partition: Partition
    places: Places

    def boxes(self, manifest: Manifest) -> dict[str, Box]:
        """The parts of the checkpoint's tensors that this rank needs; empty parts too, of what it holds no element.

        Raises `UserError` for a checkpoint of another model.
        """
        saved = {name.removeprefix(MODEL) for name in manifest.tensors if name.startswith(MODEL)}
        whole = self.partition.skeleton.state_dict()
        if saved != whole.keys():
            only_here, only_saved = sorted(whole.keys() - saved)[:5], sorted(saved - whole.keys())[:5]
            raise another_model(f"only here {only_here}, only in the checkpoint {only_saved}.")
        needed: dict[str, Box] = {}
        for name, live in self.model.state_dict().items():
            entry, (meta, placement) = manifest.tensors[MODEL + name], self.partition.place(name, live)
            if entry.shape != meta.shape:
                raise another_model(f"{name} is {list(meta.shape)} here and {list(entry.shape)} in the checkpoint.")
            needed[entry.name] = self._box(entry.name, meta.shape, placement, live)
        parameters = dict(self.model.named_parameters())
        for entry in manifest.tensors.values():
            if entry.name.startswith(OPTIM):
                name = owner_of(entry.name)
                owner = parameters.get(name)
                if owner is None:
                    if name not in whole:  # another stage's parameter is not ours
                        needed[entry.name] = Box.whole(entry.shape)
                    continue
                meta, placement = self.partition.place(name, owner)
                as_owner = meta.shape == entry.shape
                box = self._box(entry.name, meta.shape, placement, owner) if as_owner else Box.whole(entry.shape)
                needed[entry.name] = box
        return needed

    def scalars(self, world: int) -> dict[str, Any]:
        """With the kernels that the task chose: those of this layout are no other's business."""
        scalars = super().scalars(world)
        for group, kernels in zip(scalars["optimizer"]["groups"], self.partition.kernels, strict=True):
            group["options"].update(kernels)
        return scalars

    def load(self, tensors: Mapping[str, Tensor], scalars: Scalars, unheld: bool = False) -> None:
        """`tensors` are the parts that `boxes` asked for."""
        self.check_order(scalars)
        self.load_weights(tensors, unheld)
        parameters = dict(self.model.named_parameters())
        load_optimizer(
            self.optimizer,
            parameters.items(),
            {
                name: _partitioned_like(parameters.get(owner_of(name)), part)
                for name, part in of_optimizer(tensors).items()
            },
            of_parameters(scalars["optimizer"], parameters),
            take=True,
        )
        plain_kernels(self.optimizer)
        load_scheduler_and_noise(self, scalars)

    def memory(self) -> dict[str, Tensor]:
        return {MODEL + name: local_of(live) for name, live in self.model.state_dict().items()}

    def parameters(self) -> dict[str, Tensor]:
        named = self.model.named_parameters(remove_duplicate=False)
        return {name: p._local_tensor if isinstance(p, DTensor) else p for name, p in named}  # not a view of it

    def load_weights(self, tensors: Mapping[str, Tensor], unheld: bool = False) -> None:
        if unheld:
            move_to(self.parameters(), tensors)
        for name, live in self.model.state_dict().items():
            local_of(live).copy_(tensors[MODEL + name])

    def collect(self, tensors: Mapping[str, Tensor], group: Group, slots: Sequence[Slot]) -> Collection:
        """Collective: stages tell each other what they hold."""
        metas, placements = {}, {}
        for name, tensor in tensors.items():
            owner = name.removeprefix(MODEL) if name.startswith(MODEL) else owner_of(name)
            metas[name], placements[name] = self.partition.place(owner, tensor)
        if self.places.num_stages > 1:
            metas, placements = told_of_stages(metas, placements, group, self.places)
        layout = StateLayout(Mesh.of(self.places.layout), placements, tuple(slots))
        parts = {name: local_of(tensor) for name, tensor in tensors.items()}
        return Collection(layout, metas, parts, plan_shards(layout, metas)[group.rank])

    def _box(self, name: str, shape: tuple[int, ...], placement: Placement, live: Tensor) -> Box:
        """This rank's part of the tensor `name` of a checkpoint, which lies as `live` does."""
        mesh = Mesh.of(self.places.layout)
        box = slice_box(name, shape, placement.cuts, mesh, mesh.coordinates(self.places.rank))
        return box if box is not None else Box((0,) * len(shape), tuple(local_of(live).shape))


def whole_model(skeleton: nn.Module, tensors: Mapping[str, Tensor]) -> nn.Module:
    """The whole model on the CPU, from a checkpoint's tensors."""
    return filled(skeleton, {name.removeprefix(MODEL): value for name, value in tensors.items()})


def told_of_stages(
    metas: Mapping[str, TensorMeta], placements: Mapping[str, Placement], group: Group, places: Places
) -> tuple[dict[str, TensorMeta], dict[str, Placement]]:
    """Of the tensors of all stages, from those of each. Collective."""
    speaks = places.data == 0 and places.tensor == 0
    held = [[name, to_json(metas[name]), to_json(placements[name])] for name in metas] if speaks else []
    all_metas: dict[str, TensorMeta] = {}
    all_placements: dict[str, Placement] = {}
    for packet in group.gather_bytes(json.dumps(held).encode()):
        for name, meta, placement in json.loads(packet):
            all_metas[name] = from_json(TensorMeta, meta)
            all_placements[name] = _merge_placements(all_placements.get(name), from_json(Placement, placement))
    return all_metas, all_placements


def merged_scalars(parts: Sequence[Scalars], groups: Sequence[Sequence[str]]) -> dict[str, Any]:
    """The scalars of the whole model from those of its stages, in order; `groups` are those of the whole optimizer."""
    if len(parts) == 1:
        return dict(parts[0])
    optimizers = [part["optimizer"] for part in parts]
    merged = []
    for i, names in enumerate(groups):
        held = [optimizer["groups"][i] for optimizer in optimizers]
        options = next((group["options"] for group in held if group["params"]), held[0]["options"])
        merged.append({"params": list(names), "options": options})
    state = {name: value for optimizer in optimizers for name, value in optimizer["state"].items()}
    return {**parts[0], "optimizer": {**optimizers[0], "groups": merged, "state": state}}


def of_parameters(scalars: Scalars, parameters: Iterable[str]) -> dict[str, Any]:
    """What of a whole optimizer's scalars concerns these parameters."""
    names = set(parameters)
    groups = [{**g, "params": [name for name in g["params"] if name in names]} for g in scalars["groups"]]
    return {**scalars, "groups": groups, "state": {name: v for name, v in scalars["state"].items() if name in names}}


def owner_of(name: str) -> str:
    """The parameter that a state tensor named `optim/<parameter>/<key>` belongs to."""
    return name.removeprefix(OPTIM).rpartition("/")[0]


def _partitioned_like(owner: Tensor | None, part: Tensor) -> Tensor:
    """A part of a state tensor as a tensor that is partitioned like its parameter."""
    if not isinstance(owner, DTensor) or part.shape != owner.to_local().shape or part.dim() == 0:
        return part
    return DTensor.from_local(
        part.to(owner.device), owner.device_mesh, owner.placements, run_check=False, shape=owner.shape,
        stride=owner.stride(),
    )  # fmt: skip


def _merge_placements(known: Placement | None, other: Placement) -> Placement:
    if known is None:
        return other
    if known.cuts != other.cuts:
        raise CorruptCheckpoint(f"Two stages hold a tensor partitioned in two ways: {known.cuts} and {other.cuts}.")
    return Placement(known.cuts, {axis: tuple(sorted({*known.at[axis], *other.at[axis]})) for axis in known.at})
