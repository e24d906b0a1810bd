"""A job that has diverged under an exchange that is not exact goes on by the exact sum, from its last commit.

It is kept with the job, so that resumes, retries, rollbacks and new lineages keep it; it happens at most once. The next
decision gives the job the exact sum (`snapshots.submission`), and so does every lease that is opened for it from now
on, whatever plan it carries out (`leases.open_lease`). Orders for it say that stages send each other all
(`orders.launch_order`).
"""

from __future__ import annotations

from elastic_core.control.ledger import leases, lineage
from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.feed import add_note, emit
from elastic_core.control.ledger.tables import JobRow, LeaseRow, SegmentRow
from elastic_core.control.ledger.views import spec_of
from elastic_core.domain import EXACT, ExchangeFallback, to_json
from elastic_core.logs import get_logger
from elastic_core.protocol.events import EventKind
from elastic_core.protocol.exchange_words import fallback_words
from elastic_core.spec.parts.job_comm import STAGE_RATIO

log = get_logger(__name__)


def fall_back(tx: Tx, job: JobRow, segment: SegmentRow, lease: LeaseRow, why: str) -> bool:
    """Whether the job falls back; False where it did before, or its lease was for the exact sum, and stages that it had
    sent each other all."""
    granted = leases.allocation(lease)
    algorithm = STAGE_RATIO if spec_of(job).comm.shrinks_stages(granted.layout) else granted.comm
    if algorithm == EXACT or job.exchange_fallback is not None:
        return False
    fallback = ExchangeFallback(algorithm=algorithm, reason=why, step=lineage.head_step(tx, job), at=tx.now)
    job.exchange_fallback = to_json(fallback)
    emit(tx, EventKind.EXCHANGE_FELL_BACK, job.id, {"fallback": to_json(fallback)}, segment.id, lease.epoch)
    add_note(tx, job, fallback_words(fallback))
    log.warning("a job has diverged, and goes on by the exact sum", job=job.id, algorithm=algorithm, why=why)
    return True
