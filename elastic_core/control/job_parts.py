"""Parts of what a job has more of the longer it runs: pages of its segments and of its checkpoints.

Only the rows of the page are read; how many there are is counted.
"""

from __future__ import annotations

from sqlalchemy import UnaryExpression, func, select
from sqlalchemy.orm import InstrumentedAttribute

from elastic_core.control.ledger import views
from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.tables import CheckpointRow, SegmentRow
from elastic_core.protocol.rest.job_details import CheckpointPage, Part, SegmentPage


def segments_page(tx: Tx, job_id: str, part: Part) -> SegmentPage:
    """In the order in which they followed each other. Raises `NotFound` for a job that there is not."""
    tx.job(job_id)
    of_job = SegmentRow.job_id == job_id
    total = tx.session.scalar(select(func.count()).select_from(SegmentRow).where(of_job)) or 0
    rows = select(SegmentRow).where(of_job).order_by(_ordered(SegmentRow.index, part))
    found = tx.session.scalars(rows.offset(part.offset).limit(part.limit)).all()
    return SegmentPage(total=total, offset=part.offset, segments=tuple(views.segment_statuses(tx, found)))


def checkpoints_page(tx: Tx, job_id: str, part: Part) -> CheckpointPage:
    """Of those that still exist, over all lineages, by age. Raises `NotFound` for a job that there is not."""
    tx.job(job_id)
    there = (CheckpointRow.job_id == job_id, CheckpointRow.swept_at.is_(None))
    total = tx.session.scalar(select(func.count()).select_from(CheckpointRow).where(*there)) or 0
    rows = select(CheckpointRow).where(*there).order_by(_ordered(CheckpointRow.id, part))
    found = tx.session.scalars(rows.offset(part.offset).limit(part.limit))
    return CheckpointPage(total=total, offset=part.offset, checkpoints=tuple(map(views.checkpoint_record, found)))


def _ordered(column: InstrumentedAttribute[int], part: Part) -> UnaryExpression[int]:
    return column.desc() if part.descending else column.asc()
