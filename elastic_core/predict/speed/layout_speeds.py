"""What cutting a model costs: the step time of a layout relative to data-parallel replicas on as many slots.

Each cut (tensor and pipeline sizes, shards or replicas) has one factor. Before anything is measured it is a guess from
what each axis must pay: tensor parallelism two exchanges a layer, so an eighth more for each doubling; a pipeline its
idle stages, (p - 1) of 4p + p - 1 (Narayanan et al. 2021, section 2.2, at the runtime's 4p micro-batches); shards half
as much exchange again (Rajbhandari et al. 2020, section 7, arXiv 1910.02054). Measurements of the same job in layouts
and without them are compared point by point, and the factor is the mean of guess and measurements, weighed by their
errors. A job that only ever ran cut keeps the guess: the replicas' model is fitted to what was measured, divided by it.
Parameter servers are another form, not a factor (`predict.speed.served_steps`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import exp, log, log2

from elastic_core.domain import Layout, Limits, ProfilePoint

_TENSOR, _SHARDS = 0.12, 0.08  # logarithms: of each doubling of the tensor size, of shards
_GUESS_ERROR = 0.5  # of a guess, as a logarithm
_POINT_ERROR = 0.15  # of the comparison of one point with the model of replicas
_NAME = "cut."

Factors = Mapping[str, float]


def name_of(layout: Layout) -> str:
    """The parameter of a layout's cut, whatever the number of replicas; of one with servers, their number."""
    if layout.servers:
        return f"{_NAME}servers.{layout.servers}"
    shards = ".sharded" if layout.sharded else ""
    return f"{_NAME}{layout.tensor}.{layout.pipeline}{shards}"


def guess(layout: Layout) -> float:
    """The factor of a cut that was never measured; 1 for plain replicas."""
    stages = layout.pipeline
    bubble = log(1 + (stages - 1) / (4 * stages))
    return exp(_TENSOR * log2(layout.tensor) + bubble + (_SHARDS if layout.sharded else 0.0))


def factor(factors: Factors, layout: Layout) -> float:
    """Step time in a layout without servers, relative to replicas on as many slots."""
    if is_plain(layout):
        return 1.0
    return factors.get(name_of(layout), guess(layout))


def is_plain(layout: Layout | None) -> bool:
    """Replicas of the whole model."""
    return layout is None or (layout.model_size == 1 and not layout.sharded and not layout.servers)


def as_replicas(points: Sequence[ProfilePoint], limits: Limits) -> list[ProfilePoint]:
    """What the model of replicas is fitted to: the points without layouts, or where there are none, all of them
    as replicas would have measured them if the guesses were right."""
    plain = [point for point in points if is_plain(point.layout)]
    return plain or [_replica(point, limits) for point in points]


def learn(points: Sequence[ProfilePoint], replicas: Callable[[ProfilePoint], float]) -> dict[str, float]:
    """Factors by name of the cuts that were measured. `replicas`: step seconds on the slots of a point, uncut.

    Normal posterior of the logarithm: the guess and every report of the cut weighed by their inverse variances.
    """
    sums: dict[str, tuple[float, float]] = {}
    for point in points:
        if point.layout is None or is_plain(point.layout) or point.layout.servers:
            continue
        name = name_of(point.layout)
        total, weight = sums.get(name) or (log(guess(point.layout)) / _GUESS_ERROR**2, 1 / _GUESS_ERROR**2)
        precision = min(point.count, 10) / _POINT_ERROR**2
        sums[name] = (total + precision * log(point.step_seconds / replicas(point)), weight + precision)
    return {name: exp(total / weight) for name, (total, weight) in sums.items()}


def stored(params: Mapping[str, float]) -> dict[str, float]:
    """The factors among a stored model's parameters."""
    return {name: value for name, value in params.items() if name.startswith(_NAME)}


def _replica(point: ProfilePoint, limits: Limits) -> ProfilePoint:
    assert point.layout is not None
    if point.layout.servers:  # as if as many replicas as workers took as long
        return replace(point, layout=None, num_slots=point.layout.data)
    share = -(-point.global_batch // point.num_slots)
    most = limits.max_local(point.type)
    accumulation = 1 if most is None else -(-share // most)
    relative = guess(point.layout)
    return replace(
        point,
        layout=None,
        local_batch=-(-share // accumulation),
        accumulation=accumulation,
        step_seconds=point.step_seconds / relative,
        sync_seconds=point.sync_seconds / relative,
    )
