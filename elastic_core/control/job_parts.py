"""Parts of what a job has more of the longer it runs: pages of its segments and of its checkpoints.

Only the rows of the page are read; how many there are is counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from sqlalchemy import ColumnElement, and_, func, select
from sqlalchemy.orm import InstrumentedAttribute

from elastic_core.control.ledger import views
from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.tables import CheckpointRow, SegmentRow
from elastic_core.protocol.rest.job_details import CheckpointPage, Part, SegmentPage

R = TypeVar("R", SegmentRow, CheckpointRow)


def segments_page(tx: Tx, job_id: str, part: Part) -> SegmentPage:
    """In the order in which they followed each other. Raises `NotFound` for a job that there is not."""
    tx.job(job_id)
    total, rows = _part_of(tx, SegmentRow, SegmentRow.job_id == job_id, SegmentRow.index, part)
    return SegmentPage(total=total, offset=part.offset, segments=tuple(views.segment_statuses(tx, rows)))


def checkpoints_page(tx: Tx, job_id: str, part: Part) -> CheckpointPage:
    """Of those that still exist, over all lineages, by age. Raises `NotFound` for a job that there is not."""
    tx.job(job_id)
    there = and_(CheckpointRow.job_id == job_id, CheckpointRow.swept_at.is_(None))
    total, rows = _part_of(tx, CheckpointRow, there, CheckpointRow.id, part)
    return CheckpointPage(total=total, offset=part.offset, checkpoints=tuple(map(views.checkpoint_record, rows)))


def _part_of(
    tx: Tx, row: type[R], which: ColumnElement[bool], order: InstrumentedAttribute[int], part: Part
) -> tuple[int, Sequence[R]]:
    """How many such rows there are, and those of the part."""
    total = tx.session.scalar(select(func.count()).select_from(row).where(which)) or 0
    asked = select(row).where(which).order_by(order.desc() if part.descending else order.asc())
    return total, tx.session.scalars(asked.offset(part.offset).limit(part.limit)).all()
