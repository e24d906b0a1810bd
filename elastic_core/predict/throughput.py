"""Step time of one job as a function of slots, nodes, resource type, global batch and accumulation.

The form is Pollux's (Qiao et al., OSDI 2021, section 3.2): a step of `a` micro-batches takes

    (a - 1) T_grad + (T_grad^g + T_sync^g)^(1/g)        1 <= g <= 10: how far the exchange hides behind the gradients
    T_grad = (fixed + per_sample * local batch) * slowness[type] * sharing(slots)
    T_sync = 0 on one slot, else start + per_slot * (slots - 2); one pair of parameters inside a node, one between

`sharing` is ours: slots may share what they compute with (four CPU slots on two cores), so T_grad grows as
(1 + (share * slots)^8)^(1/8), which is 1 for few slots and proportional to the slots once they share everything.

The fit is a maximum a posteriori estimate over the logarithms: non-negative by construction, a sensible answer
from no point at all, and a covariance for the uncertainty. It promises a good interpolation and a careful
extrapolation, not a truth: see `StepTime.relative_error`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from elastic_core.domain import Limits, ProfilePoint, ThroughputModel

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

# The prior, as medians relative to the compute time of a typical micro-batch, and as spread of the logarithm.
_PRIOR: Mapping[str, tuple[float, float]] = {
    "compute_fixed": (0.2, 1.5),
    "compute_per_sample": (0.8, 1.0),  # relative to the time divided by the typical local batch
    "sync_local": (0.1, 1.5),
    "sync_local_per_slot": (0.01, 1.5),
    "sync_node": (0.3, 1.5),
    "sync_node_per_slot": (0.02, 1.5),
    "overlap": (1.0, 0.7),  # g - 1, no unit
    "share": (0.03, 1.5),  # no unit: 0.5 when two slots already use all of what they share
}
_NAMES = tuple(_PRIOR)
_NO_UNIT = ("overlap", "share")
_SHARING_POWER = 8.0
_MAX_OVERLAP = 9.0
_SLOWNESS_SPREAD = 1.0
_UNSEEN_SECONDS = 0.05  # of a job never seen, for its smallest batch on one slot: only ratios matter to a decision
_MODEL_ERROR = 0.06  # relative, of the form itself: what is left on measured traces however many points there are
_POINT_ERROR = 0.10  # relative, of one report
_SYNC_ERROR = 0.15


def split(global_batch: Ints, num_slots: Ints, max_local: int | None) -> tuple[Ints, Ints]:
    """(local batch, accumulation) of the fullest rank: as few micro-batches as fit, all of one size. Broadcasts."""
    share = -(-global_batch // num_slots)
    accumulation = np.ones_like(share) if max_local is None else -(-share // max_local)
    return -(-share // accumulation), accumulation


@dataclass(frozen=True, slots=True)
class Shapes:
    """Configurations as parallel arrays, one entry each. `type_index` points into the fit's list of types."""

    num_slots: Ints
    num_nodes: Ints
    local_batch: Ints
    accumulation: Ints
    type_index: Ints


def _compute_and_step(theta: Floats, shapes: Shapes) -> tuple[Floats, Floats]:
    """Seconds of one micro-batch and of the whole step; `theta` are logarithms: `_NAMES`, then slowness by type."""
    values = np.exp(np.clip(theta, -40.0, 40.0))
    fixed, per_sample, local, local_slot, node, node_slot, overlap, share = values[: len(_NAMES)]
    sharing = (1.0 + (share * shapes.num_slots) ** _SHARING_POWER) ** (1.0 / _SHARING_POWER)
    grad = (fixed + per_sample * shapes.local_batch) * values[len(_NAMES) :][shapes.type_index] * sharing
    more = np.maximum(shapes.num_slots - 2.0, 0.0)
    sync = np.where(shapes.num_nodes > 1, node + node_slot * more, local + local_slot * more)
    sync = np.where(shapes.num_slots > 1, sync, 0.0)
    gamma = 1.0 + min(overlap, _MAX_OVERLAP)
    longer, shorter = np.maximum(grad, sync), np.minimum(grad, sync)  # factored out: no overflow in the power
    together = longer * (1.0 + (shorter / longer) ** gamma) ** (1.0 / gamma)
    return grad, (shapes.accumulation - 1.0) * grad + together


@dataclass(frozen=True, slots=True)
class StepTime:
    """A fitted model, ready to be asked. Made from the stored parameters, so decisions can be replayed."""

    theta: Floats
    covariance: Floats
    types: tuple[str, ...]
    source: str

    @staticmethod
    def of(model: ThroughputModel | None, limits: Limits) -> StepTime:
        """The model stored in a snapshot, or the prior for a job without a usable one."""
        if model is not None:
            loaded = _unpack(model)
            if loaded is not None:
                return loaded
        return _prior(limits)

    def seconds(self, num_slots: Ints, num_nodes: Ints, kind: str, batches: Ints, limits: Limits) -> Floats:
        """Step seconds of global batches on slots of one type; the arrays have one shape, the answer too."""
        return _compute_and_step(self._theta(), self._shapes(num_slots, num_nodes, kind, batches, limits))[1]

    def relative_error(self, num_slots: int, num_nodes: int, kind: str, global_batch: int, limits: Limits) -> float:
        """One standard deviation of the predicted step time, relative to it: 0.1 means give or take a tenth."""
        slots, nodes, batch = np.asarray([[num_slots], [num_nodes], [global_batch]])
        shapes = self._shapes(slots, nodes, kind, batch, limits)
        base = np.log(_compute_and_step(self._theta(), shapes)[1])[0]
        slope = np.empty(len(self.theta))
        for i in range(len(self.theta)):
            moved = self._theta()
            moved[i] += 1e-4
            slope[i] = (np.log(_compute_and_step(moved, shapes)[1])[0] - base) / 1e-4
        unseen = 0.0 if kind in self.types else _SLOWNESS_SPREAD**2
        return float(np.sqrt(slope @ self.covariance @ slope + _MODEL_ERROR**2 + unseen))

    def _theta(self) -> Floats:
        return np.append(self.theta, 0.0)  # the last one: a type never seen is as fast as the typical one

    def _shapes(self, num_slots: Ints, num_nodes: Ints, kind: str, batches: Ints, limits: Limits) -> Shapes:
        index = self.types.index(kind) if kind in self.types else len(self.types)
        local, accumulation = split(batches, num_slots, limits.max_local(kind))
        kinds = np.full(num_slots.shape, index)
        return Shapes(num_slots, num_nodes, local, accumulation, kinds)


def fit(points: Sequence[ProfilePoint], limits: Limits) -> ThroughputModel:
    """The model that explains the points best. Never raises on odd data: what cannot be a measurement is passed over.

    `source` is "fitted" when two different configurations or more were measured, else "prior": the prior's shape,
    at the scale of the one configuration measured if there is one. `num_points` counts the points that were used.
    """
    usable = [point for point in points if _sane(point)]
    if not usable:
        return _pack(_prior(limits), 0)
    fitted = _maximum_a_posteriori(usable)
    if fitted is None:
        return _pack(_prior(limits), 0)
    configurations = {(p.num_slots, p.num_nodes, p.type, p.local_batch, p.accumulation) for p in usable}
    theta, covariance, types = fitted
    source = "fitted" if len(configurations) > 1 else "prior"
    return _pack(StepTime(theta, covariance, types, source), len(usable))


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


def _maximum_a_posteriori(points: Sequence[ProfilePoint]) -> tuple[Floats, Floats, tuple[str, ...]] | None:
    types = tuple(sorted({point.type for point in points}))
    shapes = Shapes(
        np.asarray([point.num_slots for point in points]),
        np.asarray([point.num_nodes for point in points]),
        np.asarray([point.local_batch for point in points]),
        np.asarray([point.accumulation for point in points]),
        np.asarray([types.index(point.type) for point in points]),
    )
    mean, spread = _prior_of(*_typical(points), num_types=len(types))
    measured = np.log([point.step_seconds for point in points])
    noise = np.sqrt(_MODEL_ERROR**2 + _POINT_ERROR**2 / np.asarray([point.count for point in points]))
    parts = [_compute_part(point) if point.num_slots > 1 else None for point in points]
    rows = np.asarray([i for i, part in enumerate(parts) if part is not None], dtype=np.int64)
    computed = np.log([part for part in parts if part is not None])

    def residuals(theta: Floats) -> Floats:
        grad, step = _compute_and_step(theta, shapes)
        compute = np.log(grad[rows] * shapes.accumulation[rows])
        return np.concatenate(
            (
                _soften((np.log(step) - measured) / noise),
                _soften((compute - computed) / _SYNC_ERROR),
                (theta - mean) / spread,
            )
        )

    try:
        best = min((_solve(residuals, mean, start) for start in (0.03, 0.5)), key=lambda found: float(found.cost))
        covariance = np.linalg.inv(best.jac.T @ best.jac)
    except (ValueError, np.linalg.LinAlgError):  # no finite optimum: the caller falls back to the prior and says so
        return None
    if not (np.isfinite(best.x).all() and np.isfinite(covariance).all()):
        return None
    return best.x, covariance, types


def _solve(residuals: Any, mean: Floats, share: float) -> Any:
    """From the prior with another start for `share`, where the posterior may have two tops."""
    start = mean.copy()
    start[_NAMES.index("share")] = np.log(share)
    return least_squares(residuals, start, method="lm", xtol=1e-6, ftol=1e-6, max_nfev=2000)


def _soften(scaled: Floats) -> Floats:
    """Residuals whose squares are the soft-L1 loss, so that one absurd point cannot pull the rest along."""
    return np.sign(scaled) * np.sqrt(2.0 * (np.sqrt(1.0 + scaled**2) - 1.0))


def _typical(points: Sequence[ProfilePoint]) -> tuple[float, float]:
    """(seconds, samples) of a typical micro-batch: what the prior's ratios are taken from."""
    seconds = [(_compute_part(point) or point.step_seconds) / point.accumulation for point in points]
    return float(np.median(seconds)), float(np.median([point.local_batch for point in points]))


def _prior_of(seconds: float, samples: float, num_types: int) -> tuple[Floats, Floats]:
    mean = [ratio if name in _NO_UNIT else ratio * seconds for name, (ratio, _) in _PRIOR.items()]
    mean[_NAMES.index("compute_per_sample")] /= samples
    spread = [spread for _, spread in _PRIOR.values()]
    return np.log(mean + [1.0] * num_types), np.asarray(spread + [_SLOWNESS_SPREAD] * num_types)


def _prior(limits: Limits) -> StepTime:
    mean, spread = _prior_of(_UNSEEN_SECONDS, float(limits.min_batch), num_types=0)
    return StepTime(mean, np.diag(spread**2), (), "prior")


def _pack(fitted: StepTime, num_points: int) -> ThroughputModel:
    """Natural values by name, then the covariance of their logarithms: lower triangle, row by row."""
    names = _NAMES + tuple(f"slowness.{kind}" for kind in fitted.types)
    params = {name: float(value) for name, value in zip(names, np.exp(fitted.theta), strict=True)}
    rows, columns = np.tril_indices(len(names))
    for row, column in zip(rows, columns, strict=True):
        params[f"cov.{row}.{column}"] = float(fitted.covariance[row, column])
    return ThroughputModel(params=params, source=fitted.source, num_points=num_points)


def _unpack(model: ThroughputModel) -> StepTime | None:
    """None when the parameters are not such as `_pack` writes (an older version of the platform, say)."""
    types = tuple(name.removeprefix("slowness.") for name in model.params if name.startswith("slowness."))
    names = _NAMES + tuple(f"slowness.{kind}" for kind in types)
    values = np.asarray([model.params.get(name, np.nan) for name in names], dtype=np.float64)
    if not (np.isfinite(values).all() and (values > 0).all()):
        return None
    size = len(names)
    covariance = np.zeros((size, size))
    for row, column in zip(*np.tril_indices(size), strict=True):
        covariance[row, column] = covariance[column, row] = model.params.get(f"cov.{row}.{column}", 0.0)
    return StepTime(np.log(values), covariance, types, model.source)
