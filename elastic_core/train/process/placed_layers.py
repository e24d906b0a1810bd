"""The layers that a placed job's task declares, timed on this machine's processor where its spec gives no times."""

from __future__ import annotations

from torch import nn

from elastic_core.domain import CPU, LayerTimes, PlacedLayer
from elastic_core.errors import UserError
from elastic_core.placement.measured.layer_times import MeasuredLayer, measure
from elastic_core.spec import JobSpec
from elastic_core.train.task import Task

THREADS = (1, 2)
REPEATS = 5


def placed_layers(entry: type[Task], task: Task, spec: JobSpec) -> tuple[PlacedLayer, ...]:
    """In the order of the forward pass. Raises `UserError` for a task that declares none, and for what is no submodule
    of its model."""
    model = task.model()
    layers = list(task.layers(model))
    if not layers:
        raise UserError(
            f"placement: {entry.__name__} declares no layers that could be placed. Give it a method layers(self, "
            "model) that returns the model's submodules in the order of its forward pass, or set placement: none."
        )
    names = [_name(entry, model, layer, at) for at, layer in enumerate(layers)]
    if spec.placement_profile is not None and spec.placement_profile.layers:
        return tuple(PlacedLayer(name=name, on=()) for name in names)
    data = task.dataset()
    size = len(data)  # type: ignore[arg-type]  # map-style, by the contract of Task
    batch = spec.batch.base or spec.batch.min
    samples = task.collate([data[index % size] for index in range(batch)])
    return tuple(_measured(one) for one in measure(model, lambda: task.loss(model, samples), names, THREADS, REPEATS))


def _name(entry: type[Task], model: nn.Module, layer: nn.Module, at: int) -> str:
    names: dict[int, str] = {id(module): name for name, module in model.named_modules() if name}
    if id(layer) in names:
        return names[id(layer)]
    raise UserError(f"{entry.__name__}.layers() gives as number {at} a module that is no submodule of the model")


def _measured(layer: MeasuredLayer) -> PlacedLayer:
    return PlacedLayer(
        name=layer.name, kind=layer.kind, weight_bytes=layer.weight_bytes, activation_bytes=layer.activation_bytes,
        on=((CPU, LayerTimes(compute_seconds=layer.seconds[1], alpha=layer.alpha)),),
    )  # fmt: skip
