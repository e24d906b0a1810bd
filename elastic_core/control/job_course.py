"""How jobs went: reports of one, evenly spread where there are many, what its starts and resizes moved, and where each
is on its way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import text

from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.profiles import pasts
from elastic_core.control.ledger.views import last_segments
from elastic_core.domain import Layout, from_json
from elastic_core.protocol.rest.job_details import JobMoves, JobReport
from elastic_core.snapshot.job_record import waiting_since
from elastic_core.snapshot.past import Past

# The last of each cell of equal work, over all lineages one after the other, or the last one there that came with
# metrics: they are fewer. All, where they are few.
REPORTS = text("""
    WITH spans AS (
        SELECT lineage, min(samples) AS low, max(samples) - min(samples) + 1 AS samples, count(*) AS reports
        FROM observations WHERE job_id = :job GROUP BY lineage
    ), placed AS (
        SELECT lineage, sum(samples) OVER (ORDER BY lineage) - samples - low AS shift, sum(samples) OVER () AS total,
               sum(reports) OVER () AS reports
        FROM spans
    )
    SELECT lineage, segment_id, step, samples, at, num_slots, num_nodes, type, global_batch, samples_per_second, loss,
           learning_rate, metrics, layout, comm, progress
    FROM observations WHERE id IN (
        SELECT coalesce(max(id) FILTER (WHERE metrics <> '{}'), max(id)) FROM observations JOIN placed USING (lineage)
        WHERE job_id = :job
        GROUP BY CASE WHEN reports <= :most THEN id ELSE floor((samples + shift) * :most / total) END)
    ORDER BY id
""")

# The timings of a restore go with the first checkpoint after it, so that each is counted once.
MOVED = text("""
    SELECT t.key, sum(CAST(t.value AS float8))
    FROM checkpoints c CROSS JOIN LATERAL jsonb_each_text(c.timings) AS t (key, value)
    WHERE c.job_id = :job AND (t.key LIKE 'restore\\_%' OR t.key LIKE 'restored\\_from\\_%\\_bytes')
    GROUP BY t.key
""")
RESTORES = text("SELECT count(*) FROM checkpoints WHERE job_id = :job AND timings ? 'restore_fetch'")
# Of checkpoints back from the head: how far each lineage before the present one counts.
HISTORY = text("""
    WITH RECURSIVE walk AS (
        SELECT id, previous_id, lineage, step FROM checkpoints WHERE id = :head
        UNION ALL
        SELECT older.id, older.previous_id, older.lineage, older.step
        FROM checkpoints older JOIN walk ON older.id = walk.previous_id
    )
    SELECT lineage, max(step) FROM walk WHERE lineage < :lineage GROUP BY lineage
""")
_FROM, _BYTES = "restored_from_", "_bytes"


def reports(tx: Tx, job_id: str, most: int) -> list[JobReport]:
    """At most so many, evenly spread, of all lineages, in the order in which they came. Raises `NotFound`."""
    rows = tx.session.execute(REPORTS, {"job": tx.job(job_id).id, "most": most}).mappings()
    return [
        JobReport(
            **{name: value for name, value in row.items() if name not in ("layout", "metrics")},
            layout=None if row["layout"] is None else from_json(Layout, row["layout"]),
            metrics={name: float(value) for name, value in row["metrics"].items()},
        )
        for row in rows
    ]


def moves(tx: Tx, job_id: str) -> JobMoves:
    """Raises `NotFound`."""
    job = tx.job(job_id)
    past = pasts(tx, [job.id]).get(job.id, Past())
    told = {key: float(value) for key, value in tx.session.execute(MOVED, {"job": job.id})}
    moved = {
        key.removeprefix(_FROM).removesuffix(_BYTES): int(value)
        for key, value in sorted(told.items())
        if key.startswith(_FROM)
    }
    return JobMoves(
        num_resizes=past.num_resizes,
        slot_seconds=past.slot_seconds,
        restores=tx.session.execute(RESTORES, {"job": job.id}).scalar_one(),
        restore_seconds=sum(value for key, value in told.items() if not key.startswith(_FROM)),
        moved=moved,
    )


def kept_steps(tx: Tx, job_id: str) -> dict[int, int]:
    """Of each lineage before the job's present one, the last step that its state goes back to; absent: none. What came
    after it a rollback left. Raises `NotFound`."""
    job = tx.job(job_id)
    if not job.lineage:
        return {}
    rows = tx.session.execute(HISTORY, {"head": job.head_id, "lineage": job.lineage})
    return {lineage: step for lineage, step in rows}


@dataclass(frozen=True, slots=True)
class JobCourse:
    """Where a job is on its way."""

    waiting_since: float | None  # as decisions are told it
    num_resizes: int  # changes of its slots, and restarts, as decisions count them


def courses(tx: Tx, job_ids: Sequence[str]) -> dict[str, JobCourse]:
    """By job, of those that there are."""
    past = pasts(tx, job_ids)
    return {
        job_id: JobCourse(
            waiting_since(last.state, last.created_at, last.asked_at), past.get(job_id, Past()).num_resizes
        )
        for job_id, last in last_segments(tx, job_ids).items()
    }
