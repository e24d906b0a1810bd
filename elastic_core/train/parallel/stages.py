"""A model as a chain of units, and one pipeline stage of it: some units in a row, under their names in the model.

A task names the submodules that its model runs one after another, each on the output of the one before. Stages are
contiguous parts of that chain; names of parameters stay what they are in the whole model, so that a checkpoint does
not know in how many stages it was written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn

from elastic_core.errors import UserError


class Stage(nn.Module):
    """Runs `units`, taken out of `model`. `context` surrounds each forward pass (autocast)."""

    def __init__(
        self,
        model: nn.Module,
        units: Sequence[str],
        context: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        super().__init__()
        self.units = tuple(units)
        self._context = context
        for name in units:
            _graft(self, name, model.get_submodule(name))
        self.train(model.training)

    def forward(self, *inputs: Any) -> Any:
        values: Any = inputs
        with self._context():
            for name in self.units:
                values = self.get_submodule(name)(*(values if isinstance(values, tuple) else (values,)))
        return values


def check_units(model: nn.Module, units: Sequence[str], by: str = "pipeline_units()") -> None:
    """Raises `UserError` unless every parameter and buffer of the model lies in exactly one unit. `by` names them."""
    modules = dict(model.named_modules())
    if missing := [name for name in units if name not in modules]:
        raise UserError(f"{by} names {missing}, which the model does not have. It has {sorted(modules)[1:]}.")
    if twice := [b for a in units for b in units if a != b and b.startswith(f"{a}.")]:
        raise UserError(f"{by} names {twice}, which lie in other units: name each part of the model once.")
    held = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    owner: dict[int, str] = {}
    for name, tensor in held:
        unit = next((unit for unit in units if name.startswith(f"{unit}.")), None)
        if unit is None:
            raise UserError(f"{name} lies in no unit of {by} ({', '.join(units)}): no stage would hold it.")
        if owner.setdefault(id(tensor), unit) != unit:
            raise UserError(
                f"{name} is shared by the units {owner[id(tensor)]} and {unit}: a pipeline cannot hold a parameter in "
                f"two stages. Make them one unit, or do not share it."
            )


def names_of_layers(model: nn.Module, layers: Sequence[nn.Module]) -> tuple[str, ...]:
    """The names in the model of the layers that a task declares for placing. Raises `UserError` for none, for a module
    that the model does not have, and for layers that are no chain (`check_units`)."""
    names = {id(module): name for name, module in model.named_modules() if name}
    if not layers:
        raise UserError(
            "The job may be placed on several types, but its task declares no layers: override Task.layers(model), "
            "which gives the model's layers in the order of its forward pass, or submit it with placement: none."
        )
    strangers = [f"{i} ({type(layer).__name__})" for i, layer in enumerate(layers) if id(layer) not in names]
    if strangers:
        raise UserError(
            f"Task.layers(model) gives layers that are no submodules of the model: {', '.join(strangers)}. Give "
            "modules of the very model that it was called with."
        )
    found = tuple(names[id(layer)] for layer in layers)
    check_units(model, found, "Task.layers(model)")
    return found


def split(model: nn.Module, units: Sequence[str], num_stages: int) -> list[tuple[str, ...]]:
    """The units of each stage: in a row, so that the stage with the most parameters has the fewest possible.

    Of all such splits the one that fills the first stages first. Raises `UserError` for more stages than units.
    """
    if num_stages > len(units):
        raise UserError(f"A model of {len(units)} units ({', '.join(units)}) cannot be split into {num_stages} stages.")
    sizes = [1 + sum(p.numel() for p in model.get_submodule(name).parameters()) for name in units]
    bound = _least_bound(sizes, num_stages)
    stages: list[tuple[str, ...]] = []
    at = 0
    for stage in range(num_stages):
        end, load = at, 0
        last = len(units) - (num_stages - 1 - stage)  # every later stage needs a unit
        while end < last and (end == at or load + sizes[end] <= bound):
            load += sizes[end]
            end += 1
        stages.append(tuple(units[at:end]))
        at = end
    return stages


def _least_bound(sizes: Sequence[int], num_stages: int) -> int:
    """The least possible load of the fullest of `num_stages` contiguous parts, by bisection."""
    low, high = max(sizes), sum(sizes)
    while low < high:
        middle = (low + high) // 2
        parts, load = 1, 0
        for size in sizes:
            if load + size > middle:
                parts, load = parts + 1, 0
            load += size
        low, high = (low, middle) if parts <= num_stages else (middle + 1, high)
    return low


def _graft(root: nn.Module, path: str, module: nn.Module) -> None:
    *parents, name = path.split(".")
    for parent in parents:
        if parent not in dict(root.named_children()):
            root.add_module(parent, nn.Module())
        root = root.get_submodule(parent)
    root.add_module(name, module)
