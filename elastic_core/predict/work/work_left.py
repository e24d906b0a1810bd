"""The work that one job still has, as an 80 % interval around a median, and the finish time that follows from it.

What a policy decided by comes first (`domain.WorkLeft`): what is stored, shown and graded is what was decided on. Where
it weighs no work, what is declared is exact, and what is not is the raw forecast: a distribution of the whole work,
known by some quantiles
(`domain.WorkForecast`); since the job is not done yet, its work exceeds what it has done, and the distribution is
truncated there. So a median never falls as a job goes on. Beyond the last quantile the survival falls as a power of the
work (Lindy's law, as in `work_left_predictor`), below the first it is linear. Without any forecast the job's own
progress is all that is known (`work_left_predictor` with no history).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, expm1, hypot, inf, isfinite, log, log1p

from elastic_core.domain import JobView, Quantiles, WorkForecast, WorkLeft
from elastic_core.predict.work import work_left_predictor
from elastic_core.protocol.forecasts import DECLARED

PROBABILITIES = 0.1, 0.5, 0.9
DEVIATIONS = 1.2816  # standard deviations of a normal error between its median and either end of an 80 % interval
PRIOR = "prior"
_TAIL = 1.5  # power of the survival beyond the last quantile
_LEAST = 1e-9


def work_left(job: JobView, decided: WorkLeft | None = None) -> tuple[Quantiles, str]:
    """(low, median, high) in the unit of the job's work, and where they come from.

    `decided`: what the policy decided by.
    """
    if decided is not None:
        return decided.quantiles, decided.source
    done = float(job.done_samples)
    if job.total_samples is not None:
        return (job.remaining_samples,) * 3, DECLARED
    forecast = job.work_forecast
    if forecast is not None:
        totals, source = _truncated(forecast, done), forecast.source
    else:
        guess = work_left_predictor.estimate((), (), done, scale=1000.0 * job.limits.min_batch)
        totals, source = (guess.low, guess.median, guess.high), PRIOR
    most = inf if job.most_samples is None else float(job.most_samples)
    low, median, high = (max(min(total, most) - done, 0.0) for total in totals)
    return (low, median, high), source


def finish_seconds(seconds: float, work: Quantiles, speed_error: float, pause: float = 0.0) -> Quantiles | None:
    """(low, median, high) seconds until a job is done that needs `seconds` for the median of `work`, after a `pause`.

    `work`: in any unit, what is left; `speed_error`: one standard deviation of the step time, relative to it. Speed and
    work are taken to err independently, each by a factor. None where no finite time is known.
    """
    low, median, high = work
    if not (isfinite(seconds) and isfinite(high)):
        return None
    slower = DEVIATIONS * log1p(max(speed_error, 0.0))
    more, less = (log(max(high, _LEAST) / max(median, _LEAST)), log(max(median, _LEAST) / max(low, _LEAST)))
    return (
        pause + seconds * exp(-hypot(slower, max(less, 0.0))),
        pause + seconds,
        pause + seconds * exp(hypot(slower, max(more, 0.0))),
    )


def _truncated(forecast: WorkForecast, done: float) -> tuple[float, ...]:
    """The quantiles of the whole work, given that it exceeds what is done."""
    curve = _Survival(forecast.probabilities, forecast.totals)
    here = curve.hazard(done)
    return tuple(max(curve.work(here - log1p(-probability)), done) for probability in PROBABILITIES)


class _Survival:
    """-log P(work > w) through the known quantiles, straight between them over the logarithm of the work."""

    def __init__(self, probabilities: Sequence[float], totals: Sequence[float]) -> None:
        self._works: list[float] = []
        self._hazards: list[float] = []
        for probability, total in zip(probabilities, totals, strict=True):
            work = max(total, _LEAST, self._works[-1] * (1.0 + _LEAST) if self._works else 0.0)
            self._works.append(work)
            self._hazards.append(-log1p(-probability))

    def hazard(self, work: float) -> float:
        works, hazards = self._works, self._hazards
        if work <= works[0]:
            return -log1p(expm1(-hazards[0]) * max(work, 0.0) / works[0])
        if work >= works[-1]:
            return hazards[-1] + _TAIL * log(work / works[-1])
        after = next(place for place, known in enumerate(works) if known >= work)
        share = log(work / works[after - 1]) / log(works[after] / works[after - 1])
        return hazards[after - 1] + share * (hazards[after] - hazards[after - 1])

    def work(self, hazard: float) -> float:
        works, hazards = self._works, self._hazards
        if hazard <= hazards[0]:
            return works[0] * expm1(-hazard) / expm1(-hazards[0])
        if hazard >= hazards[-1]:
            return works[-1] * exp((hazard - hazards[-1]) / _TAIL)
        after = next(place for place, known in enumerate(hazards) if known >= hazard)
        share = (hazard - hazards[after - 1]) / (hazards[after] - hazards[after - 1])
        return works[after - 1] * exp(share * log(works[after] / works[after - 1]))
