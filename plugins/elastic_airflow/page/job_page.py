"""What the page of one job shows beside what the REST API answers: the job as on its card, whenever it ended."""

from __future__ import annotations

from collections.abc import Mapping

from elastic_airflow.page.overview import JobShown, Shown, action_shown, job_shown
from elastic_core.control.plane import LedgerControl
from elastic_core.protocol.records import REGISTERED_VERSIONS, JobStatus
from elastic_core.settings import Settings

MOST_ACTIONS = 20  # of what was done to the job, that are shown


class JobPageShown(Shown):
    now: float
    job: JobShown
    metric: str  # that ranks its checkpoints
    metric_mode: str  # "min" or "max": which way that gets better
    kept_steps: Mapping[int, int]  # by lineage before the present one: what came after this step a rollback left
    registered_as: str  # the model that versions made of it belong to
    versions: Mapping[str, tuple[str, ...]]  # of models, that were made of a checkpoint; by its uri


def job_page(control: LedgerControl, settings: Settings, job_id: str) -> JobPageShown:
    """Raises `NotFound`."""
    job, now = control.job(job_id), control.now()
    actions = tuple(map(action_shown, control.audit_records([job_id], limit=MOST_ACTIONS)))
    return JobPageShown(
        now=now,
        job=job_shown(job, control.courses([job_id])[job_id], settings, now, actions),
        metric=job.facts.metric,
        metric_mode=job.facts.metric_mode,
        kept_steps=control.kept_steps(job_id),
        registered_as=job.spec.registered_model or job.spec.name,
        versions=versions_by_uri(job),
    )


def versions_by_uri(job: JobStatus) -> dict[str, tuple[str, ...]]:
    """E.g. "digits 3"."""
    found: dict[str, tuple[str, ...]] = {}
    for key, entry in job.results.get(REGISTERED_VERSIONS, {}).items():
        model, _, version = key.rpartition("/")
        found[entry["uri"]] = (*found.get(entry["uri"], ()), f"{model} {version}")
    return found
