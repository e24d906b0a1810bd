"""Jobs after the fact: what they were, when they held what, what was measured of them. Reads only."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select

from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.leases import allocation
from elastic_core.control.ledger.profiles import noise_scales, pasts, placed_speeds, profiles
from elastic_core.control.ledger.tables import CheckpointRow, JobRow, LeaseRow
from elastic_core.control.ledger.views import spec_of
from elastic_core.domain import JobState, from_json
from elastic_core.placement.placed_models import limits_of
from elastic_core.protocol.records import JobFacts, PastJob, PastLease
from elastic_core.snapshot.past import Past


def past_jobs(tx: Tx, limit: int) -> list[PastJob]:
    """The last `limit` jobs to be submitted, the oldest first."""
    query = select(JobRow).order_by(JobRow.submitted_at.desc(), JobRow.id.desc()).limit(limit)
    rows = list(tx.session.scalars(query))[::-1]
    ids = [job.id for job in rows]
    points, noise, past, leases = profiles(tx, ids), noise_scales(tx, ids), pasts(tx, ids), _leases(tx, ids)
    placed = placed_speeds(tx, ids)
    heads = [job.head_id for job in rows if job.head_id is not None]
    rows_of_heads = tx.session.scalars(select(CheckpointRow).where(CheckpointRow.id.in_(heads)))
    committed = {c.id: c.samples if c.progress is None else int(c.progress) for c in rows_of_heads}
    jobs = []
    for job in rows:
        spec, own = spec_of(job), past.get(job.id, Past())
        done = committed.get(job.head_id or -1, 0)
        reached = not spec.work.end_is_known and job.state == JobState.FINISHED  # what it took is what it was
        jobs.append(
            PastJob(
                job_id=job.id,
                name=spec.name,
                task=spec.entry_point,
                queue=spec.queue,
                priority=spec.priority,
                submitted_at=job.submitted_at,
                finished_at=job.finished_at,
                state=JobState(job.state),
                deadline=spec.deadline.timestamp() if spec.deadline is not None else None,
                limits=limits_of(spec, from_json(JobFacts, job.facts)),
                total_samples=done if reached else job.total_samples,
                done_samples=done,
                profile=points.get(job.id, ()),
                noise_scale=noise.get(job.id),
                resize_seconds=own.resize_seconds,
                num_resizes=own.num_resizes,
                leases=tuple(leases.get(job.id, ())),
                placed_speeds=placed.get(job.id, ()),
                most_samples=None if spec.work.end_is_known else job.total_samples,
                scale_invariant=spec.work.scale_invariant,
            )
        )
    return jobs


def _leases(tx: Tx, job_ids: Sequence[str]) -> dict[str, list[PastLease]]:
    leases: dict[str, list[PastLease]] = {}
    query = select(LeaseRow).where(LeaseRow.job_id.in_(job_ids)).order_by(LeaseRow.epoch)
    for row in tx.session.scalars(query):
        lease = PastLease(
            since=row.granted_at,
            until=row.released_at,
            allocation=allocation(row),
            handed_over=row.origin_epoch != row.epoch,
        )
        leases.setdefault(row.job_id, []).append(lease)
    return leases
