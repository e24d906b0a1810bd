"""A job's history as a chain: each checkpoint names the one that its training went on from.

The job's head is its newest good checkpoint. Going back along the chain gives the restore candidates and what was
read, also over corrupt checkpoints that were passed over and over rollbacks. A fork's chain ends with the checkpoint of
another job that it began from: what is before that is the other job's.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, and_, bindparam, column, func, select, text

from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.tables import CheckpointRow, JobRow
from elastic_core.control.ledger.views import checkpoint_record
from elastic_core.protocol.process_groups import fork_of
from elastic_core.protocol.records import RestorePoint

MAX_CANDIDATES = 8

# From `head` back to the job's first commit, and a fork's start, or to where `most` usable ones are found (NULL: the
# whole chain): a long history costs who needs its end no more than a short one.
_WALK = (
    text("""
    WITH RECURSIVE walk AS (
        SELECT id, job_id, previous_id, (NOT bad AND swept_at IS NULL)::int AS found FROM checkpoints WHERE id = :head
        UNION ALL
        SELECT older.id, older.job_id, older.previous_id, walk.found + (NOT older.bad AND older.swept_at IS NULL)::int
        FROM checkpoints older JOIN walk ON older.id = walk.previous_id
        WHERE walk.job_id = :job AND (CAST(:most AS int) IS NULL OR walk.found < :most)
    )
    SELECT id FROM walk
""")
    .columns(column("id", BigInteger))
    .subquery("walk")
)
_USABLE = and_(~CheckpointRow.bad, CheckpointRow.swept_at.is_(None))
_NEWEST_USABLE_IDS = select(CheckpointRow.id).join(_WALK, _WALK.c.id == CheckpointRow.id).where(_USABLE)
_NEWEST_USABLE = (
    select(CheckpointRow)
    .join(_WALK, _WALK.c.id == CheckpointRow.id)
    .where(_USABLE)
    .order_by(CheckpointRow.id.desc())
    .limit(bindparam("most"))
)
_READS = (
    select(CheckpointRow.fingerprints)
    .join(_WALK, _WALK.c.id == CheckpointRow.id)
    .where(CheckpointRow.job_id == bindparam("job"))
    .order_by(CheckpointRow.id)
)


def reads(tx: Tx, job: JobRow) -> list[dict[str, Any]]:
    """Fingerprints of the job's own commits on its chain, from the first on."""
    return list(tx.session.scalars(_READS, {"head": job.head_id, "most": None, "job": job.id}))


def usable(row: CheckpointRow) -> bool:
    return not row.bad and row.swept_at is None


def newest_usable(tx: Tx, job: JobRow, head_id: int | None, most: int) -> list[CheckpointRow]:
    """At most so many of the chain, the newest first."""
    if head_id is None:
        return []
    return list(tx.session.scalars(_NEWEST_USABLE, {"head": head_id, "most": most, "job": job.id}))


def newest_usable_ids(tx: Tx, job: JobRow, head_id: int | None, most: int) -> set[int]:
    """The ids of the same, of which nothing else is read."""
    if head_id is None:
        return set()
    return set(tx.session.scalars(_NEWEST_USABLE_IDS, {"head": head_id, "most": most, "job": job.id}))


def restore_point(tx: Tx, job: JobRow) -> RestorePoint:
    """Of a fork never nothing: where none is good, who reads its start finds out, and it does not begin at step 0."""
    good = newest_usable(tx, job, job.head_id, MAX_CANDIDATES)
    start = None if good else fork_start(tx, job)
    return RestorePoint(candidates=tuple(checkpoint_record(row) for row in ([start] if start is not None else good)))


def fork_start(tx: Tx, job: JobRow) -> CheckpointRow | None:
    """The checkpoint of another job that a fork began from, as it is now."""
    fork = fork_of(job.results)
    return None if fork is None else tx.session.get_one(CheckpointRow, fork.checkpoint_id)


def head(tx: Tx, job: JobRow) -> CheckpointRow | None:
    return tx.row(CheckpointRow, job.head_id) if job.head_id is not None else None


_FURTHEST = select(func.max(CheckpointRow.step)).where(
    CheckpointRow.job_id == bindparam("job"), CheckpointRow.lineage == bindparam("lineage")
)


def furthest_step(tx: Tx, job: JobRow) -> int:
    """The furthest step that the job's lineage ever committed, also by a checkpoint that was found corrupt since."""
    return tx.session.scalar(_FURTHEST, {"job": job.id, "lineage": job.lineage}) or 0


def head_step(tx: Tx, job: JobRow) -> int:
    row = head(tx, job)
    return row.step if row is not None else 0
