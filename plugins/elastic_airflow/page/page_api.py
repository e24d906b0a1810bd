"""The page's data: one route, one answer a second however many people look."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from typing import Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from elastic_airflow.names import JOB_DAG, RECONCILE_DAG, SEGMENT_DAG
from elastic_airflow.page.job_page import JobPageShown, job_page
from elastic_airflow.page.kept_answers import KeptAnswers
from elastic_airflow.page.overview import MAX_ENDED_JOBS, Overview, overview
from elastic_airflow.page.past_window import TimelineShown, timeline_shown
from elastic_core.control.plane import LedgerControl
from elastic_core.control.rpc.api_v1 import answers
from elastic_core.domain import JobState, to_json
from elastic_core.errors import UserError
from elastic_core.launch.job_logs import MOST_BYTES, read_job_log
from elastic_core.launch.launchers import chosen
from elastic_core.protocol.cluster.cluster_timeline import NodeEvent
from elastic_core.protocol.forecasts import ForecastReport
from elastic_core.protocol.rest.answers import JobLog
from elastic_core.protocol.rest.job_details import Part
from elastic_core.settings import Settings

REPORT_SECONDS, REPORT_JOBS = 30.0, 1000  # how forecasts turned out: read so often, over so many jobs
EVENTS_SECONDS = 10.0  # what happened to nodes: read so often
MOST_MINUTES = 24 * 60
MOST_HOLDS = 2000  # leases that a timeline of the past shows
MOST_ACTIONS = 1000  # that are read for all jobs shown
LOG_BYTES = 64 * 2**10  # of the end of a log, with which looking at it begins
UNRECONCILED_SECONDS = 300.0  # after which it is said that nobody reconciles, which is done every minute
DAGS = (JOB_DAG, SEGMENT_DAG, RECONCILE_DAG)


class OverviewReader:
    """Asks the control plane."""

    def __init__(self, control: LedgerControl, settings: Settings) -> None:
        self._control, self._settings = control, settings
        self._report: tuple[float, ForecastReport] | None = None
        self._events: tuple[float, list[NodeEvent]] | None = None
        self._since = control.now()

    def read(self, minutes: int) -> Overview:
        control, now = self._control, self._control.now()
        since = now - 60.0 * minutes
        jobs = control.jobs_of_window(since, MAX_ENDED_JOBS)
        active = [job.job_id for job in jobs if job.state is JobState.ACTIVE]
        plan = control.last_plan()
        return overview(
            nodes=control.nodes(),
            jobs=jobs,
            courses=control.courses([job.job_id for job in jobs]),
            stretches=control.timeline(since),
            explanation=control.explain(active[0]) if active else None,
            notes=plan.notes if plan else (),
            paused=paused_dags(),
            unreconciled=self._unreconciled(now),
            forecasts=self._forecasts(now),
            settings=self._settings,
            since=since,
            now=now,
            audit=control.audit_records([job.job_id for job in jobs], limit=MOST_ACTIONS),
            events=self._node_events(now),
        )

    def _forecasts(self, now: float) -> ForecastReport:
        if self._report is None or now - self._report[0] > REPORT_SECONDS:
            self._report = now, self._control.forecast_report(REPORT_JOBS)
        return self._report[1]

    def _node_events(self, now: float) -> list[NodeEvent]:
        """Of the longest window that is asked for."""
        if self._events is None or now - self._events[0] > EVENTS_SECONDS:
            self._events = now, self._control.node_events(now - 60.0 * MOST_MINUTES)
        return self._events[1]

    def _unreconciled(self, now: float) -> float | None:
        """Seconds without reconciliation, where they are too many. What was while the platform was down is none."""
        up = now - self._since
        if up < UNRECONCILED_SECONDS:
            return None
        seconds = seconds_without_reconciliation()
        seconds = up if seconds is None else seconds
        return seconds if seconds > UNRECONCILED_SECONDS else None


def log_router(control: LedgerControl, settings: Settings) -> APIRouter:
    """What jobs print, for page and REST; whoever includes it puts Airflow's login in front."""
    router = APIRouter(tags=["jobs"])
    launcher = cache(lambda: chosen(settings))  # not before it is asked for: settings may not do for it

    @router.get("/jobs/{job_id}/log")
    @answers(JobLog)
    def read_log(
        job_id: str,
        attempt: int | None = None,
        rank: int = Query(default=0, ge=0),
        after: int | None = Query(default=None, ge=0),
    ) -> Any:
        """What a rank printed from position `after` on; absent: the last of it, of the newest attempt if not said."""
        groups = control.groups_of(job_id)
        most = LOG_BYTES if after is None else MOST_BYTES
        log = read_job_log(launcher(), job_id, groups, attempt=attempt, rank=rank, after=after, most=most)
        return JSONResponse(to_json(log))

    return router


def ui_router(control: LedgerControl, settings: Settings) -> APIRouter:
    """The page's own routes; whoever includes it puts Airflow's login in front."""
    router, kept = APIRouter(), KeptAnswers(OverviewReader(control, settings).read)
    router.include_router(log_router(control, settings))

    @router.get("/overview")
    def read_overview(minutes: int = Query(default=15, ge=1, le=MOST_MINUTES)) -> Overview:
        return kept.read(minutes)

    @router.get("/timeline")
    def read_timeline(
        since: float = Query(allow_inf_nan=False), until: float = Query(allow_inf_nan=False)
    ) -> TimelineShown:
        """Of a window that may be over, in Unix seconds."""
        if not 0 < until - since <= 60.0 * MOST_MINUTES:
            raise UserError(
                f"the window is {until - since:.0f} s long; allowed are more than 0 s and at most {60 * MOST_MINUTES} s"
            )
        held = control.timeline_page(since, until, Part(limit=MOST_HOLDS))
        return timeline_shown(control.nodes(), held, control.node_events(since, until))

    @router.get("/jobs/{job_id}/page")
    def read_job(job_id: str) -> JobPageShown:
        """One job as on its card, whenever it ended."""
        return job_page(control, settings, job_id)

    return router


def paused_dags() -> Sequence[str]:
    """Those of the platform's DAGs that a user has paused."""
    from airflow.models.dag import DagModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    with create_session() as session:
        paused = select(DagModel.dag_id).where(DagModel.dag_id.in_(DAGS), DagModel.is_paused)
        return list(session.scalars(paused.order_by(DagModel.dag_id)))


def seconds_without_reconciliation() -> float | None:
    """Since a run of `elastic_reconcile` last ended well; None where none ever has."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from airflow.utils.state import DagRunState
    from sqlalchemy import select

    ended_well = select(DagRun.end_date).where(DagRun.dag_id == RECONCILE_DAG, DagRun.state == DagRunState.SUCCESS)
    with create_session() as session:
        last = session.scalar(ended_well.order_by(DagRun.id.desc()).limit(1))
    return None if last is None else (datetime.now(UTC) - last).total_seconds()
