"""What the ledger says about runs as a whole: losses in the order of the work, and how the job was submitted.

Bounded: of a long run only evenly spread reports are handed out, and a run that was rolled back counts as it was
trained in the end (its current lineage). A job that was cancelled or has failed, or is still active, is handed out as
what it is: not completed. So is one that ended at the most that it might take, by its amount of work or by
`work.max_samples`, and not by its target loss or its patience: how much it would have taken nobody has seen. History
that was imported (`imported_runs`) stands beside the jobs of this ledger.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import ColumnElement, Select, func, not_, or_, select, text, true
from sqlalchemy.dialects.postgresql import insert

from elastic_core.control.believable import believed
from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.profiles import profiles
from elastic_core.control.ledger.tables import CheckpointRow, ImportedRunRow, JobRow, ObservationRow
from elastic_core.control.ledger.views import spec_of
from elastic_core.domain import CPU, EndedJob, JobState, from_json, to_json
from elastic_core.domain.number_ranges import COUNT
from elastic_core.errors import UserError
from elastic_core.logs import get_logger
from elastic_core.protocol.records import FinishedRun, JobDescription, JobFacts, Reports
from elastic_core.snapshot.job_ends import came_to_its_end
from elastic_core.spec import JobSpec
from elastic_core.spec.job import most_samples
from elastic_core.spec.parts.job_work import Work

MOST_REPORTS = 256  # of one run
MOST_ACTIVE = 0.25  # of the runs that are handed out, where enough have ended: they say only that they are not done
log = get_logger(__name__)

_DONE = f"coalesce({believed('progress', COUNT)}, samples)"  # in the job's own measure of work
# The last of each cell of equal work, where there are many: what was reported long ago is thinned (`retention`).
LOSSES = text(f"""
    SELECT wanted.id, {_DONE} AS done, o.loss
    FROM unnest(CAST(:jobs AS text[])) AS wanted (id)
    JOIN jobs j ON j.id = wanted.id
    CROSS JOIN LATERAL (
        SELECT count(*) AS reports, greatest(max({_DONE}), 1) AS furthest
        FROM observations WHERE job_id = j.id AND lineage = j.lineage
    ) AS run
    CROSS JOIN LATERAL (
        SELECT max(id) AS id FROM observations WHERE job_id = j.id AND lineage = j.lineage
        GROUP BY CASE WHEN run.reports < 2 * :most THEN id
                      ELSE floor({_DONE} * :most / run.furthest) END
    ) AS last
    JOIN observations o ON o.id = last.id
    ORDER BY wanted.id, o.samples, o.id
""")

LAST_LOSSES = text(f"""
    SELECT wanted.id, {_DONE} AS done, o.loss
    FROM unnest(CAST(:jobs AS text[])) AS wanted (id)
    JOIN jobs j ON j.id = wanted.id
    CROSS JOIN LATERAL (
        SELECT progress, samples, loss FROM observations
        WHERE job_id = j.id AND lineage = j.lineage ORDER BY id DESC LIMIT 1
    ) AS o
""")

METRICS = text(f"""
    SELECT c.job_id, {_DONE}, (c.metrics ->> wanted.metric)::float8
    FROM unnest(CAST(:jobs AS text[]), CAST(:metrics AS text[])) AS wanted (id, metric)
    JOIN jobs j ON j.id = wanted.id
    JOIN checkpoints c ON c.job_id = j.id AND c.lineage = j.lineage
    WHERE jsonb_typeof(c.metrics -> wanted.metric) = 'number'
    ORDER BY c.job_id, c.step, c.id
""")

# The furthest that its current lineage is known to have come: in its own measure of work, and in samples read.
WORK = text(f"""
    SELECT wanted.id, greatest(o.work, c.work) AS work, greatest(o.samples, c.samples) AS samples
    FROM unnest(CAST(:jobs AS text[])) AS wanted (id) JOIN jobs j ON j.id = wanted.id
    CROSS JOIN LATERAL (
        SELECT max({_DONE}) AS work, max(samples) AS samples
        FROM observations WHERE job_id = j.id AND lineage = j.lineage
    ) AS o
    CROSS JOIN LATERAL (
        SELECT max({_DONE}) AS work, max(samples) AS samples
        FROM checkpoints WHERE job_id = j.id AND lineage = j.lineage
    ) AS c
""")

# As a condition, so that all are found by one pass over the jobs.
RESUBMITTED = text("""
    SELECT id FROM jobs j WHERE id = ANY (CAST(:jobs AS text[])) AND EXISTS (
        SELECT 1 FROM jobs b
        WHERE b.submitted_at < j.submitted_at AND b.spec->>'entry_point' = j.spec->>'entry_point'
          AND b.spec->'params' = j.spec->'params'
    )
""")


@dataclass(frozen=True, slots=True)
class _Reached:
    """The furthest that a job came: `work` in its own measure, `samples` read."""

    work: int
    samples: int


def finished_runs(tx: Tx, limit: int, of_unknown_end: bool | None = None) -> list[FinishedRun]:
    """Of the jobs that have trained, and of imported runs, the last `limit`, oldest first. `of_unknown_end`: only of
    those whose end nobody knew at their submission, or only of the others.

    Those that are still active are in it as they stand, but take the place of ended ones for a part of it at most.
    """
    by_import = select(ImportedRunRow).where(_of_kind(ImportedRunRow.run["description"], of_unknown_end))
    imported = [from_json(FinishedRun, row.run) for row in tx.session.scalars(
        by_import.order_by(ImportedRunRow.finished_at.desc(), ImportedRunRow.id.desc()).limit(limit)
    )]  # fmt: skip
    own = select(JobRow).where(_of_kind(JobRow.spec["work"], of_unknown_end))
    by_end = own.where(JobRow.state != JobState.ACTIVE).order_by(JobRow.finished_at.desc(), JobRow.id.desc())
    ended = [*imported, *_own_runs(tx, by_end, limit)]
    ended.sort(key=lambda run: (run.finished_at, run.job_id))
    room = max(limit - len(ended), int(MOST_ACTIVE * limit))
    by_age = own.where(JobRow.state == JobState.ACTIVE)
    active = _own_runs(tx, by_age.order_by(JobRow.submitted_at.desc(), JobRow.id.desc()), room)[::-1]
    return [*ended, *active][-limit:]


def _of_kind(work: Any, of_unknown_end: bool | None) -> ColumnElement[bool]:
    """`work`: of a spec, or the description of a run, which say in the same words what may end it."""
    if of_unknown_end is None:
        return true()
    unknown = or_(work["target_loss"].astext.is_not(None), work["patience"].astext.is_not(None))
    return unknown if of_unknown_end else not_(unknown)


def _trained(report: type[ObservationRow] | type[CheckpointRow]) -> ColumnElement[bool]:
    """Whether a job's current lineage has such a report of work. Looked up job by job: both tables are large."""
    done = func.coalesce(report.progress, report.samples) >= 1
    found = select(report.id).where(report.job_id == JobRow.id, report.lineage == JobRow.lineage, done).limit(1)
    return found.scalar_subquery().is_not(None)


def _own_runs(tx: Tx, jobs: Select[JobRow], limit: int) -> list[FinishedRun]:
    """The first so many of `jobs` that have trained."""
    trained = or_(_trained(ObservationRow), _trained(CheckpointRow))
    rows = tx.session.scalars(jobs.where(trained).limit(limit)).all()
    ids = [job.id for job in rows]
    run_losses, is_resubmitted, run_metrics = losses(tx, ids), resubmitted(tx, ids), metrics(tx, ids)
    reached = {row.id: _Reached(int(row.work or 0), int(row.samples or 0))
               for row in tx.session.execute(WORK, {"jobs": ids})}  # fmt: skip
    points = profiles(tx, ids)
    return [
        FinishedRun(
            job_id=job.id,
            finished_at=job.finished_at if job.finished_at is not None else tx.now,
            description=described(job),
            resubmitted=is_resubmitted[job.id],
            losses=run_losses.get(job.id, ()),
            metrics=run_metrics.get(job.id, ()),
            work=reached[job.id].work,
            completed=_completed(job, reached[job.id], run_losses.get(job.id, ())),
            profile=points.get(job.id, ()),
        )
        for job in rows
    ]


def _completed(job: JobRow, reached: _Reached, reported: Reports) -> bool:
    spec = spec_of(job)
    return job.state == JobState.FINISHED and came_to_its_end(
        end_is_known=spec.work.end_is_known,
        at_its_limit=reached.work >= job.total_samples or reached.samples >= most_samples(spec, job.total_samples),
        target_loss=spec.work.target_loss,
        last_loss=reported[-1][1] if reported else None,
    )


def endings(tx: Tx, lately: ColumnElement[bool], most: int) -> tuple[EndedJob, ...]:
    """Jobs that are over, the latest so many: how much work they have committed, and whether that was all of it.

    One that trained to its end and whose spec cannot be read counts as cut off: that it did so much is known.
    """
    over = select(JobRow.id, JobRow.state, JobRow.spec["work"], CheckpointRow.progress, CheckpointRow.samples)
    over = over.outerjoin(CheckpointRow, CheckpointRow.id == JobRow.head_id)
    over = over.where(JobRow.state != JobState.ACTIVE, lately)
    ended, open_ended = dict[str, EndedJob](), dict[str, _Reached]()
    for job_id, state, work, progress, samples in tx.session.execute(
        over.order_by(JobRow.finished_at.desc(), JobRow.id).limit(most)
    ):
        reached = _Reached(int(samples or 0) if progress is None else int(progress), int(samples or 0))
        ended[job_id] = EndedJob(job_id=job_id, work=reached.work, completed=state == JobState.FINISHED)
        if ended[job_id].completed and not _end_is_known(work):
            open_ended[job_id] = reached
    last = {job_id: ((int(done), float(loss)),)
            for job_id, done, loss in tx.session.execute(LAST_LOSSES, {"jobs": list(open_ended)})}  # fmt: skip
    for job in tx.among(JobRow.id, open_ended):
        completed = _is_completed(job, open_ended[job.id], last.get(job.id, ()))
        ended[job.id] = replace(ended[job.id], completed=completed)
    return tuple(ended.values())


def _end_is_known(work: object) -> bool:
    """False where it cannot be read either: `_is_completed` looks at the whole spec then."""
    try:
        return Work.model_validate(work).end_is_known
    except (ValueError, UserError):
        return False


def _is_completed(job: JobRow, reached: _Reached, reported: Reports) -> bool:
    """As `_completed`; False of a job whose spec cannot be read, which stops nobody else."""
    try:
        return _completed(job, reached, reported)
    except (ValueError, UserError) as error:
        log.warning("a job that is over counts as cut off: its spec cannot be read", job=job.id, error=repr(error))
        return False


def described(job: JobRow) -> JobDescription:
    return describe(spec_of(job), from_json(JobFacts, job.facts), job.total_samples)


def describe(spec: JobSpec, facts: JobFacts, most: int) -> JobDescription:
    limits = spec.limits()
    return JobDescription(
        entry_point=spec.entry_point,
        params=spec.params,
        requested_slots=limits.requested_slots,
        requested_batch=limits.requested_batch,
        dataset_samples=facts.dataset_samples,
        most_samples=most,
        num_parameters=facts.num_parameters,
        accelerated=None if not limits.types else limits.types[0] != CPU,
        target_loss=spec.work.target_loss,
        patience=spec.work.patience,
        metric_mode=facts.metric_mode,
        measure=spec.work.measure,
    )


def import_runs(tx: Tx, runs: Sequence[FinishedRun]) -> int:
    """Keep these runs beside the ledger's own; one whose id was imported before stays as it is. How many were new."""
    if not runs:
        return 0
    rows = [{"id": run.job_id, "finished_at": run.finished_at, "imported_at": tx.now, "run": to_json(run)}
            for run in {run.job_id: run for run in runs}.values()]  # fmt: skip
    inserted = insert(ImportedRunRow).values(rows).on_conflict_do_nothing().returning(ImportedRunRow.id)
    return len(tx.session.scalars(inserted).all())


def losses(tx: Tx, job_ids: Sequence[str]) -> Mapping[str, Reports]:
    """By job, at most twice `MOST_REPORTS` of each; absent where nothing was reported."""
    losses_by_job: dict[str, list[tuple[int, float]]] = {}
    for job_id, samples, loss in tx.session.execute(LOSSES, {"jobs": list(job_ids), "most": MOST_REPORTS}):
        losses_by_job.setdefault(job_id, []).append((int(samples), float(loss)))
    return {job_id: tuple(points) for job_id, points in losses_by_job.items()}


def metrics(tx: Tx, job_ids: Sequence[str]) -> Mapping[str, Reports]:
    """By job, the task's metric at the checkpoints of its current lineage; absent where it was never evaluated."""
    names = {row.id: from_json(JobFacts, row.facts).metric
             for row in tx.session.scalars(select(JobRow).where(JobRow.id.in_(job_ids)))}  # fmt: skip
    values: dict[str, list[tuple[int, float]]] = {}
    for job_id, samples, value in tx.session.execute(METRICS, {"jobs": list(names), "metrics": list(names.values())}):
        values.setdefault(job_id, []).append((int(samples), float(value)))
    return {job_id: tuple(points) for job_id, points in values.items()}


def resubmitted(tx: Tx, job_ids: Sequence[str]) -> Mapping[str, bool]:
    """Whether the same task was submitted with the same parameters before."""
    again = set(tx.session.scalars(RESUBMITTED, {"jobs": list(job_ids)}))
    return {job_id: job_id in again for job_id in job_ids}
