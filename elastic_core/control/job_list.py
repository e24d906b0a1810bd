"""A page of the list of jobs. What the list needs of each is read of all; in full only those are looked at that stand
on the page, and those that run where they are sorted by how long they will.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from sqlalchemy import ARRAY, Row, Text, any_, bindparam, func, select

from elastic_core.control.ledger import views
from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.money import spent
from elastic_core.control.ledger.tables import CheckpointRow, HeartbeatRow, JobRow, LeaseRow
from elastic_core.control.waiting_jobs import WaitingJobs
from elastic_core.domain import JobState
from elastic_core.protocol.rest.answers import JobPage, JobsIn, SortBy
from elastic_core.protocol.waiting.queued import InQueue

_LISTED = select(JobRow.id, JobRow.state, JobRow.submitted_at, JobRow.finished_at, JobRow.total_samples).order_by(
    JobRow.submitted_at, JobRow.id
)
Listed = Row[Any]  # of them, and of those of the following that are asked for: to open every spec takes long
_OF_SPECS = {
    "name": JobRow.spec["name"].astext,
    "entry_point": JobRow.spec["entry_point"].astext,
    "queue": JobRow.spec["queue"].astext,
    "user": func.coalesce(JobRow.submitted_by, ""),
    "priority": func.coalesce(JobRow.changes["priority"].astext, JobRow.spec["priority"].astext),
}
_SEARCHED = ("name", "entry_point", "queue", "user")
_SORTED_BY = {SortBy.QUEUE: "queue", SortBy.PRIORITY: "priority"}
_MEASURE = JobRow.spec["work"]["measure"].astext.label("measure")
_HEADS = (
    select(JobRow.id, _MEASURE, CheckpointRow.step, CheckpointRow.samples, CheckpointRow.progress)
    .join(CheckpointRow, CheckpointRow.id == JobRow.head_id)
    .where(JobRow.id == any_(bindparam("jobs", type_=ARRAY(Text))))  # as one value, however many they are
)
_BEATS = (  # of all that hold slots, of which there are few beside all leases of all jobs; the newest lease's last
    select(JobRow.id, _MEASURE, HeartbeatRow.step, HeartbeatRow.samples, HeartbeatRow.progress)
    .join(LeaseRow, LeaseRow.job_id == JobRow.id)
    .join(HeartbeatRow, HeartbeatRow.epoch == LeaseRow.epoch)
    .where(LeaseRow.released_at.is_(None), LeaseRow.fenced_at.is_(None))
    .order_by(LeaseRow.epoch)
)
_OF_ROW: Mapping[SortBy, Callable[[Listed], Any]] = {
    SortBy.SUBMITTED: lambda job: job.submitted_at,
    SortBy.FINISHED: lambda job: inf if job.finished_at is None else job.finished_at,
    SortBy.ID: lambda job: job.id,
    SortBy.STATE: lambda job: job.state,
    SortBy.QUEUE: lambda job: job.queue,
    SortBy.PRIORITY: lambda job: int(job.priority),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsWanted:
    """None: any. `search` is looked for in id, name, entry point, queue and user, whatever the case."""

    search: str = ""
    state: JobsIn | None = None
    queue: str | None = None
    user: str | None = None
    group: str | None = None  # a sweep's id
    sort: SortBy = SortBy.SUBMITTED
    descending: bool = False
    offset: int = 0
    limit: int = 50


def page_of(tx: Tx, wanted: JobsWanted, waiting: WaitingJobs) -> JobPage:
    """Jobs of the same key stand in the order in which they were submitted."""
    found = [job for job in tx.session.execute(_of(wanted)) if _holds(job, wanted.search)]
    keys = _keys(tx, found, wanted.sort, waiting)
    found.sort(key=lambda job: keys[job.id], reverse=wanted.descending)
    ids = [job.id for job in found[wanted.offset : wanted.offset + wanted.limit]]
    rows = {row.id: row for row in tx.among(JobRow.id, ids)}
    paid = keys if wanted.sort is SortBy.SPENT else None
    statuses = views.job_statuses(tx, [rows[job_id] for job_id in ids], paid)
    return JobPage(total=len(found), offset=wanted.offset, jobs=tuple(waiting.placed(tx, statuses)))


def _of(wanted: JobsWanted) -> Any:
    names = {*(_SEARCHED if wanted.search else ()), *filter(None, (_SORTED_BY.get(wanted.sort),))}
    query = _LISTED.add_columns(*(_OF_SPECS[name].label(name) for name in sorted(names)))
    if wanted.state is not None:
        query = query.where(JobRow.state == (JobState.ACTIVE if wanted.state is JobsIn.PAUSED else wanted.state))
    if wanted.state is JobsIn.PAUSED:
        query = query.where(JobRow.paused.is_not(None))
    if wanted.queue is not None:
        query = query.where(JobRow.spec["queue"].astext == wanted.queue)
    if wanted.group is not None:
        query = query.where(JobRow.spec["group"]["id"].astext == wanted.group)
    if wanted.user is not None:
        query = query.where(JobRow.submitted_by == wanted.user)
    return query


def _holds(job: Listed, search: str) -> bool:
    return not search or any(search.lower() in text.lower() for text in (job.id, *(getattr(job, n) for n in _SEARCHED)))


def _keys(tx: Tx, jobs: Sequence[Listed], sort: SortBy, waiting: WaitingJobs) -> Mapping[str, Any]:
    """By id."""
    ids = [job.id for job in jobs]
    if sort in (SortBy.PLACE, SortBy.START):
        return _queued(ids, waiting.places(tx), sort)
    if sort is SortBy.SLOTS:
        held = {job_id: lease.num_slots for job_id, lease in views.live_leases(tx, ids).items()}
        return {job_id: held.get(job_id, 0) for job_id in ids}
    if sort is SortBy.SPENT:
        paid = spent(tx, ids)
        return {job_id: paid.get(job_id, 0.0) for job_id in ids}
    if sort is SortBy.PROGRESS:
        done = _done(tx, ids)
        return {job.id: done.get(job.id, 0) / job.total_samples if job.total_samples else 0.0 for job in jobs}
    if sort is SortBy.LEFT:
        return _seconds_left(tx, jobs)
    return {job.id: _OF_ROW[sort](job) for job in jobs}


def _queued(ids: Sequence[str], places: Mapping[str, InQueue], sort: SortBy) -> Mapping[str, float]:
    """The place, or Unix seconds of the start; of a job that has none infinitely many."""
    of_queue = {job_id: queued.place if sort is SortBy.PLACE else queued.starts_at for job_id, queued in places.items()}
    return {job_id: inf if (key := of_queue.get(job_id)) is None else key for job_id in ids}


def _seconds_left(tx: Tx, jobs: Sequence[Listed]) -> Mapping[str, float]:
    """Of a job that is over, or of which it is not known, infinitely many."""
    active = [job.id for job in jobs if job.state == JobState.ACTIVE]
    left = {status.job_id: status.seconds_left for status in views.job_statuses(tx, tx.among(JobRow.id, active))}
    return {job.id: inf if (seconds := left.get(job.id)) is None else seconds for job in jobs}


def _done(tx: Tx, job_ids: Sequence[str]) -> dict[str, int]:
    """By their own measure, as `views.job_statuses` has it: at the last heartbeat of the lease, or the last commit."""
    heads = {head.id: head for head in tx.session.execute(_HEADS, {"jobs": job_ids})}
    beats = {beat.id: beat for beat in tx.session.execute(_BEATS)}
    last = heads | {
        job_id: beat for job_id, beat in beats.items() if job_id not in heads or beat.step > heads[job_id].step
    }
    return {
        job_id: int(row.progress or 0) if row.measure == "progress" else row.samples for job_id, row in last.items()
    }
