"""Step times of workers with parameter servers, learnt beside those of replicas of the same job.

The form is that of `predict.speed.parameter_server`. Runs with servers teach all of it. Runs of replicas teach what
computing takes, and make a guess of the exchange: an all-reduce over n ranks moves (n - 1) / n of what a push and a
pull between one worker and one server move (Patarasu and Yuan 2009). A job that never had servers is asked with an
exchange one standard deviation below the guess (an upper confidence bound of its speed, Auer et al. 2002): it tries
them where that beats what was measured of replicas, and what is measured then counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from math import exp
from statistics import median

from elastic_core.domain import Layout, ProfilePoint
from elastic_core.predict.speed.parameter_server import ParameterServerTime, PsPoint, fit

_NAME = "served."
_GUESS_ERROR = 1.0  # one standard deviation of a guessed exchange, as a logarithm

Speed = Callable[[str], float]
"""Of a type of slot, relative to a slot as fast as the model's typical one."""


def learn(
    points: Sequence[ProfilePoint], speed: Speed, unseen: Callable[[int, int], tuple[float, float]], batch: int
) -> ParameterServerTime:
    """`points`: of replicas and with servers. `unseen`: of a job that was never measured, what (slots, global batch)
    is thought to take, computing and exchanging; `batch`: at which it is asked."""
    served = [_ps_point(point, speed) for point in points if point.layout is not None and point.layout.servers]
    plain = [point for point in points if point.layout is None or point.layout == Layout(data=point.num_slots)]
    computed = [_computed(point, speed) for point in plain]
    exchanges = [
        point.sync_seconds * point.num_slots / (point.num_slots - 1)
        for point in plain
        if point.num_slots > 1 and point.sync_seconds > 0
    ]
    if not plain and not served:
        sizes = [(1, batch), (1, max(1, batch // 2))]
        computed = [
            PsPoint(workers=slots, servers=slots, global_batch=samples, step_seconds=unseen(slots, samples)[0])
            for slots, samples in sizes
        ]
        exchanges = [2.0 * unseen(2, batch)[1]]
    guess = median(exchanges) if exchanges else None
    if guess is not None and plain and not served:
        guess *= exp(-_GUESS_ERROR)
    return fit(served, computed=computed, exchange=guess)


def stored(served: ParameterServerTime | None) -> dict[str, float]:
    """As parameters of a stored model."""
    if served is None:
        return {}
    return {f"{_NAME}{name.name}": float(getattr(served, name.name)) for name in fields(served)}


def loaded(params: Mapping[str, float]) -> ParameterServerTime | None:
    """None where the model was stored without."""
    values = {name.name: params.get(f"{_NAME}{name.name}") for name in fields(ParameterServerTime)}
    known = {name: value for name, value in values.items() if value is not None}
    if len(known) < len(values):
        return None
    return ParameterServerTime(**{**known, "num_points": int(known["num_points"])})  # type: ignore[arg-type]


def _ps_point(point: ProfilePoint, speed: Speed) -> PsPoint:
    assert point.layout is not None
    return PsPoint(
        workers=point.layout.data, servers=point.layout.servers, global_batch=point.global_batch,
        step_seconds=point.step_seconds, worker_speed=speed(point.type),
        compute_seconds=point.step_seconds - point.sync_seconds, count=point.count,
    )  # fmt: skip


def _computed(point: ProfilePoint, speed: Speed) -> PsPoint:
    """What replicas computed; where the wait was not told apart, the whole step."""
    computing = point.step_seconds - (point.sync_seconds if point.num_slots > 1 else 0.0)
    return PsPoint(
        workers=point.num_slots, servers=point.num_slots, global_batch=point.global_batch,
        step_seconds=computing if computing > 0 else point.step_seconds, worker_speed=speed(point.type),
        count=point.count,
    )  # fmt: skip
