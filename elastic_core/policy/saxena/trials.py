"""What `elastic_batch` remembers of its explorations: which counts it proposed, and which ended without a measurement.

A count on which a job's processes die before they report would otherwise be explored again and again. It is left
alone for `PAUSE` seconds after such an end. Kept in `Plan.state` as plain JSON, by job and "type:count".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from elastic_core.domain import JobView
from elastic_core.policy.base.queue import held_count, held_type

PAUSE = 600.0  # seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    proposed_at: float
    first_lease: bool  # the job had held no slots at all when it was proposed
    failed_at: float | None = None

    def was_granted(self, job: JobView) -> bool:
        """Whether the job got other slots since the proposal, as far as a snapshot can tell."""
        resized = job.last_resize_at is not None and job.last_resize_at > self.proposed_at
        return resized or (self.first_lease and job.last_batch is not None)


Trials = Mapping[str, Trial]  # of one job, by "type:count"


def key(kind: str, count: int) -> str:
    return f"{kind}:{count}"


def recall(state: Mapping[str, Any], job: JobView, now: float) -> dict[str, Trial]:
    """The job's trials of the last plan, as they stand now: one that was granted and is gone has failed."""
    stored = _stored(state, job.job_id)
    if not stored:
        return {}
    held = key(held_type(job) or "", held_count(job))
    measured = {key(point.type, point.num_slots) for point in job.profile}
    return {name: _review(trial, job, now, held == name) for name, trial in stored.items() if name not in measured}


def _stored(state: Mapping[str, Any], job_id: str) -> dict[str, Trial]:
    """What another version of the platform wrote in another form is forgotten: it costs one more try."""
    try:
        return {name: Trial(**fields) for name, fields in state["trials"][job_id].items()}
    except (KeyError, TypeError, AttributeError):
        return {}


def _review(trial: Trial, job: JobView, now: float, holds: bool) -> Trial:
    if trial.failed_at is None and not holds and trial.was_granted(job):
        return replace(trial, failed_at=now)
    return trial


def paused(trial: Trial | None, now: float) -> bool:
    return trial is not None and trial.failed_at is not None and now < trial.failed_at + PAUSE


def remember(trials: Trials, job: JobView, exploring: str | None, now: float) -> dict[str, Any]:
    """What goes into the plan's state: the pauses that last, the trial under way, and the one proposed now."""
    if not trials and exploring is None:
        return {}
    held = key(held_type(job) or "", held_count(job))
    lasting = {
        name: trial
        for name, trial in trials.items()
        if paused(trial, now) or (trial.failed_at is None and name in (held, exploring))
    }
    if exploring is not None and exploring not in lasting:
        lasting[exploring] = Trial(proposed_at=now, first_lease=job.last_batch is None)
    return {name: asdict(trial) for name, trial in sorted(lasting.items())}
