"""A run so far as a row of numbers: where its curve says that the end is, and other ways to see it coming.

Ends are positions (`work_position`), so that a learner that is shown several guesses of one end needs only to weigh
them. Reports are averaged over stretches first: how densely a run reports says how long it was in the records, and
must not be learnt from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import isfinite, nan

import numpy as np
from numpy.typing import NDArray

from elastic_core.predict.forecasts.job_features import safe_log
from elastic_core.predict.forecasts.work_position import position
from elastic_core.predict.work import convergence
from elastic_core.predict.work.run_so_far import RUN_NAMES
from elastic_core.predict.work.run_so_far import table as run_table
from elastic_core.protocol.records import JobDescription, Reports

Floats = NDArray[np.float64]

CURVE_PROBABILITIES = (0.1, 0.25, 0.5, 0.75, 0.9)
END_NAMES = (  # what a job's own end is, as far as it can be seen from here
    "share_of_most",
    "log_passes",
    "log_steps",
    "loss_over_target",
    "loss_over_first",
    *(f"curve_{probability:g}" for probability in CURVE_PROBABILITIES),
    "curve_reaches",
    "line_of_last_half",
    "line_of_last_quarter",
    "evaluations",
    "evaluations_since_best",
    "earliest_stop",
    "metric_over_best",
    "metric_fall",
)
PROGRESS_NAMES = (*END_NAMES, *RUN_NAMES[1:])  # but the number of reports
STRETCHES = 24


@dataclass(frozen=True, slots=True)
class Progress:
    """What a job has done, and what it has reported until then."""

    done: float  # samples
    losses: Reports = ()
    metrics: Reports = ()

    @staticmethod
    def until(done: float, losses: Reports, metrics: Reports = ()) -> Progress:
        """Of a longer record only what was there at `done`."""
        return Progress(
            done, tuple(pair for pair in losses if pair[0] <= done), tuple(pair for pair in metrics if pair[0] <= done)
        )


def progress_table(jobs: Sequence[JobDescription], progress: Sequence[Progress]) -> Floats:
    """One row a job, one column a name of `PROGRESS_NAMES`."""
    plain = run_table([averaged_losses(so_far) for so_far in progress])[:, 1:]
    return np.hstack((end_table(jobs, progress), plain))


def end_table(jobs: Sequence[JobDescription], progress: Sequence[Progress]) -> Floats:
    """One row a job, one column a name of `END_NAMES`."""
    rows = [
        [*_stage(job, so_far), *_loss(job, so_far, averaged(so_far.losses)), *_patience(job, so_far)]
        for job, so_far in zip(jobs, progress, strict=True)
    ]
    return np.asarray(rows, dtype=np.float64).reshape(-1, len(END_NAMES))


def averaged_losses(progress: Progress) -> list[float]:
    """The losses of `averaged`: what a run looks like, however densely it reports."""
    return [loss for _, loss in averaged(progress.losses)]


def averaged(losses: Reports) -> list[tuple[float, float]]:
    """Means over stretches of equally many reports, each at the end of its stretch; what is not finite is left out."""
    usable = [(float(at), loss) for at, loss in losses if isfinite(loss)]
    if len(usable) <= STRETCHES:
        return usable
    bounds = np.linspace(0, len(usable), STRETCHES + 1).astype(np.int64)
    means = [usable[start:end] for start, end in pairwise(bounds)]
    return [(part[-1][0], sum(loss for _, loss in part) / len(part)) for part in means]


def curve_totals(job: JobDescription, progress: Progress, probabilities: Sequence[float]) -> tuple[Floats, float]:
    """Quantiles of the total as the loss curve alone says, given that the target was not reached yet; and the
    probability that the target is in reach before the limit. NaN where there is no target or no curve.
    """
    unknown = np.full(len(probabilities), nan), nan
    curve = _curve(progress.losses) if job.target_loss is not None else None
    if curve is None or job.target_loss is None:
        return unknown
    steps, weights = curve.distribution(job.target_loss)
    ahead = steps > progress.done
    if weights[ahead].sum() < 1e-3:  # nearly all curves say that it was reached already: then any moment
        return np.full(len(probabilities), progress.done), 1.0
    steps, weights = np.minimum(steps[ahead], job.most_samples), weights[ahead] / weights[ahead].sum()
    order = np.argsort(steps, kind="stable")
    reached = np.cumsum(weights[order]) - 0.5 * weights[order]
    return np.interp(probabilities, reached, steps[order]), float(weights[steps < job.most_samples].sum())


@lru_cache(maxsize=512)  # a decision asks twice of each job: the features and the prior
def _curve(losses: Reports) -> convergence.LossCurve | None:
    return convergence.fit(losses)


def _stage(job: JobDescription, progress: Progress) -> list[float]:
    return [
        progress.done / job.most_samples,
        safe_log(progress.done / max(job.dataset_samples, 1)),
        safe_log(progress.done / job.requested_batch),
    ]


def _loss(job: JobDescription, progress: Progress, means: Sequence[tuple[float, float]]) -> list[float]:
    curve, reaches = curve_totals(job, progress, CURVE_PROBABILITIES)
    target, most = job.target_loss, float(job.most_samples)
    last, first = (means[-1][1], means[0][1]) if means else (nan, nan)
    return [
        safe_log(last / target) if target is not None else nan,
        safe_log(last / first) if first > 0 else nan,
        *position(curve, progress.done, most),
        reaches,
        *(_line(means[-max(len(means) // part, 2) :], target, progress.done, most) for part in (2, 4)),
    ]


def _line(means: Sequence[tuple[float, float]], target: float | None, done: float, most: float) -> float:
    """Where the line through these logarithms of losses comes down to the target's."""
    if target is None or len(means) < 3 or means[-1][1] <= 0:
        return nan
    at = np.asarray([at for at, _ in means])
    losses = np.log(np.maximum([loss for _, loss in means], 1e-12))
    centred = at - at.mean()
    slope = float(centred @ losses / max(float(centred @ centred), 1e-300))
    over = float(losses.mean()) - np.log(target)
    total = float(at.mean()) - over / slope if slope < 0 else np.inf
    return float(position(total, done, most))


def _patience(job: JobDescription, progress: Progress) -> list[float]:
    values = [(at, value if job.metric_mode == "min" else -value) for at, value in progress.metrics if isfinite(value)]
    if job.patience is None or not values:
        return [nan] * 5
    best_place = int(np.argmin([value for _, value in values]))
    best, last, first = values[best_place][1], values[-1][1], values[0][1]
    since = len(values) - 1 - best_place
    every = values[-1][0] / len(values)
    earliest = values[-1][0] + max(job.patience - since, 1) * every
    spread = max(abs(first), abs(best), 1e-12)
    return [
        float(len(values)),
        float(since),
        float(position(earliest, progress.done, float(job.most_samples))),
        (last - best) / spread,
        (first - best) / spread,
    ]
