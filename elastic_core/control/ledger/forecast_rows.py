"""Forecasts in the ledger: what was expected of each job, a bounded number of them, and its grades once it is over.

A job keeps at most `MOST`. When it has more, the one goes whose neighbours are nearest in work done, so that what is
kept is spread evenly over the logarithm of the work, however long the job turns out to be; its first forecast, the
first that assumes what it does of its finish time, and its last always stay. Which forecasts are worth storing at all
is decided by `control.scheduling.expectations`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import log1p

from sqlalchemy import bindparam, delete, func, insert, select
from sqlalchemy.dialects.postgresql import distinct_on

from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.tables import CheckpointRow, ForecastRow, JobRow
from elastic_core.domain import JobState, from_json, to_json
from elastic_core.logs import get_logger
from elastic_core.predict.work.graded import Ending, grades, report
from elastic_core.protocol.forecasts import Forecast, ForecastReport, Grade

MOST = 64  # forecasts of one job
_LATEST = (
    select(ForecastRow)
    .where(ForecastRow.job_id.in_(bindparam("jobs", expanding=True)))
    .ext(distinct_on(ForecastRow.job_id))
    .order_by(ForecastRow.job_id, ForecastRow.id.desc())
)
log = get_logger(__name__)


def latest(tx: Tx, job_ids: Collection[str]) -> dict[str, Forecast]:
    """The last forecast of each job that has one, over all its lineages."""
    if not job_ids:
        return {}
    rows = tx.session.scalars(_LATEST, {"jobs": list(job_ids)})
    return {row.job_id: from_json(Forecast, row.forecast) for row in rows}


def of_job(tx: Tx, job_id: str) -> list[Forecast]:
    """All that are kept, over all lineages, in the order they were made."""
    return [from_json(Forecast, row.forecast) for row in _rows(tx, job_id)]


def add(tx: Tx, forecasts: Mapping[str, Forecast]) -> None:
    """One of each job, after those that it has."""
    if not forecasts:
        return
    rows = [{"job_id": job_id, "forecast": to_json(forecast)} for job_id, forecast in forecasts.items()]
    tx.session.execute(insert(ForecastRow), rows)
    counted = select(ForecastRow.job_id).where(ForecastRow.job_id.in_(list(forecasts)))
    for job_id in tx.session.scalars(counted.group_by(ForecastRow.job_id).having(func.count() > MOST)).all():
        rows_of_job = _rows(tx, job_id)
        stored = [from_json(Forecast, row.forecast) for row in rows_of_job]
        unwanted = [rows_of_job[place].id for place in superfluous(stored, len(stored) - MOST)]
        tx.session.execute(delete(ForecastRow).where(ForecastRow.id.in_(unwanted)))


def superfluous(forecasts: Sequence[Forecast], number: int) -> list[int]:
    """Places of so many forecasts that leave the smallest gaps in work done, those of equal gaps the latest first."""
    firsts = {f.assumes: place for place, f in reversed(list(enumerate(forecasts)))}.values()
    left, gone = list(range(len(forecasts))), []
    for _ in range(number):
        inner = [place for place in range(1, len(left) - 1) if left[place] not in firsts]
        if not inner:
            break
        done = [log1p(max(forecasts[at].done, 0.0)) for at in left]
        place = min(inner, key=lambda place: (done[place + 1] - done[place - 1], -place))
        gone.append(left.pop(place))
    return gone


def grade(tx: Tx, job: JobRow) -> None:
    """Stores how the forecasts of the job's lineage turned out. It is over: its state, its end and its head are set."""
    head = tx.row(CheckpointRow, job.head_id) if job.head_id is not None else None
    ending = Ending(
        finished=job.state == JobState.FINISHED,
        at=job.finished_at if job.finished_at is not None else tx.now,
        work=_work(head) if head is not None else 0.0,
    )
    forecasts = of_job(tx, job.id)
    try:
        graded = grades([f for f in forecasts if f.lineage == job.lineage], ending)
    except Exception:
        log.exception("a job's forecasts cannot be graded: it ends without", job=job.id, forecasts=len(forecasts))
        return
    job.hindsight = [to_json(of_stage) for of_stage in graded]


def _work(head: CheckpointRow) -> float:
    """By the job's own measure."""
    return float(head.samples if head.progress is None else head.progress)


def hindsight(job: JobRow) -> tuple[Grade, ...]:
    return tuple(from_json(Grade, stored) for stored in job.hindsight or ())


def forecast_report(tx: Tx, limit: int) -> ForecastReport:
    """Over the last `limit` jobs that ended with graded forecasts."""
    query = select(JobRow.hindsight).where(
        JobRow.state != JobState.ACTIVE, func.jsonb_array_length(JobRow.hindsight) > 0
    )
    query = query.order_by(JobRow.finished_at.desc(), JobRow.id.desc()).limit(limit)
    return report([from_json(Grade, grade) for grade in stored or ()] for stored in tx.session.scalars(query))


def _rows(tx: Tx, job_id: str) -> Sequence[ForecastRow]:
    return tx.session.scalars(select(ForecastRow).where(ForecastRow.job_id == job_id).order_by(ForecastRow.id)).all()
