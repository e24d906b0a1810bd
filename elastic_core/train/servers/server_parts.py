"""Making a worker's or a server's part of a model that all ranks have made alike.

A worker keeps the whole model and steps none of it: its optimizer holds no parameter, only the rates that it would
step with. A server keeps its rows of parameters in the model's own modules, under their names, drops everything else,
and its optimizer steps those rows, with what it keeps of them from the start (Adagrad does).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from elastic_core.errors import UserError
from elastic_core.state.layout.layout import DATA, Placement, TensorMeta
from elastic_core.state.layout.placements import meta_of
from elastic_core.train.parallel.partitioning import KERNELS, names_of_groups, skeleton_of
from elastic_core.train.servers.kept_rows import Rows, holders_of, may_be_cut, placement_of_rows, rows_by_server
from elastic_core.train.servers.server_places import ServerPlaces


@dataclass(frozen=True, slots=True)
class Kept:
    """Of the whole model: which rows of each parameter every server keeps; those that are trained are exchanged."""

    rows: Mapping[str, Rows]
    shapes: Mapping[str, tuple[int, ...]]
    dtypes: Mapping[str, torch.dtype]
    trained: tuple[str, ...]  # names, in the order of the model

    def part(self, name: str, whole: Tensor, server: int) -> Tensor:
        """The view of a tensor of this parameter's shape that a server keeps; empty where it keeps none."""
        rows = self.rows[name]
        if not self.shapes[name]:
            return whole.reshape(1)[: rows[server]]
        start = sum(rows[:server])
        return whole[start : start + rows[server]]


@dataclass(frozen=True, slots=True)
class WorkerPart:
    """`model` is whole. `parameters`: of it, by name, without buffers."""

    model: nn.Module
    kept: Kept
    groups: tuple[tuple[str, ...], ...]  # of the optimizer: the parameters of the model in each
    of_workers: Placement
    skeleton: None = None  # nobody has to make the whole model here

    def place(self, owner: str, tensor: Tensor) -> tuple[TensorMeta, Placement]:
        """Of a buffer: all workers hold it."""
        return meta_of(owner, tensor), self.of_workers


@dataclass(frozen=True, slots=True)
class ServerPart:
    """This server's rows: `model` has the modules of the whole one, and in them only what is kept here. A
    `checkpoint.partitioned_state.Partition`."""

    model: nn.Module
    kept: Kept
    skeleton: nn.Module
    groups: tuple[tuple[str, ...], ...]
    kernels: tuple[Mapping[str, Any], ...]
    places: ServerPlaces

    def place(self, owner: str, tensor: Tensor) -> tuple[TensorMeta, Placement]:
        """State of the shape of this server's part lies as the parameter does; any other is whole with its keepers."""
        workers = self.places.layout.data
        meta, rows, shape = meta_of(owner, tensor), self.kept.rows.get(owner), self.kept.shapes.get(owner, ())
        if rows is None:  # of a whole group of parameters
            return meta, Placement((), {DATA: tuple(self.places.servers)})
        live = self.model.state_dict().get(owner)
        if live is None or live.shape != tensor.shape:
            return meta, Placement((), {DATA: holders_of(rows, workers)})
        return TensorMeta(meta.dtype, shape), placement_of_rows(rows, shape, workers)


def worker_part(model: nn.Module, optimizer: Optimizer, places: ServerPlaces, device: torch.device) -> WorkerPart:
    """Raises `UserError` for an optimizer that has made steps, or holds what the model does not."""
    kept, groups = _begin(model, optimizer, places)
    model.to(device)
    optimizer.state.clear()
    for group in optimizer.param_groups:
        group["params"] = []
    return WorkerPart(model, kept, groups, Placement((), {DATA: tuple(places.workers)}))


def server_part(model: nn.Module, optimizer: Optimizer, places: ServerPlaces) -> ServerPart:
    """Raises as `worker_part` does."""
    kept, groups = _begin(model, optimizer, places)
    assert places.server is not None
    skeleton = skeleton_of(model)
    parts = _drop_the_rest(model, kept, places.server)
    whole_state = {id(parameter): values for parameter, values in optimizer.state.items()}
    optimizer.state.clear()
    for group in optimizer.param_groups:
        before, group["params"] = group["params"], []
        for parameter in before:
            name, part = parts[id(parameter)]
            if part is None:
                continue
            group["params"].append(part)
            if id(parameter) in whole_state:
                optimizer.state[part] = {
                    key: kept.part(name, value, places.server).clone()
                    if isinstance(value, Tensor) and value.shape == parameter.shape and value.dim() > 0
                    else value
                    for key, value in whole_state[id(parameter)].items()
                }
    kernels = tuple({name: group[name] for name in KERNELS if name in group} for group in optimizer.param_groups)
    return ServerPart(model, kept, skeleton, groups, kernels, places)


def _begin(model: nn.Module, optimizer: Optimizer, places: ServerPlaces) -> tuple[Kept, tuple[tuple[str, ...], ...]]:
    if any(float(values.get("step", 0.0)) > 0 for values in optimizer.state.values()):
        raise UserError("The optimizer has made steps already: give prepare() a new one.")
    parameters = dict(model.named_parameters())
    groups = names_of_groups(optimizer, {id(parameter): name for name, parameter in parameters.items()})
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    rows = rows_by_server(shapes, places.layout.servers, cuts=may_be_cut(optimizer))
    for name, parameter in model.named_parameters(remove_duplicate=False):  # a tied one lies where its first name does
        first = next(known for known, same in parameters.items() if same is parameter)
        rows[name], shapes[name] = rows[first], shapes[first]
    trained = tuple(name for name, parameter in parameters.items() if parameter.requires_grad)
    dtypes = {name: parameter.dtype for name, parameter in parameters.items()}
    return Kept(rows, shapes, dtypes, trained), groups


def _drop_the_rest(model: nn.Module, kept: Kept, server: int) -> dict[int, tuple[str, nn.Parameter | None]]:
    """What becomes of each parameter of the whole model, by its identity: its name, and this server's part of it."""
    parts: dict[int, tuple[str, nn.Parameter | None]] = {}
    for prefix, module in model.named_modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is None:
                continue
            full = f"{prefix}.{name}" if prefix else name
            if id(parameter) not in parts:
                rows = kept.part(full, parameter.detach(), server)
                here = kept.rows[full][server] > 0
                cut = rows.clone() if kept.shapes[full] else parameter.detach().clone()
                parts[id(parameter)] = full, nn.Parameter(cut, parameter.requires_grad) if here else None
            part = parts[id(parameter)][1]
            if part is None:
                del module._parameters[name]
            else:
                module._parameters[name] = part
        for name in list(module._buffers):
            del module._buffers[name]
            module._non_persistent_buffers_set.discard(name)
    return parts
