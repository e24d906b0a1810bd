"""How well the loss curve has forecast the run so far: the question of `hindsight`, asked of what is already known.

The curve is fitted to the first half and to the first seven tenths of the reports, and judged by the rest of them: did
its interval hold the present, how far off was its loss, how much does it now say otherwise about the far end? Then the
curve of all reports: which floors it thinks possible, and what its interval would be at the job's limit. Losses are
averaged over stretches first (`run_features.averaged`). No figure has a unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import numpy as np
from numpy.typing import NDArray

from elastic_core.predict.forecasts.run_features import Progress, averaged
from elastic_core.predict.predictability.hindsight import LAST
from elastic_core.predict.work.convergence import LossCurve, StepsEstimate, fit
from elastic_core.protocol.records import JobDescription

Floats = NDArray[np.float64]

SEEN = (0.5, 0.7)  # of the run so far
FAR_END = 4.0  # times as long as the run so far
CHECK_NAMES = (
    *(f"check_{name}_{share:g}" for share in SEEN for name in
      ("low", "median", "high", "reaches", "missed", "missed_in_errors", "width", "moved")),
    "check_floor_low", "check_floor", "check_floor_high", "check_decays", "check_curves", "check_error", "check_noise",
    "check_limit_low", "check_limit_high", "check_limit_reaches", "check_limit_floors", "check_limit_fall",
    "check_limit_fall_in_errors", "check_limit_ahead",
)  # fmt: skip
_LEAST = 8  # stretches, so that half of them have a curve
_FACTOR = 20.0  # ends farther off than this are one
_ERRORS = 50.0
_MOST = 1e12  # larger losses are no more wrong
_MIDDLE_OF_TAIL = 1.0 - LAST / 2  # of the run: where its last losses are, in the mean

Points = Sequence[tuple[float, float]]


def check_table(jobs: Sequence[JobDescription], progress: Sequence[Progress]) -> Floats:
    """One row a job, one column a name of `CHECK_NAMES`; NaN of a run that has reported too little."""
    rows = [
        _row([(at, min(max(loss, 0.0), _MOST)) for at, loss in averaged(so_far.losses)], float(job.most_samples))
        for job, so_far in zip(jobs, progress, strict=True)
    ]
    return np.asarray(rows, dtype=np.float64).reshape(-1, len(CHECK_NAMES))


def _row(points: Points, most: float) -> list[float]:
    curve = fit(points) if len(points) >= _LEAST else None
    if curve is None:
        return [np.nan] * len(CHECK_NAMES)
    losses = np.asarray([loss for _, loss in points])
    span = max(float(np.ptp(losses)), 1e-9 * float(np.abs(losses).max()), 1e-12)
    checks = [figure for share in SEEN for figure in _check(points, share, curve, span)]
    noise = float(np.median(np.abs(np.diff(losses)))) / span
    return [*checks, *_floors(curve, span), noise, *_at_limit(curve, most, span)]


def _check(points: Points, share: float, now: LossCurve, span: float) -> list[float]:
    """What the curve of this share of the run said of its end, which is the present."""
    end = points[-1][0]
    before = fit([(at, loss) for at, loss in points if at <= share * end])
    if before is None:
        return [np.nan] * 8
    tail = [loss for at, loss in points if at >= (1.0 - LAST) * end]
    found = sum(tail) / len(tail)
    said, low, high = before.loss(_MIDDLE_OF_TAIL * end)
    moved = now.loss(FAR_END * end)[0] - before.loss(FAR_END * end)[0]
    return [
        *_bounds(before.steps_to(found), end),
        (found - said) / span,
        _within((found - said) / max(before.error, 1e-3 * span), _ERRORS),
        (high - low) / span,
        moved / span,
    ]


def _bounds(estimate: StepsEstimate, end: float) -> list[float]:
    """Logarithms relative to the true end, and the probability of coming there."""
    ends = (estimate.low, estimate.median, estimate.high)
    return [*(_within(log(max(at / end, 1e-12)), log(_FACTOR)) for at in ends), estimate.reachable]


def _floors(curve: LossCurve, span: float) -> list[float]:
    """Relative to the loss now: floors; how much of the curves decays; how many curves there are, in effect; error."""
    order = np.argsort(curve.floor, kind="stable")
    reached = np.cumsum(curve.weight[order])
    floors = [curve.floor[order][min(int(np.searchsorted(reached, q)), len(order) - 1)] for q in (0.1, 0.5, 0.9)]
    last = max(curve.loss(curve.seen)[0], 1e-12)
    decays, curves = float(curve.weight[curve.form == 1].sum()), 1.0 / float((curve.weight**2).sum())
    return [*(_within(float(floor) / last, _FACTOR) for floor in floors), decays, curves, curve.error / span]


def _at_limit(curve: LossCurve, most: float, span: float) -> list[float]:
    """Were the run to end at its limit, with the loss that the curve expects there."""
    end = max(_MIDDLE_OF_TAIL * most, curve.seen)
    target, last = curve.loss(end)[0], curve.loss(curve.seen)[0]
    low, _, high, reaches = _bounds(curve.steps_to(target), most)
    fall = last - target
    errors = _within(fall / max(curve.error, 1e-3 * span), 4 * _ERRORS)
    floors = float(curve.weight[curve.floor >= target].sum())
    return [low, high, reaches, floors, fall / span, errors, log(end / curve.seen)]


def _within(value: float, most: float) -> float:
    return min(max(value, -most), most)
