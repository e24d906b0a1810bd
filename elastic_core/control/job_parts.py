"""Parts of what a job has more of the longer it runs: pages of its segments and of its checkpoints.

Only the rows of the page are read; how many there are is counted.
"""

from __future__ import annotations

from sqlalchemy import and_

from elastic_core.control.ledger import views
from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.reads import part_of
from elastic_core.control.ledger.tables import CheckpointRow, SegmentRow
from elastic_core.protocol.rest.job_details import CheckpointPage, Part, SegmentPage


def segments_page(tx: Tx, job_id: str, part: Part) -> SegmentPage:
    """In the order in which they followed each other. Raises `NotFound` for a job that there is not."""
    tx.job(job_id)
    total, rows = part_of(tx, SegmentRow, SegmentRow.job_id == job_id, SegmentRow.index, part)
    return SegmentPage(total=total, offset=part.offset, segments=tuple(views.segment_statuses(tx, rows)))


def checkpoints_page(tx: Tx, job_id: str, part: Part) -> CheckpointPage:
    """Of those that still exist, over all lineages, by age. Raises `NotFound` for a job that there is not."""
    tx.job(job_id)
    there = and_(CheckpointRow.job_id == job_id, CheckpointRow.swept_at.is_(None))
    total, rows = part_of(tx, CheckpointRow, there, CheckpointRow.id, part)
    return CheckpointPage(total=total, offset=part.offset, checkpoints=tuple(map(views.checkpoint_record, rows)))
