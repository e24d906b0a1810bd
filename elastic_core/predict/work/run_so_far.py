"""What a job's losses so far say about whether its progress can be predicted, as numbers for the classifier.

A run that can be predicted falls along a curve; one that cannot jumps, oscillates, diverges or stands still. The
figures have no unit, so that jobs of all losses and lengths can be compared; without reports they are all NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import numpy as np
from numpy.typing import NDArray

from elastic_core.predict.work.convergence import LossCurve, fit

Floats = NDArray[np.float64]

# Were the run so many times as long and fell as its curve says: how surely would its curve have named that end?
# 1.9 and 3.8: from half and from a quarter of a run to the middle of its last tenth (`predictability.hindsight`).
AHEAD = (1.9, 3.8)

RUN_NAMES = (
    "run_log_reports",
    "run_fall",  # of the loss, relative to the first
    "run_late_fall",  # in the last third, relative to the whole
    "run_rises",  # share of thirty-two stretches that are worse than the one before
    "run_above_best",  # the last loss above the best one, relative to the fall
    "run_roughness",  # between neighbours, relative to the fall
    "run_off_curve",  # from the falling curves that fit best, relative to the fall
    "run_not_finite",  # share of the reports
    *(f"run_ahead_{name}_{factor:g}" for factor in AHEAD for name in ("low", "median", "high", "reaches", "fall")),
    "run_last_fall",  # of the middle third to the last one, in spreads of one report
)
_LOST = RUN_NAMES.index("run_not_finite")
_STRETCHES = 32
_FAR = 20.0
_MOST = 512  # reports that are looked at; of more, evenly spread ones


def table(runs: Sequence[Sequence[float]]) -> Floats:
    """One row a run (its losses in order), one column a name of `RUN_NAMES`."""
    return np.asarray([_features(run) for run in runs], dtype=np.float64).reshape(-1, len(RUN_NAMES))


def _features(run: Sequence[float]) -> list[float]:
    if len(run) < 4:
        return [np.nan] * len(RUN_NAMES)
    taken = np.asarray(run, dtype=np.float64)[np.linspace(0, len(run) - 1, min(len(run), _MOST)).astype(np.int64)]
    losses = np.clip(taken[np.isfinite(taken)], 0.0, 1e12)
    lost = 1.0 - len(losses) / len(taken)
    if len(losses) < 4:
        return [log(len(run)), *([np.nan] * (_LOST - 1)), lost, *([np.nan] * (len(RUN_NAMES) - _LOST - 1))]
    means = np.asarray([part.mean() for part in np.array_split(losses, min(_STRETCHES, len(losses)))])
    tiny = 1e-9 * max(float(np.abs(means).max()), 1e-9)
    spread = float(np.ptp(means)) + tiny
    curve = fit([(float(k), float(loss)) for k, loss in enumerate(losses, 1)])
    return [
        log(len(run)),
        float(means[0] - means[-1]) / (float(means[0]) + tiny),
        float(means[-max(len(means) // 3, 1) - 1] - means[-1]) / spread,
        float((np.diff(means) > 0).mean()),
        float(means[-1] - means.min()) / spread,
        float(np.median(np.abs(np.diff(losses)))) / spread,
        (curve.error if curve is not None else np.nan) / spread,
        lost,
        *_ahead(curve),
        _last_fall(losses),
    ]


def _ahead(curve: LossCurve | None) -> list[float]:
    """Of each of `AHEAD`: logarithms of (low, median, high) of the steps to where the curve will be then, relative to
    the steps so far, cut at `_FAR`; the probability that it gets there; and how far it falls, in errors of the curve.
    """
    if curve is None:
        return [np.nan] * (5 * len(AHEAD))
    features = []
    now = curve.loss(curve.seen)[0]
    for factor in AHEAD:
        target = curve.loss(factor * curve.seen)[0]
        steps = curve.steps_to(target)
        bounds = np.clip(np.asarray([steps.low, steps.median, steps.high]) / curve.seen, 1.0 / _FAR, _FAR)
        fall = (now - target) / max(curve.error, 1e-12 + 1e-9 * abs(now))
        features += [*map(float, np.log(bounds)), steps.reachable, min(fall, 1e6)]
    return features


def _last_fall(losses: Floats) -> float:
    middle, last = losses[len(losses) // 3 : 2 * len(losses) // 3], losses[2 * len(losses) // 3 :]
    spread = float(np.median(np.abs(np.diff(losses)))) + 1e-12
    return float(np.clip((middle.mean() - last.mean()) / spread, -1e6, 1e6))
