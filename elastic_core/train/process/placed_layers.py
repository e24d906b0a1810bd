"""The layers that a placed job's task declares, timed on this machine's processor: where its spec gives no times."""

from __future__ import annotations

from collections.abc import Sequence

from elastic_core.domain import CPU, LayerTimes, PlacedLayer
from elastic_core.placement.measured.layer_times import MeasuredLayer, measure
from elastic_core.spec import JobSpec
from elastic_core.train.task import Task

THREADS = (1, 2)  # that stand for units
REPEATS = 5


def layer_times(task: Task, layers: Sequence[str], spec: JobSpec) -> tuple[PlacedLayer, ...]:
    """Of the base batch, by the names of the layers. Raises `UserError` for one that the forward pass does not call."""
    model, data = task.model(), task.dataset()
    size = len(data)  # type: ignore[arg-type]  # map-style, by the contract of Task
    samples = task.collate([data[index % size] for index in range(spec.batch.base or spec.batch.min)])
    return tuple(_placed(one) for one in measure(model, lambda: task.loss(model, samples), layers, THREADS, REPEATS))


def _placed(layer: MeasuredLayer) -> PlacedLayer:
    return PlacedLayer(
        name=layer.name, kind=layer.kind, weight_bytes=layer.weight_bytes, activation_bytes=layer.activation_bytes,
        on=((CPU, LayerTimes(compute_seconds=layer.seconds[1], alpha=layer.alpha)),),
    )  # fmt: skip
