"""Partitioning a model for one rank's place: its pipeline stage, its slices of each layer, its shard of what is left.

In that order, each by torch's own means: `Stage`, `parallelize_module` with the task's plan, FSDP2's `fully_shard`.
Every rank makes the whole model from the job's seed first, so all layouts start from the same weights;
partitioning moves nothing between ranks. The optimizer was made for the whole model: it is pointed at the parts.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import ParallelStyle, parallelize_module
from torch.distributed.tensor.placement_types import _StridedShard
from torch.optim import Optimizer

from elastic_core.errors import UserError
from elastic_core.state.layout.layout import PIPELINE, Placement, TensorMeta
from elastic_core.state.layout.placements import meta_of, placement_of
from elastic_core.train.layouts import Declared, resolve
from elastic_core.train.parallel.places import DATA, TENSOR, Places
from elastic_core.train.parallel.shard_exchange import Column, ExchangedShards
from elastic_core.train.parallel.stages import Stage, check_units, split

KERNELS = ("foreach", "fused")  # options of torch's optimizers that change how they compute, never what


@dataclass(frozen=True, slots=True)
class ModelPartition:
    """This rank's part of a model. `skeleton` is the whole model without its weights (see `skeleton_of`)."""

    model: nn.Module
    skeleton: nn.Module
    stages: tuple[tuple[str, ...], ...]  # units of each; () where there is one stage
    groups: tuple[tuple[str, ...], ...]  # of the optimizer: the parameters of the whole model in each
    exchanges: tuple[ExchangedShards, ...]  # of sharded state
    kernels: tuple[Mapping[str, Any], ...]  # the task's choice of each group's kernels (see `plain_kernels`)
    stage: int

    def place(self, owner: str, tensor: Tensor) -> tuple[TensorMeta, Placement]:
        """The whole of a tensor that belongs to the parameter or buffer `owner`, or is it, and how it lies."""
        return meta_of(owner, tensor), placement_of(owner, tensor, {PIPELINE: (self.stage,)})


def partition_model(
    model: nn.Module,
    optimizer: Optimizer,
    places: Places,
    declared: Declared,
    device: torch.device,
    context: Callable[[], AbstractContextManager[Any]],
) -> ModelPartition:
    """Raises `UserError` for a layout that the task does not declare."""
    plan = declared.tensor_plan(model) if places.layout.tensor > 1 else {}
    units = tuple(declared.units(model)) if places.layout.pipeline > 1 or places.sharded else ()
    _check(places, plan, units)
    skeleton = skeleton_of(model)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    if optimizer.state:
        raise UserError("The optimizer has made steps already: give prepare() a new one.")
    groups = names_of_groups(optimizer, names)
    stages: tuple[tuple[str, ...], ...] = ()
    part = model
    if places.layout.pipeline > 1:
        check_units(model, units)
        stages = tuple(split(model, units, places.layout.pipeline))
        part = Stage(model, stages[places.stage], context)
    if places.layout.tensor > 1:
        _slice(part, plan, places.along(TENSOR))
    part.to(device)
    exchanges = _shard(part, units, places) if places.sharded else ()
    _repoint(optimizer, names, dict(part.named_parameters()))
    kernels = tuple({name: group[name] for name in KERNELS if name in group} for group in optimizer.param_groups)
    plain_kernels(optimizer)
    return ModelPartition(part, skeleton, stages, groups, exchanges, kernels, places.stage)


def skeleton_of(model: nn.Module) -> nn.Module:
    """A copy of the model whose parameters have their shapes and types, but no memory of their own.

    Buffers are copied: those that no checkpoint holds cannot be made again. `filled` gives it weights.
    """
    empty = {
        id(parameter): nn.Parameter(
            torch.zeros((), dtype=parameter.dtype).expand(parameter.shape), requires_grad=parameter.requires_grad
        )
        for parameter in model.parameters()
    }
    return copy.deepcopy(model, memo=dict(empty))


def filled(skeleton: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """A copy of the skeleton with these weights, which it holds from now on."""
    model = skeleton_of(skeleton)
    model.load_state_dict(weights, assign=True)
    return model


def _check(places: Places, plan: Mapping[str, ParallelStyle], units: Sequence[str]) -> None:
    layout = places.layout
    if layout.tensor > 1 and not plan:
        raise UserError(f"The layout {layout} cuts layers, but the task has no tensor_plan(): use tensor 1.")
    if layout.pipeline > 1 and not units:
        raise UserError(f"The layout {layout} has stages, but the task has no pipeline_units(): use pipeline 1.")


def _slice(part: nn.Module, plan: Mapping[str, ParallelStyle], mesh: DeviceMesh) -> None:
    styles = resolve(plan, part)
    if styles:  # a stage may hold nothing that the plan names
        # No source rank: each rank takes its slices of the weights that all made alike.
        parallelize_module(part, mesh, styles, src_data_rank=None)


def _shard(part: nn.Module, units: Sequence[str], places: Places) -> tuple[ExchangedShards, ...]:
    """Each unit that lies here is gathered and exchanged by itself, and what lies in none together."""
    # A pipeline keeps parameters gathered from a step's first forward pass to its last backward pass: replicas with
    # other numbers of micro-batches would gather in another order, and gathering again for each costs more.
    keep = places.layout.pipeline > 1
    mesh, inside = places.along(DATA), dict(part.named_modules())
    seen: set[int] = set()
    exchanges = []
    for module in [*(inside[unit] for unit in units if unit in inside), part]:
        columns = [_column(p, places) for p in module.parameters() if p.requires_grad and id(p) not in seen]
        seen.update(id(parameter) for parameter in module.parameters())
        fully_shard(module, mesh=mesh, reshard_after_forward=False if keep else None if module is part else True)
        seen.update(id(parameter) for parameter in module.parameters())  # they are other objects now
        assert isinstance(module, FSDPModule)
        exchanges.append(ExchangedShards(columns))
        module.set_custom_reduce_scatter(exchanges[-1])
        # The runtime has weighted every sample already: gradients are added up, not averaged.
        module.set_gradient_divide_factor(1.0)
        module.set_force_sum_reduction_for_comms(True)
    return tuple(exchanges)


def _column(parameter: nn.Parameter, places: Places) -> Column:
    shape = parameter.to_local().shape if isinstance(parameter, DTensor) else parameter.shape
    rows, *rest = shape or (1,)
    return Column(rows, math.prod(rest), counts_norm(parameter, places))


def counts_norm(parameter: Tensor, places: Places) -> bool:
    """Whether this rank's part of a parameter is counted in norms over a replica's ranks: every element once."""
    sliced = isinstance(parameter, DTensor) and any(
        isinstance(placement, (Shard, _StridedShard)) and axis == TENSOR
        for axis, placement in zip(parameter.device_mesh.mesh_dim_names or (), parameter.placements, strict=True)
    )
    return sliced or places.tensor == 0


def names_of_groups(optimizer: Optimizer, names: Mapping[int, str]) -> tuple[tuple[str, ...], ...]:
    """The parameters in each group; `names` by identity. Raises `UserError` for one without a name."""
    unknown = [list(p.shape) for group in optimizer.param_groups for p in group["params"] if id(p) not in names]
    if unknown:
        raise UserError(
            f"The optimizer holds {len(unknown)} parameters that are none of the model's, of shapes {unknown[:5]}: "
            f"give it the parameters of the model that the task returns."
        )
    return tuple(tuple(names[id(p)] for p in group["params"]) for group in optimizer.param_groups)


def _repoint(optimizer: Optimizer, names: Mapping[int, str], parts: Mapping[str, nn.Parameter]) -> None:
    for group in optimizer.param_groups:
        group_names = [names[id(parameter)] for parameter in group["params"]]
        group["params"] = [parts[name] for name in group_names if name in parts]


def plain_kernels(optimizer: Optimizer) -> None:
    """torch's kernels over many parameters take tensors of one kind: where a model has partitioned and whole
    parameters, or parameters on several meshes, each is stepped by itself.
    """
    kinds = {
        (parameter.device_mesh if isinstance(parameter, DTensor) else None)
        for group in optimizer.param_groups for parameter in group["params"]
    }  # fmt: skip
    if len(kinds) > 1:
        for group in optimizer.param_groups:
            group.update({name: False for name in KERNELS if name in group})
