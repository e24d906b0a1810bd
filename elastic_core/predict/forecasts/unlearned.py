"""What is said of a job's work where too little history is there to learn from: the stated prior, and its loss curve.

The prior is Lindy's law up to the limit (`work_position.lindy`). Where there is a target loss and a curve, the curve
counts `CURVE_SHARE`. Nothing here needs scikit-learn.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from elastic_core.domain import WorkForecast
from elastic_core.predict.forecasts.run_features import Progress, curve_totals
from elastic_core.predict.forecasts.work_position import PROBABILITIES, lindy, position, total_at
from elastic_core.protocol.records import JobDescription

Floats = NDArray[np.float64]

CURVE_SHARE = 0.7


def unlearned_forecasts(jobs: Sequence[JobDescription], progress: Sequence[Progress]) -> list[WorkForecast]:
    """What is said where too little history is there to learn from."""
    places, with_curve = unlearned_places(jobs, progress)
    return [
        work_forecast(job, so_far, row, "loss curve" if curve else "prior")
        for job, so_far, row, curve in zip(jobs, progress, places, with_curve, strict=True)
    ]


def unlearned_totals(job: JobDescription, progress: Progress, probabilities: Sequence[float]) -> tuple[Floats, bool]:
    """Quantiles of the total where no history says anything, and whether a loss curve took part.

    Lindy's law up to the limit; where there is a target and a curve, the geometric mean, quantile by quantile, of that
    and of what the curve says, which counts `CURVE_SHARE`.
    """
    prior = lindy(np.asarray(probabilities), progress.done, float(job.most_samples))
    curve, _ = curve_totals(job, progress, probabilities)
    if not np.isfinite(curve).all():
        return prior, False
    return curve**CURVE_SHARE * prior ** (1.0 - CURVE_SHARE), True


def unlearned_places(jobs: Sequence[JobDescription], progress: Sequence[Progress]) -> tuple[Floats, list[bool]]:
    """`unlearned_totals` on the scale of `work_position`, and which of them a loss curve took part in."""
    answers = [unlearned_totals(job, so_far, PROBABILITIES) for job, so_far in zip(jobs, progress, strict=True)]
    rows = [
        position(totals, so_far.done, float(job.most_samples))
        for (totals, _), job, so_far in zip(answers, jobs, progress, strict=True)
    ]
    return np.asarray(rows).reshape(-1, len(PROBABILITIES)), [with_curve for _, with_curve in answers]


def work_forecast(job: JobDescription, progress: Progress, places: Floats, source: str) -> WorkForecast:
    totals = np.maximum.accumulate(total_at(places, progress.done, float(job.most_samples)))
    return WorkForecast(probabilities=PROBABILITIES, totals=tuple(map(float, totals)), source=source)
