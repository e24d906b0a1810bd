"""The distribution of the work that each job has left: one answer whatever it rests on.

In this order: what is declared, where it is trusted (no doubt is left); a forecast of the whole work
(`JobView.work_forecast`), as far as it is believed; what finished jobs of its task needed; what finished jobs of all
tasks needed, compared in seconds, since works of different tasks have no unit in common; and with no history at all,
that what has lasted will last (Lindy's law). A forecast that is itself that law, since too few jobs have finished to
learn from, stands behind both histories. All of it is conditional on the work done already, and no more than what is
declared, or than the job may take (`JobView.most_samples`).

A job of the unpredictable class is taken by its attained service: neither what it declares nor what its loss curve says
tells its end (AITurbo, HPDC 2021), only the hazard of job sizes does. Where it was learnt on jobs that were held out
how much a forecast counts for a job of its class (`WorkForecast.weight`), that is what counts, for either class.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import exp, isfinite, log, log2
from typing import Any, Final

import numpy as np

from elastic_core.domain import JobView, Quantiles, WorkForecast, WorkLeft
from elastic_core.policy.base.remaining_work import declaration_is_trusted
from elastic_core.predict.speed.throughput import Floats
from elastic_core.predict.work import work_left_predictor
from elastic_core.text import plural

# Between them the work left grows linearly: finer where the hazard now and the tail are read off.
PROBABILITIES: Final[Floats] = np.asarray(
    [0.0, 0.005, 0.01, 0.02, 0.035, 0.05, 0.075, *np.arange(2, 18) / 20, 0.9, 0.925, 0.95, 0.97, 0.98, 0.99, 0.995, 1.0]
)
_BELOW_ONE = np.minimum(PROBABILITIES, 0.998)  # a heavy tail has no end
_LOW, _MEDIAN, _HIGH = (int(np.abs(PROBABILITIES - probability).argmin()) for probability in (0.1, 0.5, 0.9))
TRUST_UNCLASSIFIED = 0.85  # in a forecast where nobody judged the job: 15 % of AITurbo's production jobs misled
MOST_TRUST = 0.999  # in any forecast: what outlives it was not foreseen
FIRST_STEPS = 1000.0  # steps at the smallest batch that a job is taken for before anything finished
_NEVER = 60.0  # of the logarithm of a survival: no job lives to see it
_RATE_STEP = 2.0  # octaves between rates at which fitted histories are kept: they only place the works of other tasks

DECLARED, TASK_HISTORY, POOL_HISTORY, LINDY = "declared", "history of its task", "history of all tasks", "prior"


@dataclass(frozen=True, slots=True)
class History:
    """Of finished jobs, oldest first: works by `JobView.kind_of_work`, and of all tasks the task of each with its
    seconds of service at its standard rate."""

    works: Mapping[str, Sequence[float]] = field(default_factory=dict)
    sizes: Sequence[tuple[str, float]] = ()
    # The same of jobs that were cut off before they had done all their work: what they had done.
    cut_off: Mapping[str, Sequence[float]] = field(default_factory=dict)
    cut_off_seconds: Sequence[float] = ()

    @property
    def seconds(self) -> tuple[float, ...]:
        return tuple(seconds for _, seconds in self.sizes)

    @property
    def tasks(self) -> tuple[str, ...]:
        """Of each of `seconds`."""
        return tuple(task for task, _ in self.sizes)


@dataclass(frozen=True)
class RemainingWork:
    """Of all jobs (rows), in the unit of each one's work."""

    quantiles: Floats  # at `PROBABILITIES`
    sources: tuple[str, ...]  # what each rests on: one of the above, or the source of its forecast
    notes: tuple[str, ...]  # the same in words with the job's class, for its reason; "" where the work is declared

    @cached_property
    def spent(self) -> Floats:
        """E[min(left, q)] for the quantile q at each of `PROBABILITIES`."""
        alive = 1.0 - 0.5 * (PROBABILITIES[1:] + PROBABILITIES[:-1])  # on average over each piece
        pieces = np.cumsum(np.diff(self.quantiles, axis=1) * alive, axis=1)
        first = self.quantiles[:, :1]
        spent: Floats = np.concatenate((first, first + pieces), axis=1)
        return spent

    @property
    def median(self) -> Floats:
        of_each: Floats = self.quantiles[:, _MEDIAN]
        return of_each

    @property
    def mean(self) -> Floats:
        """What is beyond the 90 % quantile counts as it: there the tail is an assumption, which would decide."""
        return np.maximum(self.spent[:, _HIGH], 1.0)

    def interval(self, row: int) -> Quantiles:
        """Of one job: (low, median, high), 80 % between the outer two."""
        low, median, high = self.quantiles[row, [_LOW, _MEDIAN, _HIGH]].tolist()
        return low, median, high

    def told(self, row: int) -> WorkLeft | None:
        """Of one job, as it goes with the plan; None where its work is declared."""
        source = self.sources[row]
        return None if source == DECLARED else WorkLeft(quantiles=self.interval(row), source=source)

    def within(self, row: int, works: Floats) -> Floats:
        """E[min(left, work)] of one job, for each of `works`."""
        at, spent = np.insert(self.quantiles[row], 0, 0.0), np.insert(self.spent[row], 0, 0.0)
        expected: Floats = np.interp(works, _ascending(at), spent)
        return expected

    @property
    def upper_ratio(self) -> Floats:
        """How many times `mean` may be left: the high end of an 80 % interval; 1 where work is declared."""
        return np.maximum(self.quantiles[:, _HIGH] / self.mean, 1.0)


def is_declared(job: JobView) -> bool:
    """Whether its declared work is all there is to know about its end."""
    return job.total_samples is not None and declaration_is_trusted(job)


def remaining_work(jobs: Sequence[JobView], history: History, rates: Floats) -> RemainingWork:
    """`rates`: units of its work that each undeclared job does in a standard second of service (see `History`)."""
    quantiles = np.empty((len(jobs), len(PROBABILITIES)))
    sources, notes = [], []
    for row, job in enumerate(jobs):
        if is_declared(job):
            quantiles[row], source = max(float(job.remaining_samples), 1.0), DECLARED
        else:
            left, source = _undeclared(job, history, float(rates[row]))
            quantiles[row] = np.clip(left, 1.0, max(_most_left(job), 1.0))
        sources.append(source)
        notes.append(_note(job, source, history))
    return RemainingWork(quantiles, tuple(sources), tuple(notes))


def _most_left(job: JobView) -> float:
    """Its declaration as an upper bound; of who declares none, the most that it may take."""
    return float(job.remaining_samples if job.most_samples is None else job.most_samples - job.done_samples)


def _undeclared(job: JobView, history: History, rate: float) -> tuple[Floats, str]:
    left, source = _by_history(job, history, rate)
    trust = _trust(job)
    if job.work_forecast is None or trust == 0.0:
        return left, source
    if job.work_forecast.source == LINDY and source != LINDY:  # made where nothing was learnt: history says more
        return left, source
    alive, forecast = _forecast_left(job.work_forecast, float(job.done_samples))
    trust = trust * alive / (trust * alive + 1.0 - trust)
    return _mixed(forecast, left, trust), job.work_forecast.source


def _trust(job: JobView) -> float:
    """In its forecast, beside what finished jobs took."""
    learnt = None if job.work_forecast is None else job.work_forecast.weight
    if learnt is not None:
        return min(learnt, MOST_TRUST)
    if not declaration_is_trusted(job):
        return 0.0
    return min(TRUST_UNCLASSIFIED if job.predictable is None else job.predictable, MOST_TRUST)


def _by_history(job: JobView, history: History, rate: float) -> tuple[Floats, str]:
    """What finished jobs lead to expect, given what this one has done."""
    done, works = float(job.done_samples), tuple(history.works.get(job.kind_of_work, ()))
    if works:
        standard = 2.0 ** (round(log2(rate) / _RATE_STEP) * _RATE_STEP)
        prior = work_left_predictor.prior(
            works, tuple(second * standard for second in history.seconds), tasks=history.tasks,
            cut_off=tuple(history.cut_off.get(job.kind_of_work, ())),
            all_cut_off=tuple(second * standard for second in history.cut_off_seconds),
        )  # fmt: skip
        return prior.quantiles(done, _BELOW_ONE) - done, TASK_HISTORY
    if history.sizes:
        prior = work_left_predictor.prior(
            (), history.seconds, tasks=history.tasks, all_cut_off=tuple(history.cut_off_seconds)
        )
        return (prior.quantiles(done / rate, _BELOW_ONE) - done / rate) * rate, POOL_HISTORY
    prior = work_left_predictor.prior((), (), FIRST_STEPS * job.limits.min_batch)
    return prior.quantiles(done, _BELOW_ONE) - done, LINDY


def _forecast_left(forecast: WorkForecast, done: float) -> tuple[float, Floats]:
    """(probability that it is not done by now, quantiles of what is left if so).

    Between the forecast's quantiles the survival is a power of the work, and beyond them the power of the next two:
    straight lines between the logarithms of work and survival, so that no gap of the table looks like a deadline.
    """
    if len(forecast.totals) == 1:
        return float(done < forecast.totals[0]), np.full(len(PROBABILITIES), max(forecast.totals[0] - done, 0.0))
    hazards = -np.log1p(-np.asarray(forecast.probabilities))
    logs = np.log(np.maximum(forecast.totals, 1.0))
    now = _line(np.asarray([log(max(done, 1.0))]), _ascending(logs), hazards)[0] if done > 0 else 0.0
    now = min(max(float(now), 0.0), _NEVER)
    totals = np.exp(np.minimum(_line(now - np.log1p(-_BELOW_ONE), hazards, logs), 600.0))
    return exp(-now), np.maximum(totals - done, 0.0)


def _line(at: Floats, known: Floats, values: Floats) -> Floats:
    """Straight between known points, and on beyond the outermost two."""
    between = np.interp(at, known, values)
    before = (values[1] - values[0]) / (known[1] - known[0]) * np.minimum(at - known[0], 0.0)
    after = (values[-1] - values[-2]) / (known[-1] - known[-2]) * np.maximum(at - known[-1], 0.0)
    beyond: Floats = between + before + after
    return beyond


def _mixed(first: Floats, second: Floats, weight: float) -> Floats:
    """Quantiles of a mixture of two distributions, `weight` of it the first."""
    works = np.sort(np.concatenate((first, second)))
    reached = weight * np.interp(works, _ascending(first), PROBABILITIES)
    reached += (1.0 - weight) * np.interp(works, _ascending(second), PROBABILITIES)
    return np.interp(PROBABILITIES, _ascending(reached), works)


def _ascending(values: Floats) -> Floats:
    """Strictly, by less than matters: what is interpolated over must not stand still."""
    return values + np.arange(len(values)) * 1e-12 * max(float(abs(values[-1])), 1e-6)


_FORECASTS = {
    "loss curve": "from its loss curve",
    "submission": "from what was known at its submission",
    "history": "from finished jobs",
    "prior": "from no history, by a stated prior",
}


def _seen(finished: Sequence[Any], cut_off: Sequence[float]) -> str:
    jobs = plural(len(finished), "finished job")
    return f"{jobs} and {len(cut_off)} that {'was' if len(cut_off) == 1 else 'were'} cut off" if cut_off else jobs


def _finished_jobs(job: JobView, source: str, history: History) -> str:
    """Those that its end is expected from; "" where it is expected from something else."""
    if source == TASK_HISTORY:
        return f"{_seen(history.works[job.kind_of_work], history.cut_off.get(job.kind_of_work, ()))} of its task"
    if source == POOL_HISTORY:
        return f"{_seen(history.sizes, history.cut_off_seconds)} of other tasks"
    return ""


def _note(job: JobView, source: str, history: History) -> str:
    if source == DECLARED:
        return ""
    finished = _finished_jobs(job, source, history)
    if not declaration_is_trusted(job) and _trust(job) == 0.0:
        bound = ", what it declares is an upper bound" if isfinite(_most_left(job)) else ""
        unheard = "" if job.work_forecast is None else "its forecast is passed over, and "
        expected = f"{unheard}its work is expected from {finished}" if finished else "taken by what it has run"
        return f"its end cannot be predicted: {expected}{bound}"
    judged = "its class is unknown" if job.predictable is None else f"predictable with {job.predictable:.2f}"
    no_forecast = _learnt(job) or ", but nothing was learnt yet to forecast it by"
    unused = "" if job.predictable is None else f" ({judged}{no_forecast})"
    if finished:
        return f"its end is expected from {finished}{unused}"
    if source == LINDY:
        return f"nothing is known of its end: taken by what it has run{unused}"
    return f"its end is forecast {_FORECASTS.get(source, f'from {source}')} ({judged}{_learnt(job)})"


def _learnt(job: JobView) -> str:
    weight = None if job.work_forecast is None else job.work_forecast.weight
    if weight is None:
        return ""
    alike = "of jobs whose end nobody knows" if job.predictable is None else "of its class"
    return f"; forecasts {alike} proved to be worth {100 * weight:.0f} % beside finished jobs"
