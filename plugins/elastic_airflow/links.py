"""Buttons beside a task: its segments in Airflow's grid, its run in MLflow, the job's page."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink
from airflow.sdk.configuration import conf

from elastic_airflow.names import JOB_ROUTE, SEGMENT_DAG
from elastic_core.protocol.records import JobStatus
from elastic_core.settings import Settings


class JobLink(BaseOperatorLink):
    """Asked for in the worker after each turn of the task; the API server only shows what it answered."""

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        return str(getattr(operator, "links", {}).get(self.name, ""))


class SegmentsLink(JobLink):
    name = "Segments"


class TrackerLink(JobLink):
    name = "MLflow"


class PageLink(JobLink):
    name = "The job"


LINKS = (SegmentsLink(), TrackerLink(), PageLink())


def segments_path(job_id: str) -> str:
    """Airflow's list of the segment DAG's runs, narrowed to one job."""
    return f"/dags/{SEGMENT_DAG}/runs?run_id_pattern={quote(job_id)}"


def page_path(job_id: str) -> str:
    return f"/plugin/{JOB_ROUTE}?job={quote(job_id, safe='')}"


def tracker_url(job: JobStatus, settings: Settings) -> str | None:
    """The job's run in MLflow's UI, once the tracker has opened it."""
    run, experiment = job.results.get("mlflow_run_id"), job.results.get("mlflow_experiment_id")
    if not run or settings.tracking_uri() == "none":
        return None
    return f"{settings.mlflow_page()}/#/experiments/{experiment}/runs/{run}"


def stored(job: JobStatus) -> dict[str, str]:
    """The URL of each link by the key that Airflow looks it up under: what a task stores when it leaves its process."""
    urls = links_of(job)
    return {link.xcom_key: urls[link.name] for link in LINKS}


def links_of(job: JobStatus) -> dict[str, str]:
    """The URL of each link by its name (the run in MLflow is known only once training has begun)."""
    base = (conf.get("api", "base_url", fallback="") or "").rstrip("/")
    return {
        SegmentsLink.name: base + segments_path(job.job_id),
        TrackerLink.name: tracker_url(job, Settings()) or "",
        PageLink.name: base + page_path(job.job_id),
    }
