"""Optimizer state by parameter NAME, and random state, as tensors and plain JSON: never a pickle.

torch numbers parameters in the order in which they were given; that order may change with the layout, names do
not. Tensors get the names `optim/<parameter>/<key>`; everything else goes to a JSON value in which a tensor is a
reference by name. Hyperparameters of the groups are kept, each group known by its parameters.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from elastic_core.errors import CorruptCheckpoint, UserError
from elastic_core.state.format.rng import capture_rng, restore_rng

__all__ = ["OptimizerState", "capture_rng", "flatten_optimizer", "load_optimizer", "restore_rng"]

NamedParameters = Iterable[tuple[str, nn.Parameter]]

_NOT_OPTIONS = ("params", "param_names")


@dataclass(frozen=True, slots=True)
class OptimizerState:
    """`tensors` by name "optim/...", as the optimizer holds them (not copies); `scalars` is plain JSON."""

    tensors: Mapping[str, Tensor]
    scalars: Mapping[str, Any]


def flatten_optimizer(optimizer: torch.optim.Optimizer, named_parameters: NamedParameters) -> OptimizerState:
    """State and hyperparameters of any torch optimizer over `model.named_parameters()`.

    Raises `UserError` for a parameter without a name, or state that is neither tensor nor plain data.
    """
    groups = _group_names(optimizer, named_parameters)
    names = [name for group in groups for name in group]
    content = optimizer.state_dict()
    tensors: dict[str, Tensor] = {}
    by_parameter = {}
    shared = {}
    for key, values in content["state"].items():
        if isinstance(key, int):
            by_parameter[names[key]] = {k: _pack(v, f"optim/{names[key]}/{k}", tensors) for k, v in values.items()}
        else:
            shared[key] = _pack(values, f"optim/shared/{key}", tensors)
    packed_groups = []
    for i, (group, group_names) in enumerate(zip(content["param_groups"], groups, strict=True)):
        options = {k: _pack(v, f"optim/group-{i}/{k}", tensors) for k, v in group.items() if k not in _NOT_OPTIONS}
        packed_groups.append({"params": group_names, "options": options})
    scalars = {
        "class": type(optimizer).__name__,
        "groups": packed_groups,
        "state": by_parameter,
        "shared": shared,
    }
    return OptimizerState(tensors, scalars)


def load_optimizer(
    optimizer: torch.optim.Optimizer,
    named_parameters: NamedParameters,
    tensors: Mapping[str, Tensor],
    scalars: Mapping[str, Any],
    take: bool = False,
) -> None:
    """Put flattened state into an optimizer of the same class whose groups hold the same parameters, in any order.

    State goes to its parameter's device and keeps its element type (torch's own loading would cast it to the
    parameter's). `tensors` may hold more than is needed. `take`: they become the optimizer's own, uncopied; else it
    shares no memory with them. Raises `UserError` when class or groups differ, `CorruptCheckpoint` when a tensor is
    missing.
    """
    if scalars["class"] != type(optimizer).__name__:
        raise UserError(
            f"The checkpoint's optimizer is {scalars['class']}, the task's is {type(optimizer).__name__}: "
            "use the same one, or start a new job from the checkpoint's weights (warm start)."
        )
    groups = _group_names(optimizer, named_parameters)
    saved_groups = [_matching_group(scalars["groups"], group) for group in groups]
    index_of: dict[str, int] = {}
    for name in (name for group in groups for name in group):
        index_of.setdefault(name, len(index_of))
    state: dict[Any, Any] = {
        index_of[name]: {key: _unpack(value, tensors) for key, value in values.items()}
        for name, values in scalars["state"].items()
    }
    state.update({key: _unpack(value, tensors) for key, value in scalars["shared"].items()})
    param_groups = []
    for names, saved, current in zip(groups, saved_groups, optimizer.param_groups, strict=True):
        options = {key: _unpack(value, tensors) for key, value in saved["options"].items()}
        moved = {key: _to_device_of(current.get(key), value) for key, value in options.items()}
        param_groups.append({**moved, "params": [index_of[name] for name in names]})
    optimizer.load_state_dict({"state": state, "param_groups": param_groups})
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for key, values in state.items():
        owner = parameters[key] if isinstance(key, int) else key
        optimizer.state[owner] = _exact(optimizer.state[owner], values, take)


def _group_names(optimizer: torch.optim.Optimizer, named_parameters: NamedParameters) -> list[list[str]]:
    """Names of the parameters of each group, in the optimizer's order."""
    name_of = {id(parameter): name for name, parameter in named_parameters}
    groups = [[name_of.get(id(parameter), "") for parameter in group["params"]] for group in optimizer.param_groups]
    for i, group in enumerate(groups):
        if "" in group:
            shape = list(optimizer.param_groups[i]["params"][group.index("")].shape)
            raise UserError(
                f"Parameter {group.index('')} of shape {shape} in the optimizer's group {i} is none of the model's: "
                "give the optimizer the parameters of the model that the task returns."
            )
    return groups


def _matching_group(saved: Iterable[Mapping[str, Any]], names: list[str]) -> Mapping[str, Any]:
    closest: set[str] = set()
    for group in saved:
        held = set(group["params"])
        if held == set(names):
            return group
        closest = max(closest, held, key=lambda other: len(other & set(names)))
    raise UserError(
        f"No parameter group of the checkpoint's optimizer holds the same parameters as the task's: only here "
        f"{sorted(set(names) - closest)[:5]}, only in the checkpoint {sorted(closest - set(names))[:5]}."
    )


def _pack(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """JSON of a value. A tensor goes to `tensors`; what JSON does not know is an object that says what it is."""
    if isinstance(value, Tensor):
        tensors[name] = value
        return {"tensor": name}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        packed = [_pack(item, f"{name}.{i}", tensors) for i, item in enumerate(value)]
        return {"tuple": packed} if isinstance(value, tuple) else packed
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _pack(item, f"{name}.{key}", tensors) for key, item in value.items()}}
    raise UserError(
        f"The optimizer keeps a {type(value).__name__} as {name}, which a checkpoint cannot hold. It holds tensors, "
        "numbers, strings, None, and lists, tuples and dictionaries of those."
    )


def _unpack(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    if isinstance(value, list):
        return [_unpack(item, tensors) for item in value]
    if not isinstance(value, Mapping):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        if content not in tensors:
            raise CorruptCheckpoint(f"The checkpoint's optimizer refers to tensor {content}, which is not there.")
        return tensors[content]
    if kind == "float":
        return float(content)
    if kind == "tuple":
        return tuple(_unpack(item, tensors) for item in content)
    return {key: _unpack(item, tensors) for key, item in content.items()}


def _to_device_of(current: Any, value: Any) -> Any:
    both = isinstance(current, Tensor) and isinstance(value, Tensor)
    return value.to(current.device) if both else value


def _exact(loaded: Any, saved: Any, take: bool) -> Any:
    """`loaded` with the element types of `saved`, sharing no memory with it unless it may `take` it."""
    if isinstance(loaded, Tensor):
        moved: Tensor = saved.to(loaded.device) if loaded.dtype != saved.dtype else loaded
        return moved.clone() if not take and moved.data_ptr() == saved.data_ptr() else moved
    if isinstance(loaded, dict):
        return {key: _exact(loaded[key], saved[key], take) for key in loaded}
    if isinstance(loaded, (list, tuple)):
        return type(loaded)(_exact(a, b, take) for a, b in zip(loaded, saved, strict=True))
    return loaded
