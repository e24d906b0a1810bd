"""What the ledger says about runs as a whole: losses in the order of the work, and how the job was submitted.

Bounded: of a long run only evenly spread reports are handed out, and a run that was rolled back counts as it was
trained in the end (its current lineage).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import select, text

from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.tables import JobRow
from elastic_core.domain import JobState, from_json
from elastic_core.protocol.records import FinishedRun, JobFacts
from elastic_core.spec import JobSpec

MOST_REPORTS = 256  # of one run

LOSSES = text("""
    SELECT wanted.id, o.done, o.loss
    FROM unnest(CAST(:jobs AS text[])) AS wanted (id)
    JOIN jobs j ON j.id = wanted.id
    CROSS JOIN LATERAL (
        SELECT coalesce(progress, samples) AS done, loss,
               row_number() OVER (ORDER BY samples, id) AS place, count(*) OVER () AS reports
        FROM observations WHERE job_id = j.id AND lineage = j.lineage
    ) AS o
    WHERE o.place % greatest(o.reports / :most, 1) = 0 OR o.place = o.reports
    ORDER BY wanted.id, o.place
""")

RESUBMITTED = text("""
    SELECT id, EXISTS (
        SELECT 1 FROM jobs b
        WHERE b.submitted_at < j.submitted_at AND b.spec->>'entry_point' = j.spec->>'entry_point'
          AND b.spec->'params' = j.spec->'params'
    ) FROM jobs j WHERE id = ANY (CAST(:jobs AS text[]))
""")

Losses = tuple[tuple[int, float], ...]  # (samples of work done, by the job's own measure, and loss)


def finished_runs(tx: Tx, limit: int) -> list[FinishedRun]:
    """The last `limit` jobs that trained to their end, the oldest first."""
    query = select(JobRow).where(JobRow.state == JobState.FINISHED)
    rows = list(tx.session.scalars(query.order_by(JobRow.finished_at.desc(), JobRow.id.desc()).limit(limit)))[::-1]
    ids = [job.id for job in rows]
    run_losses, is_resubmitted = losses(tx, ids), resubmitted(tx, ids)
    return [
        FinishedRun(
            job_id=job.id,
            finished_at=job.finished_at or 0.0,
            spec=from_json(JobSpec, job.spec),
            facts=from_json(JobFacts, job.facts),
            resubmitted=is_resubmitted[job.id],
            losses=run_losses.get(job.id, ()),
        )
        for job in rows
    ]


def losses(tx: Tx, job_ids: Sequence[str]) -> Mapping[str, Losses]:
    """By job, at most twice `MOST_REPORTS` of each; absent where nothing was reported."""
    losses_by_job: dict[str, list[tuple[int, float]]] = {}
    for job_id, samples, loss in tx.session.execute(LOSSES, {"jobs": list(job_ids), "most": MOST_REPORTS}):
        losses_by_job.setdefault(job_id, []).append((int(samples), float(loss)))
    return {job_id: tuple(points) for job_id, points in losses_by_job.items()}


def resubmitted(tx: Tx, job_ids: Sequence[str]) -> Mapping[str, bool]:
    """Whether the same task was submitted with the same parameters before."""
    return {job_id: bool(before) for job_id, before in tx.session.execute(RESUBMITTED, {"jobs": list(job_ids)})}
