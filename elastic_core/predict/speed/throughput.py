"""Step time of one job as a function of slots, nodes, resource type, global batch and accumulation.

The form is Pollux's (Qiao et al., OSDI 2021, section 3.2): a step of `a` micro-batches takes

    (a - 1) T_grad + (T_grad^g + T_sync^g)^(1/g)        1 <= g <= 10: how far the exchange hides behind the gradients
    T_grad = (fixed + per_sample * local batch) * slowness[type] * sharing(slots)
    T_sync = 0 on one slot, else sync * exchange[type] * (1 + growth * (slots - 2)); across nodes: times
             between[type], and with a growth of its own

that is its seven parameters (two for the gradients, two for the exchange inside a node, two between nodes, the
overlap), and what differs between types as factors. `sharing` is ours: CPU slots may share what they compute with (four
of them on two cores): (1 + (share * slots)^8)^(1/8) is 1 for few slots and grows with the slots once they share all.

The fit is a maximum a posteriori estimate over the logarithms: non-negative by construction, a sensible answer from
no point at all, and a covariance for the uncertainty. `Experience` of other jobs sharpens the prior: how fast types
are relative to each other, and what leaving a node costs. It promises a good interpolation and a careful
extrapolation, not a truth: see `StepTime.relative_error`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite, sqrt

import numpy as np

from elastic_core.domain import CPU, Layout, Limits, ProfilePoint, ThroughputModel
from elastic_core.predict.speed import layout_speeds
from elastic_core.predict.speed.experience import NOTHING, SHARED, Experience, common_prior
from elastic_core.predict.speed.least_squares import Floats, Hypothesis, minimise, soften
from elastic_core.predict.speed.step_form import BY_TYPE, COMMON, Ints, Parts, Shapes, evaluate, slopes, split

__all__ = ["Floats", "Ints", "StepTime", "fit", "split"]

_UNSEEN_SECONDS = 0.05  # of a job never seen, for its base batch on one slot: only ratios matter to a decision
_MODEL_ERROR = 0.06  # relative, of the form itself: what is left on measured traces however many points there are
_POINT_ERROR = 0.10  # relative, of one report
_COMPUTE_ERROR = 0.15  # relative, of a step's time without its wait for gradients
_SYNC_ERROR, _SYNC_SHARE = 0.25, 0.03  # of that wait: relative to it, and to the step
_SHARED_COST = 7.0  # in residuals squared: what the hypothesis of sharing must explain better
_LARGEST = 60.0  # of a logarithm


@dataclass(frozen=True, eq=False)
class StepTime:
    """A fitted model, ready to be asked. Made from the stored parameters, so decisions can be replayed.

    `theta` are logarithms: `COMMON`, then `BY_TYPE` of each type in turn; `covariance` is theirs, and is not unpacked
    from `spread` before somebody asks: a decision over hundreds of jobs asks for few uncertainties.
    """

    theta: Floats
    spread: Floats | Mapping[str, float]  # the covariance, or the stored parameters that hold it
    types: tuple[str, ...]
    source: str
    factors: Mapping[str, float] = field(default_factory=dict)  # of layouts (`predict.speed.layout_speeds`)

    @cached_property
    def covariance(self) -> Floats:
        if isinstance(self.spread, np.ndarray):
            return self.spread
        size = len(self.theta)
        covariance = np.zeros((size, size))
        for row, column in zip(*np.tril_indices(size), strict=True):
            covariance[row, column] = covariance[column, row] = self.spread.get(f"cov.{row}.{column}", 0.0)
        return covariance

    @staticmethod
    def of(model: ThroughputModel | None, limits: Limits) -> StepTime:
        """The model stored in a snapshot, or the prior for a job without a usable one."""
        if model is not None:
            loaded = _unpack(model)
            if loaded is not None:
                return loaded
        return _prior(limits, NOTHING)

    def seconds(self, num_slots: Ints, num_nodes: Ints, kind: str, batches: Ints, limits: Limits) -> Floats:
        """Step seconds of global batches on slots of one type; the arrays have one shape, the answer too."""
        local, accumulation = split(batches, num_slots, limits.max_local(kind))
        return self.seconds_of(num_slots, num_nodes, kind, local, accumulation)

    def seconds_in(self, layout: Layout, num_nodes: int, kind: str, global_batch: int, limits: Limits) -> float:
        """Step seconds in a layout, which fills as many slots as it has ranks."""
        slots, nodes, batch = np.asarray([[layout.world_size], [num_nodes], [global_batch]])
        return layout_speeds.factor(self.factors, layout) * float(self.seconds(slots, nodes, kind, batch, limits)[0])

    def seconds_of(self, num_slots: Ints, num_nodes: Ints, kind: str, local: Ints, accumulation: Ints) -> Floats:
        """The same for batches that are split already."""
        seconds: Floats = np.exp(self._parts(num_slots, num_nodes, kind, local, accumulation).log_step)
        return seconds

    def compute_seconds(self, num_slots: Ints, num_nodes: Ints, kind: str, batches: Ints, limits: Limits) -> Floats:
        """Of one micro-batch of such a step, without any exchange."""
        local, accumulation = split(batches, num_slots, limits.max_local(kind))
        seconds: Floats = np.exp(self._parts(num_slots, num_nodes, kind, local, accumulation).log_grad)
        return seconds

    def of_point(self, point: ProfilePoint, limits: Limits) -> float:
        """What replicas would take where a point was measured."""
        layout = Layout(data=point.num_slots)
        return self.seconds_in(layout, point.num_nodes, point.type, point.global_batch, limits)

    def _parts(self, num_slots: Ints, num_nodes: Ints, kind: str, local: Ints, accumulation: Ints) -> Parts:
        theta, place = self._theta_with(kind)
        index = np.full(num_slots.shape, place)
        return evaluate(theta, Shapes(num_slots, num_nodes, local, accumulation, index))

    def relative_error(self, num_slots: int, num_nodes: int, kind: str, global_batch: int, limits: Limits) -> float:
        """One standard deviation of the predicted step time, relative to it: 0.1 means give or take a tenth."""
        theta, place = self._theta_with(kind)
        slots, nodes, batch = np.asarray([[num_slots], [num_nodes], [global_batch]])
        local, accumulation = split(batch, slots, limits.max_local(kind))
        index = np.asarray([place])
        slope = slopes(theta, Shapes(slots, nodes, local, accumulation, index))[2][0]
        return float(np.sqrt(slope @ self._covariance_with(kind) @ slope + _MODEL_ERROR**2))

    def _theta_with(self, kind: str) -> tuple[Floats, int]:
        """The parameters, and where the type's are among them.

        A type that neither this job nor any other was seen on is as fast as the typical one, give or take.
        """
        if kind in self.types:
            return self.theta, self.types.index(kind)
        return np.append(self.theta, NOTHING.mean_of(kind)), len(self.types)

    def _covariance_with(self, kind: str) -> Floats:
        if kind in self.types:
            return self.covariance
        size, more = len(self.theta), len(BY_TYPE)
        covariance = np.zeros((size + more, size + more))
        covariance[:size, :size] = self.covariance
        covariance[size:, size:] = np.diag(NOTHING.spread_of(kind) ** 2)
        return covariance


def fit(points: Sequence[ProfilePoint], limits: Limits, experience: Experience = NOTHING) -> ThroughputModel:
    """The model that explains the points best. Never raises on odd data: what cannot be a measurement is passed over.

    `source` is "fitted" when two different configurations or more were measured, else "prior": the prior's shape,
    at the scale of the one configuration measured if there is one. `num_points` counts the points that were used.
    Types that only `experience` knows are in the model too, projected from those that were measured.
    """
    measured = [point for point in points if _sane(point)]
    usable = layout_speeds.as_replicas(measured, limits)
    fitted = _maximum_a_posteriori(usable, _types(usable, limits, experience), experience) if usable else None
    if fitted is None:  # nothing measured, or no finite optimum
        return _pack(_prior(limits, experience), 0)
    configurations = {(p.num_slots, p.num_nodes, p.type, p.local_batch, p.accumulation) for p in usable}
    theta, covariance, types = fitted
    source = "fitted" if len(configurations) > 1 else "prior"
    times = StepTime(theta, covariance, types, source)
    if any(not layout_speeds.is_plain(point.layout) for point in measured):
        times = replace(times, factors=layout_speeds.learn(measured, lambda point: times.of_point(point, limits)))
    return _pack(times, len(usable))


def measured_error(count: int) -> float:
    """One standard deviation of a step time that is known from `count` reports, relative to it."""
    return sqrt(_MODEL_ERROR**2 + _POINT_ERROR**2 / max(count, 1))


def _types(points: Sequence[ProfilePoint], limits: Limits, experience: Experience) -> tuple[str, ...]:
    allowed = {kind for kind in experience.kinds() if not limits.types or kind in limits.types}
    return tuple(sorted({point.type for point in points} | allowed))


def _sane(point: ProfilePoint) -> bool:
    sizes = (point.num_slots, point.num_nodes, point.local_batch, point.accumulation, point.count)
    return 1e-9 < point.step_seconds < 1e9 and all(size >= 1 for size in sizes)


def _compute_part(point: ProfilePoint) -> float | None:
    """Seconds of a step without the wait for gradients, where that was measured."""
    if point.num_slots == 1:
        return point.step_seconds
    compute = point.step_seconds - point.sync_seconds
    known = isfinite(point.sync_seconds) and point.sync_seconds > 0 and compute > 0.02 * point.step_seconds
    return compute if known else None


def _maximum_a_posteriori(
    points: Sequence[ProfilePoint], types: tuple[str, ...], experience: Experience
) -> tuple[Floats, Floats, tuple[str, ...]] | None:
    shapes = Shapes(
        np.asarray([point.num_slots for point in points]),
        np.asarray([point.num_nodes for point in points]),
        np.asarray([point.local_batch for point in points]),
        np.asarray([point.accumulation for point in points]),
        np.asarray([types.index(point.type) for point in points]),
    )
    mean, spread = _prior_of(*_typical(points, experience), types, experience)
    measured = np.log([point.step_seconds for point in points])
    noise = np.sqrt(_MODEL_ERROR**2 + _POINT_ERROR**2 / np.asarray([point.count for point in points]))
    parts = [_compute_part(point) if point.num_slots > 1 else None for point in points]
    rows = np.asarray([i for i, part in enumerate(parts) if part is not None], dtype=np.int64)
    computed = np.log(np.asarray([part for part in parts if part is not None], dtype=np.float64))
    computed = computed - np.log(shapes.accumulation[rows])
    waits_measured = np.asarray([points[i].sync_seconds for i in rows])
    wait_error = _SYNC_SHARE * np.exp(measured[rows]) + _SYNC_ERROR * waits_measured

    repeated = shapes.accumulation[rows]
    noise_of_row, wait_error_of_row = noise[:, None], wait_error[:, None]
    steps, waits, all_rows = len(points), len(points) + len(rows), len(points) + 2 * len(rows)

    def residuals(theta: Floats, mean: Floats, spread: Floats) -> tuple[Floats, Floats]:
        parts, grad_slope, step_slope = slopes(theta, shapes)
        log_grad, grad_slope = parts.log_grad[rows], grad_slope[rows]
        step = np.exp(np.minimum(parts.log_step[rows], _LARGEST))
        grad = np.exp(np.minimum(log_grad, _LARGEST)) * repeated
        off = np.empty(all_rows + len(theta))
        off[:steps] = (parts.log_step - measured) / noise
        off[steps:waits] = (log_grad - computed) / _COMPUTE_ERROR
        off[waits:all_rows] = (step - grad - waits_measured) / wait_error
        off[:all_rows], factor = soften(off[:all_rows])
        off[all_rows:] = (theta - mean) / spread
        slope = np.zeros((len(off), len(theta)))
        slope[:steps] = step_slope / noise_of_row
        slope[steps:waits] = grad_slope / _COMPUTE_ERROR
        slope[waits:all_rows] = (step[:, None] * step_slope[rows] - grad[:, None] * grad_slope) / wait_error_of_row
        slope[:all_rows] *= factor[:, None]
        slope[all_rows:].flat[:: len(theta) + 1] = 1.0 / spread
        return off, slope

    cores = any(point.type == CPU for point in points)
    optimum = minimise(residuals, _hypotheses(mean, spread, shapes) if cores else [Hypothesis(mean, spread)])
    return None if optimum is None else (*optimum, types)


def _hypotheses(mean: Floats, spread: Floats, shapes: Shapes) -> list[Hypothesis]:
    """Slots share nothing; or they do, which takes more slots than two to be told, and clear evidence."""
    alone = Hypothesis(mean, spread)
    if shapes.num_slots.max() <= 2 or len(np.unique(shapes.num_slots)) == 1:
        return [alone]
    at = COMMON.index("share")
    shared = Hypothesis(mean.copy(), spread.copy(), _SHARED_COST)
    shared.mean[at], shared.spread[at] = np.log(SHARED[0]), SHARED[1]
    return [alone, shared]


def _typical(points: Sequence[ProfilePoint], experience: Experience) -> tuple[float, float]:
    """(seconds, samples) of a typical micro-batch: what the prior's ratios are taken from."""
    seconds = [
        np.log((_compute_part(point) or point.step_seconds) / point.accumulation)
        - experience.mean_of(point.type)[BY_TYPE.index("slowness")]
        for point in points
    ]
    return float(np.exp(np.median(seconds))), float(np.median([point.local_batch for point in points]))


def _prior_of(seconds: float, samples: float, types: Sequence[str], experience: Experience) -> tuple[Floats, Floats]:
    common, spread = common_prior()
    mean = common.copy()
    for name in ("fixed", "per_sample", "sync"):
        mean[COMMON.index(name)] += np.log(seconds)
    mean[COMMON.index("per_sample")] -= np.log(samples)
    means, spreads = [experience.mean_of(kind) for kind in types], [experience.spread_of(kind) for kind in types]
    return np.concatenate((mean, *means)), np.concatenate((spread, *spreads))


def _prior(limits: Limits, experience: Experience) -> StepTime:
    types = _types((), limits, experience)
    mean, spread = _prior_of(_UNSEEN_SECONDS, float(max(limits.reference_batch, 1)), types, experience)
    return StepTime(mean, np.diag(spread**2), types, "prior")


def _names(types: Sequence[str]) -> tuple[str, ...]:
    return COMMON + tuple(f"{name}.{kind}" for kind in types for name in BY_TYPE)


def _pack(fitted: StepTime, num_points: int) -> ThroughputModel:
    """Natural values by name, then the covariance of their logarithms: lower triangle, row by row."""
    names = _names(fitted.types)
    params = {name: float(value) for name, value in zip(names, np.exp(fitted.theta), strict=True)}
    rows, columns = np.tril_indices(len(names))
    for row, column in zip(rows, columns, strict=True):
        params[f"cov.{row}.{column}"] = float(fitted.covariance[row, column])
    params.update(fitted.factors)
    return ThroughputModel(params=params, source=fitted.source, num_points=num_points)


def _unpack(model: ThroughputModel) -> StepTime | None:
    """None when the parameters are not such as `_pack` writes (an older version of the platform, say)."""
    types = tuple(name.removeprefix("slowness.") for name in model.params if name.startswith("slowness."))
    names = _names(types)
    values = np.asarray([model.params.get(name, np.nan) for name in names], dtype=np.float64)
    if not (np.isfinite(values).all() and (values > 0).all()):
        return None
    return StepTime(np.log(values), model.params, types, model.source, layout_speeds.stored(model.params))
