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
from functools import cached_property, lru_cache
from math import sqrt

import numpy as np

from elastic_core.domain import Layout, Limits, ProfilePoint, ThroughputModel
from elastic_core.predict.speed import layout_speeds, served_steps
from elastic_core.predict.speed.experience import NOTHING, Experience
from elastic_core.predict.speed.kept_exchange import own_points
from elastic_core.predict.speed.parameter_server import ParameterServerTime
from elastic_core.predict.speed.posterior import MODEL_ERROR, POINT_ERROR, Question, estimates, prior_of
from elastic_core.predict.speed.step_form import BY_TYPE, COMMON, Floats, Ints, Parts, Shapes, evaluate, slopes, split

__all__ = ["Floats", "Ints", "Measured", "StepTime", "fit", "fit_all", "packed", "relative_errors", "split", "stacked"]

_UNSEEN_SECONDS = 0.05  # of a job never seen, for its base batch on one slot: only ratios matter to a decision

# (points, limits, experience): what a model is fitted to
Measured = tuple[Sequence[ProfilePoint], Limits, Experience]


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
    num_points: int = 0  # that it was fitted to
    served: ParameterServerTime | None = None  # with parameter servers, of a job that may have some

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
                return loaded if loaded.served is not None else _with_servers(loaded, (), limits)
        return _with_servers(_prior(limits, NOTHING), (), limits)

    def seconds(self, num_slots: Ints, num_nodes: Ints, kind: str, batches: Ints, limits: Limits) -> Floats:
        """Step seconds of global batches on slots of one type; the arrays have one shape, the answer too."""
        local, accumulation = split(batches, num_slots, limits.max_local(kind))
        return self.seconds_of(num_slots, num_nodes, kind, local, accumulation)

    def seconds_in(self, layout: Layout, num_nodes: int, kind: str, global_batch: int, limits: Limits) -> float:
        """Step seconds in a layout, which fills as many slots as it has ranks."""
        if layout.servers:
            assert self.served is not None, "the job's limits say that it may have servers"
            return self.served.seconds(layout.data, layout.servers, global_batch, self.speed_of(kind))
        slots, nodes, batch = np.asarray([[layout.world_size], [num_nodes], [global_batch]])
        return layout_speeds.factor(self.factors, layout) * float(self.seconds(slots, nodes, kind, batch, limits)[0])

    def factor_in(self, layout: Layout, num_nodes: int, kind: str, global_batch: int, limits: Limits) -> float:
        """Step time in a layout, relative to replicas on as many slots. It depends on the rest with servers alone."""
        if not layout.servers:
            return layout_speeds.factor(self.factors, layout)
        replicas = self.seconds_in(Layout(data=layout.world_size), num_nodes, kind, global_batch, limits)
        return self.seconds_in(layout, num_nodes, kind, global_batch, limits) / replicas

    def speed_of(self, kind: str) -> float:
        """Of a slot of this type, relative to one as fast as the model's typical one."""
        return float(np.exp(-self.theta_on(kind)[len(COMMON) + BY_TYPE.index("slowness")]))

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
        slots, nodes, batch = np.asarray([[num_slots], [num_nodes], [global_batch]])
        local, accumulation = split(batch, slots, limits.max_local(kind))
        return float(relative_errors([self], [kind], slots, nodes, local, accumulation)[0])

    def theta_on(self, kind: str) -> Floats:
        """The parameters of steps on one type: `COMMON`, and `BY_TYPE` of it."""
        theta, place = self._theta_with(kind)
        return np.asarray(theta[_parameters_on(place)])

    def covariance_on(self, kind: str) -> Floats:
        """Of `theta_on`."""
        at = _parameters_on(self.types.index(kind) if kind in self.types else len(self.types))
        return np.asarray(self._covariance_with(kind)[at[:, None], at])

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


@lru_cache(maxsize=256)
def _parameters_on(place: int) -> Ints:
    first = len(COMMON) + len(BY_TYPE) * place
    return np.asarray([*range(len(COMMON)), *range(first, first + len(BY_TYPE))])


def stacked(models: Sequence[StepTime], kinds: tuple[str, ...]) -> Floats:
    """The parameters of many models over the same types, (models, parameters), for `step_form.evaluate`."""
    return np.stack(
        [
            times.theta
            if times.types == kinds
            else np.concatenate([times.theta[: len(COMMON)], *(times.theta_on(kind)[len(COMMON) :] for kind in kinds)])
            for times in models
        ]
    )


def relative_errors(
    models: Sequence[StepTime], kinds: Sequence[str], num_slots: Ints, num_nodes: Ints, local: Ints, accumulation: Ints
) -> Floats:  # fmt: skip
    """`StepTime.relative_error` of many, one entry each: of a step of `models[i]` on slots of type `kinds[i]`."""
    theta = np.stack([times.theta_on(kind) for times, kind in zip(models, kinds, strict=True)])
    covariance = np.stack([times.covariance_on(kind) for times, kind in zip(models, kinds, strict=True)])
    sizes = (of[:, None] for of in (num_slots, num_nodes, local, accumulation, np.zeros_like(num_slots)))
    slope = slopes(theta, Shapes(*sizes))[2]
    variance = (slope @ covariance @ slope.transpose(0, 2, 1))[:, 0, 0]
    return np.asarray(np.sqrt(variance + MODEL_ERROR**2))


def fit(points: Sequence[ProfilePoint], limits: Limits, experience: Experience = NOTHING) -> ThroughputModel:
    """The model of one job, as it is stored; see `fit_all`. `num_points` counts the points that were used."""
    return packed(fit_all([(points, limits, experience)])[0])


def fit_all(jobs: Sequence[Measured]) -> list[StepTime]:
    """The models that explain the points of each job best. Never raises on odd data: what cannot be a measurement is
    passed over.

    `source` is "fitted" when two different configurations or more were measured, else "prior": the prior's shape,
    at the scale of the one configuration measured if there is one. Types that only `experience` knows are in the model
    too, projected from those that were measured. A model does not depend on the other jobs.
    """
    sane = [[point for point in own_points(points, limits) if _sane(point)] for points, limits, _ in jobs]
    usable = [layout_speeds.as_replicas(points, limits) for points, (_, limits, _) in zip(sane, jobs, strict=True)]
    asked = [row for row, points in enumerate(usable) if points]
    parameters = estimates([Question(usable[row], _types(usable[row], *jobs[row][1:]), jobs[row][2]) for row in asked])
    fitted = dict(zip(asked, parameters, strict=True))
    models = []
    for row, (_, limits, experience) in enumerate(jobs):
        answer = fitted.get(row)
        if answer is None:  # nothing measured, or no finite optimum
            models.append(_with_servers(_prior(limits, experience), (), limits))
        else:
            types = _types(usable[row], limits, experience)
            times = StepTime(*answer, types, _source(usable[row]), num_points=len(usable[row]))
            models.append(_with_servers(_with_layouts(times, sane[row], limits), sane[row], limits))
    return models


def _source(points: Sequence[ProfilePoint]) -> str:
    configurations = {(p.num_slots, p.num_nodes, p.type, p.local_batch, p.accumulation) for p in points}
    return "fitted" if len(configurations) > 1 else "prior"


def _with_layouts(times: StepTime, points: Sequence[ProfilePoint], limits: Limits) -> StepTime:
    if all(layout_speeds.is_plain(point.layout) for point in points):
        return times
    return replace(times, factors=layout_speeds.learn(points, lambda point: times.of_point(point, limits)))


def _with_servers(times: StepTime, points: Sequence[ProfilePoint], limits: Limits) -> StepTime:
    if not any(cut.servers for cut in limits.cuts):
        return times

    def unseen(num_slots: int, global_batch: int) -> tuple[float, float]:
        slots, nodes, batches = np.asarray([[num_slots], [1], [global_batch]])
        kind = times.types[0] if times.types else ""
        whole = float(times.seconds(slots, nodes, kind, batches, limits)[0])
        computing = float(times.compute_seconds(slots, nodes, kind, batches, limits)[0])
        return computing, max(whole - computing, 0.0)

    return replace(times, served=served_steps.learn(points, times.speed_of, unseen, limits.reference_batch))


def measured_error(count: int) -> float:
    """One standard deviation of a step time that is known from `count` reports, relative to it."""
    return sqrt(MODEL_ERROR**2 + POINT_ERROR**2 / max(count, 1))


def _types(points: Sequence[ProfilePoint], limits: Limits, experience: Experience) -> tuple[str, ...]:
    allowed = {kind for kind in experience.kinds() if not limits.types or kind in limits.types}
    return tuple(sorted({point.type for point in points} | allowed))


def _sane(point: ProfilePoint) -> bool:
    sizes = (point.num_slots, point.num_nodes, point.local_batch, point.accumulation, point.count)
    return 1e-9 < point.step_seconds < 1e9 and all(size >= 1 for size in sizes)


def _prior(limits: Limits, experience: Experience) -> StepTime:
    types = _types((), limits, experience)
    mean, spread = prior_of(_UNSEEN_SECONDS, float(max(limits.reference_batch, 1)), types, experience)
    return StepTime(mean, np.diag(spread**2), types, "prior")


def _names(types: Sequence[str]) -> tuple[str, ...]:
    return COMMON + tuple(f"{name}.{kind}" for kind in types for name in BY_TYPE)


def packed(times: StepTime) -> ThroughputModel:
    """Natural values by name, then the covariance of their logarithms: lower triangle, row by row."""
    names, rows, columns = _stored_names(times.types)
    values = [*np.exp(times.theta).tolist(), *times.covariance[rows, columns].tolist()]
    params = dict(zip(names, values, strict=True)) | dict(times.factors) | served_steps.stored(times.served)
    return ThroughputModel(params=params, source=times.source, num_points=times.num_points)


@lru_cache(maxsize=256)
def _stored_names(types: tuple[str, ...]) -> tuple[tuple[str, ...], Ints, Ints]:
    """(all names in order, rows and columns of the covariance that is stored)."""
    names = _names(types)
    rows, columns = np.tril_indices(len(names))
    of_covariance = (f"cov.{row}.{column}" for row, column in zip(rows.tolist(), columns.tolist(), strict=True))
    return (*names, *of_covariance), rows, columns


def _unpack(model: ThroughputModel) -> StepTime | None:
    """None when the parameters are not such as `_pack` writes (an older version of the platform, say)."""
    types = tuple(name.removeprefix("slowness.") for name in model.params if name.startswith("slowness."))
    names = _names(types)
    values = np.asarray([model.params.get(name, np.nan) for name in names], dtype=np.float64)
    if not (np.isfinite(values).all() and (values > 0).all()):
        return None
    return StepTime(
        np.log(values), model.params, types, model.source, layout_speeds.stored(model.params), model.num_points,
        served_steps.loaded(model.params),
    )  # fmt: skip
