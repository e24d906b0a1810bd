"""A job's history as a chain: each checkpoint names the one that its training went on from.

The job's head is its newest good checkpoint. Going back along the chain gives the restore candidates and what was
read, also over corrupt checkpoints that were passed over and over rollbacks.
"""

from __future__ import annotations

from sqlalchemy import func, select
from sqlalchemy.orm import aliased

from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.tables import CheckpointRow, JobRow
from elastic_core.control.ledger.views import checkpoint_record
from elastic_core.protocol.records import RestorePoint

MAX_CANDIDATES = 8


def chain(tx: Tx, head_id: int | None) -> list[CheckpointRow]:
    """From `head_id` back to the job's first commit."""
    if head_id is None:
        return []
    base = select(CheckpointRow.id, CheckpointRow.previous_id).where(CheckpointRow.id == head_id)
    walk = base.cte("walk", recursive=True)
    older = aliased(CheckpointRow)
    walk = walk.union_all(select(older.id, older.previous_id).join(walk, older.id == walk.c.previous_id))
    query = select(CheckpointRow).where(CheckpointRow.id.in_(select(walk.c.id))).order_by(CheckpointRow.id.desc())
    return list(tx.session.scalars(query))


def usable(row: CheckpointRow) -> bool:
    return not row.bad and row.swept_at is None


def restore_point(tx: Tx, job: JobRow) -> RestorePoint:
    good = [row for row in chain(tx, job.head_id) if usable(row)]
    return RestorePoint(candidates=tuple(checkpoint_record(row) for row in good[:MAX_CANDIDATES]))


def head(tx: Tx, job: JobRow) -> CheckpointRow | None:
    return tx.session.get_one(CheckpointRow, job.head_id) if job.head_id is not None else None


def furthest_step(tx: Tx, job: JobRow) -> int:
    """The furthest step that the job's lineage ever committed, also by a checkpoint that was found corrupt since."""
    of_lineage = (CheckpointRow.job_id == job.id, CheckpointRow.lineage == job.lineage)
    return tx.session.scalar(select(func.max(CheckpointRow.step)).where(*of_lineage)) or 0


def head_step(tx: Tx, job: JobRow) -> int:
    row = head(tx, job)
    return row.step if row is not None else 0
