"""Who holds which slot, and who waits, of one moment of the ledger."""

from __future__ import annotations

from sqlalchemy import select

from elastic_core.control.ledger import views
from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.leases import allocation
from elastic_core.control.ledger.tables import JobRow
from elastic_core.control.transitions import node_health
from elastic_core.control.waiting_jobs import WaitingJobs
from elastic_core.domain import JobState
from elastic_core.protocol.cluster.cluster_slots import ClusterShown, cluster_of

_ACTIVE = select(JobRow.id).where(JobRow.state == JobState.ACTIVE).order_by(JobRow.submitted_at, JobRow.id)


def cluster_shown(tx: Tx, waiting: WaitingJobs) -> ClusterShown:
    """Of jobs that hold slots no more is read than which."""
    nodes, active = node_health.statuses(tx), tx.session.scalars(_ACTIVE).all()
    held = {job_id: allocation(lease) for job_id, lease in views.live_leases(tx, active).items()}
    rows = {row.id: row for row in tx.among(JobRow.id, [job_id for job_id in active if job_id not in held])}
    without = views.job_statuses(tx, [rows[job_id] for job_id in active if job_id in rows])
    return cluster_of(nodes, held, waiting.placed(tx, without))
