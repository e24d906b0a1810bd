"""What a job's losses so far say about whether its progress can be predicted, as numbers for the classifier.

A run that can be predicted falls along a curve; one that cannot jumps, oscillates, diverges or stands still. The
figures have no unit, so that jobs of all losses and lengths can be compared; without reports they are all NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log

import numpy as np
from numpy.typing import NDArray

from elastic_core.predict.work.convergence import fit

Floats = NDArray[np.float64]

RUN_NAMES = (
    "run_log_reports",
    "run_fall",  # of the loss, relative to the first
    "run_late_fall",  # in the last third, relative to the whole
    "run_rises",  # share of thirty-two stretches that are worse than the one before
    "run_above_best",  # the last loss above the best one, relative to the fall
    "run_roughness",  # between neighbours, relative to the fall
    "run_off_curve",  # from the falling curves that fit best, relative to the fall
    "run_not_finite",  # share of the reports
)
_STRETCHES = 32
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
        return [log(len(run)), *([np.nan] * (len(RUN_NAMES) - 2)), lost]
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
    ]
