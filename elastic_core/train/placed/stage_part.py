"""Cutting a model into one rank's part: the layers of its stage, with its rows of their sparse embeddings.

Every rank makes the whole model from the job's seed first, so all stages start from the same weights as one process.
Names of parameters stay those of the whole model. The optimizer was made for the whole model: it is pointed at the
parts, with what it already keeps of them (Adagrad keeps sums from the start).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from elastic_core.errors import UserError
from elastic_core.state.layout.layout import DATA, Placement, Split, TensorMeta
from elastic_core.state.layout.placements import meta_of
from elastic_core.train.layouts import Declared
from elastic_core.train.parallel.partitioning import KERNELS, names_of_groups, skeleton_of
from elastic_core.train.parallel.stages import Stage, names_of_layers
from elastic_core.train.placed.embedding_rows import EmbeddingRows, row_counts
from elastic_core.train.placed.sharded_embedding import ShardedEmbedding, replace_module, sparse_tables
from elastic_core.train.placed.stage_places import StagePlaces


@dataclass(frozen=True, slots=True)
class StagePart:
    """This rank's part. `shapes` and `placements`: of every tensor of `model`'s state, whole, and how it lies."""

    model: Stage
    skeleton: nn.Module
    groups: tuple[tuple[str, ...], ...]  # of the optimizer: the parameters of the whole model in each
    kernels: tuple[Mapping[str, Any], ...]  # as of `ModelPartition`
    shapes: Mapping[str, tuple[int, ...]]
    placements: Mapping[str, Placement]
    of_stage: Placement  # what the ranks of the stage hold whole
    late_updates: bool  # of embeddings

    def place(self, owner: str, tensor: Tensor) -> tuple[TensorMeta, Placement]:
        """As `ModelPartition.place`. State that has not its parameter's shape is whole."""
        meta, live = meta_of(owner, tensor), self.model.state_dict().get(owner)
        if live is None or live.shape != tensor.shape:
            return meta, self.of_stage
        return TensorMeta(meta.dtype, self.shapes[owner]), self.placements[owner]

    @property
    def embeddings(self) -> dict[str, ShardedEmbedding]:
        """By name; in the order of the model."""
        return {name: part for name, part in self.model.named_modules() if isinstance(part, ShardedEmbedding)}


def cut_stage(
    model: nn.Module,
    optimizer: Optimizer,
    places: StagePlaces,
    declared: Declared,
    device: torch.device,
    context: Callable[[], AbstractContextManager[Any]],
) -> StagePart:
    """Raises `UserError` for a task that declares no layers, or other ones than its stages name."""
    names = names_of_layers(model, declared.layers(model))
    if places.stages[-1].layers[1] != len(names):
        raise UserError(
            f"The stages ({'; '.join(map(str, places.stages))}) are for {places.stages[-1].layers[1]} layers, and the "
            f"task declares {len(names)}: {', '.join(names)}. Plan anew, with this task's layers."
        )
    if any(float(values.get("step", 0.0)) > 0 for values in optimizer.state.values()):
        raise UserError("The optimizer has made steps already: give prepare() a new one.")
    skeleton, tables = skeleton_of(model), sparse_tables(model)
    whole = dict(model.named_parameters())
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    groups = names_of_groups(optimizer, {id(parameter): name for name, parameter in whole.items()})
    first, end = places.stages[places.stage].layers
    part = Stage(model, names[first:end], context)
    shared = [name for name, _ in part.named_modules() if name in tables]
    if shared:
        # Else torch warns that nobody has said whether it should check.
        torch.sparse.check_sparse_tensor_invariants.disable()  # type: ignore[no-untyped-call]
    for name in shared:
        replace_module(part, name, nn.Identity())  # rows lie in the host's memory, whatever the device
    part.to(device)
    for name in shared:
        replace_module(part, name, ShardedEmbedding(tables[name], *places.own, places.data_group(), device))
    _repoint(optimizer, whole, part)
    of_stage = Placement((), {DATA: places.members[places.stage]})
    placements = dict.fromkeys(part.state_dict(), of_stage)
    placements |= {f"{name}.weight": _cut_rows(places, tables[name].num_embeddings) for name in shared}
    kernels = tuple({name: group[name] for name in KERNELS if name in group} for group in optimizer.param_groups)
    return StagePart(part, skeleton, groups, kernels, shapes, placements, of_stage, declared.late_embedding_updates)


def _cut_rows(places: StagePlaces, rows: int) -> Placement:
    """On the one axis of all ranks that the layout of a placed job has; ranks of other stages have no row."""
    sizes = [0] * places.layout.world_size
    for rank, count in zip(places.members[places.stage], row_counts(rows, places.counts[places.stage]), strict=True):
        sizes[rank] = count
    return Placement((Split(DATA, 0, tuple(sizes)),))


def _repoint(optimizer: Optimizer, whole: Mapping[str, nn.Parameter], part: Stage) -> None:
    """Each group holds what is here of its parameters, and their state what is here of it."""
    names = {id(parameter): name for name, parameter in whole.items()}
    here = dict(part.named_parameters())
    rows = {
        f"{name}.weight": module.rows for name, module in part.named_modules() if isinstance(module, ShardedEmbedding)
    }
    for group in optimizer.param_groups:
        own = [names[id(parameter)] for parameter in group["params"]]
        group["params"] = [here[name] for name in own if name in here]
    state = {id(parameter): values for parameter, values in optimizer.state.items()}
    optimizer.state.clear()
    for name, parameter in whole.items():
        values = state.get(id(parameter))
        if values is not None and name in here:
            cut = rows.get(name)
            optimizer.state[here[name]] = {
                key: _cut(value, cut, parameter.shape) if isinstance(value, Tensor) else value
                for key, value in values.items()
            }


def _cut(value: Tensor, rows: EmbeddingRows | None, whole: torch.Size) -> Tensor:
    if rows is None or value.shape != whole:
        return value
    return value[rows.offset : rows.offset + len(rows.weight)].clone()
