"""The launch order of a granted segment: all that its processes need, with their token."""

from __future__ import annotations

from sqlalchemy import select

from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.leases import allocation
from elastic_core.control.ledger.lineage import restore_point
from elastic_core.control.ledger.tables import CheckpointRow, JobRow, LeaseRow, SegmentRow
from elastic_core.domain import from_json
from elastic_core.protocol.process_groups import LaunchOrder
from elastic_core.protocol.records import JobFacts
from elastic_core.protocol.tokens import TrainerTokens
from elastic_core.spec import JobSpec


def launch_order(tx: Tx, tokens: TrainerTokens, job: JobRow, segment: SegmentRow, lease: LeaseRow) -> LaunchOrder:
    """Without the agent's token: it may go to the workers themselves."""
    spec = from_json(JobSpec, job.spec)
    return LaunchOrder(
        segment_id=segment.id,
        job_id=job.id,
        index=segment.index,
        lineage=segment.lineage,
        epoch=lease.epoch,
        origin_epoch=lease.origin_epoch,
        attempt=segment.attempt,
        spec=spec,
        facts=from_json(JobFacts, job.facts),
        allocation=allocation(lease),
        total_samples=job.total_samples,
        restore=restore_point(tx, job),
        warm_start=job.warm_start,
        warm_start_sha256=_manifest_sha256(tx, job.warm_start),
        segment_seconds=spec.segment.seconds,
        segment_steps=spec.segment.steps,
        token=issue(tokens, lease, tx.now),
        lease_seconds=tx.settings.lease_seconds,
        heartbeat_seconds=tx.settings.heartbeat_seconds,
        grant_reason=segment.grant_reason or "",
    )


def _manifest_sha256(tx: Tx, uri: str | None) -> str | None:
    """None for a checkpoint that no job of this ledger has committed: nobody knows what it should be."""
    if uri is None:
        return None
    return tx.session.scalar(select(CheckpointRow.manifest_sha256).where(CheckpointRow.uri == uri).limit(1))


def issue(tokens: TrainerTokens, lease: LeaseRow, now: float, *, agent: bool = False) -> str:
    return tokens.issue(
        job_id=lease.job_id,
        segment_id=lease.segment_id,
        epoch=lease.epoch,
        origin_epoch=lease.origin_epoch,
        now=now,
        agent=agent,
    )
