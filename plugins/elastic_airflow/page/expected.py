"""What is expected of a job, and how that turned out, as the page shows it. Pure: records in, records out."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from elastic_core.domain import Quantiles
from elastic_core.protocol.forecasts import DECLARED, Assumption, Quantity
from elastic_core.protocol.records import JobStatus
from elastic_core.protocol.waiting.queued import ASSUMES


class ForecastShown(BaseModel):
    model_config = ConfigDict(frozen=True)

    work_left: Quantiles  # samples: low, median, high
    work_source: str
    work_basis: str  # in words: the source, and whether a decision rests on it
    declared: bool
    finish_in: Quantiles | None  # seconds from now
    from_queue: bool  # of a job that waits for slots
    assumes: str


class GradeShown(BaseModel):
    model_config = ConfigDict(frozen=True)

    quantity: str
    stage: float
    error: float | None  # relative, of what was left; above 0 it said too much
    held: bool | None  # whether its interval did


class QueuedShown(BaseModel):
    model_config = ConfigDict(frozen=True)

    place: int
    length: int
    words: str  # what the job needs, who has it, and who took it
    starts_at: float | None  # Unix seconds
    unknown: str  # why that is not known
    assumes: str  # of that


def queued_shown(job: JobStatus) -> QueuedShown | None:
    queued = job.in_queue
    if queued is None:
        return None
    return QueuedShown(
        place=queued.place, length=queued.length, words=queued.words, starts_at=queued.starts_at,
        unknown=queued.unknown, assumes=ASSUMES,
    )  # fmt: skip


def forecast_shown(job: JobStatus, now: float) -> ForecastShown | None:
    forecast = job.forecast
    if forecast is None:
        return None
    finish = forecast.finish_at
    return ForecastShown(
        work_left=forecast.work_left_at(job.done_samples),
        work_source=forecast.work_source,
        work_basis=forecast.work_basis,
        declared=forecast.work_source == DECLARED,
        finish_in=None if finish is None else (finish[0] - now, finish[1] - now, finish[2] - now),
        from_queue=forecast.assumes is Assumption.WAITS_ITS_TURN,
        assumes="" if forecast.assumes is None else forecast.assumes.words,
    )


def hindsight_shown(job: JobStatus) -> tuple[GradeShown, ...]:
    """Without the works that were declared: those were no forecasts."""
    return tuple(
        GradeShown(quantity=str(grade.quantity), stage=grade.stage, error=grade.error, held=grade.held)
        for grade in job.hindsight
        if grade.quantity is not Quantity.WORK or grade.source != DECLARED
    )
