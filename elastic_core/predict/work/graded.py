"""How forecasts turned out: pure grades of one job's, and their summary over many.

A forecast of each quantity is graded at four stages of what the job turned out to be: at submission the first one, as
long as nothing was done, and at 25, 50 and 75 % the last one before that much was done. One that was made at the stage
before, or earlier, says nothing about this one, so that no forecast is graded twice. Work that was decided by comes
before raw forecasts of the same stage: they stand in where the policy weighs no work, or was not asked. Finish times
of jobs that had slots and of jobs that waited assume different things, and are two quantities. What is
compared is what was left at that moment: work with work, and time until the end with that time. A job that was stopped
is censored: its work and its end are only known to exceed what came, so that an interval whose high end was passed is
missed and nothing else is known; its stages are those of the work that it had done. Such jobs can therefore only count
against the forecasts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from statistics import median

from elastic_core.domain import Quantiles
from elastic_core.protocol.forecasts import (
    DECLARED,
    Assumption,
    Forecast,
    ForecastReport,
    Grade,
    Quantity,
    StageSummary,
)

STAGES = (0.0, 0.25, 0.5, 0.75)
_ASSUMES = {Quantity.FINISH: Assumption.KEEPS_SLOTS, Quantity.FINISH_FROM_QUEUE: Assumption.WAITS_ITS_TURN}
_ROUNDING = 1e-6  # relative: intervals without width are met by what was declared
_NORMAL_95 = 1.959964  # standard deviations


@dataclass(frozen=True, slots=True)
class Ending:
    """What a job turned out to be. `finished` is False for one that was cancelled or failed."""

    finished: bool
    at: float  # Unix seconds
    work: float  # done in the end, in the unit of the job's work


def grades(forecasts: Sequence[Forecast], ending: Ending) -> tuple[Grade, ...]:
    """Of one job's forecasts, in the order they were made; at most one a quantity and stage."""
    graded = []
    for stage in STAGES:
        for quantity in Quantity:
            forecast = _of_stage([f for f in forecasts if _interval(f, quantity)], quantity, stage, ending)
            grade = _grade(forecast, quantity, stage, ending) if forecast is not None else None
            if grade is not None:
                graded.append(grade)
    return tuple(graded)


def _of_stage(forecasts: Sequence[Forecast], quantity: Quantity, stage: float, ending: Ending) -> Forecast | None:
    earlier = STAGES[STAGES.index(stage) - 1] * ending.work if stage else -1.0
    made = [f for f in forecasts if earlier < f.done <= stage * ending.work]
    if quantity is Quantity.WORK:
        made = [f for f in made if f.work_decided] or made
    if not made:
        return None
    return made[0] if stage == 0.0 else made[-1]


def _interval(forecast: Forecast, quantity: Quantity) -> Quantiles | None:
    """Of what is left of the quantity, from when it was made."""
    if quantity is Quantity.WORK:
        return forecast.work_left
    if forecast.finish_at is None or forecast.assumes is not _ASSUMES[quantity]:
        return None
    low, middle, high = forecast.finish_at
    return low - forecast.at, middle - forecast.at, high - forecast.at


def _grade(forecast: Forecast, quantity: Quantity, stage: float, ending: Ending) -> Grade | None:
    interval = _interval(forecast, quantity)
    assert interval is not None, "only forecasts of this quantity are asked about"
    is_work = quantity is Quantity.WORK
    left = ending.work - forecast.done if is_work else ending.at - forecast.at
    low, middle, high = interval
    slack = _ROUNDING * max(abs(left), 1.0)
    error = held = None
    if ending.finished:
        error = (middle - left) / left if left > 0 else None
        held = low - slack <= left <= high + slack
    elif left > high + slack:
        held = False
    if error is None and held is None:
        return None
    return Grade(
        quantity=quantity,
        stage=stage,
        made_at=forecast.done / ending.work if ending.work > 0 else 0.0,
        error=error,
        held=held,
        source=forecast.work_source if is_work else forecast.finish_source,
    )


def report(jobs: Iterable[Sequence[Grade]]) -> ForecastReport:
    """Over the grades of each job. Works that were declared are no forecasts and are only counted."""
    by_job = [tuple(of_job) for of_job in jobs]
    is_declared = [any(g.quantity is Quantity.WORK and g.source == DECLARED for g in of_job) for of_job in by_job]
    every = [g for of_job in by_job for g in of_job if not (g.quantity is Quantity.WORK and g.source == DECLARED)]
    stages = [
        _summary(quantity, stage, [g for g in every if g.quantity is quantity and g.stage == stage])
        for quantity in Quantity
        for stage in STAGES
    ]
    return ForecastReport(jobs=len(by_job), declared=sum(is_declared), stages=tuple(stages))


def _summary(quantity: Quantity, stage: float, of_stage: Sequence[Grade]) -> StageSummary:
    errors = [abs(grade.error) for grade in of_stage if grade.error is not None]
    judged = [grade.held for grade in of_stage if grade.held is not None]
    low, high = wilson(sum(judged), len(judged)) if judged else (None, None)
    return StageSummary(
        quantity=quantity,
        stage=stage,
        number=len(judged),
        held=sum(judged),
        median_error=median(errors) if errors else None,
        coverage=sum(judged) / len(judged) if judged else None,
        coverage_low=low,
        coverage_high=high,
    )


def wilson(successes: int, number: int) -> tuple[float, float]:
    """95 % interval of a probability (Wilson, JASA 1927), for `number` of at least 1."""
    share, square = successes / number, _NORMAL_95**2
    middle = (share + square / (2 * number)) / (1 + square / number)
    half = _NORMAL_95 / (1 + square / number) * sqrt(share * (1 - share) / number + square / (4 * number**2))
    return max(middle - half, 0.0), min(middle + half, 1.0)
