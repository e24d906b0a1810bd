"""Brings a plan into force, as far as it can be now: writes the targets, grants, revokes. Under the scheduling lock."""

from __future__ import annotations

from sqlalchemy import delete, select
from sqlalchemy.dialects.postgresql import insert

from elastic_core.control.ledger import leases, lineage
from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.tables import LeaseRow, SegmentRow, TargetRow
from elastic_core.control.scheduling.snapshots import between_until
from elastic_core.domain import JobView, Plan, SegmentState, Slot, Snapshot, to_json
from elastic_core.policy.base.queue import in_order
from elastic_core.policy.plans.grants import Asker, Holder, Moves, plan_moves


def enforce(tx: Tx, snapshot: Snapshot, plan: Plan, decision_id: int) -> tuple[list[str], float | None]:
    """What was done, in words, and when to look again should nothing happen before."""
    live = select(LeaseRow).where(LeaseRow.released_at.is_(None)).order_by(LeaseRow.epoch)
    leased = tx.session.scalars(live).all()
    ids = {lease.segment_id for lease in leased} | {job.segment_id for job in snapshot.jobs}
    query = select(SegmentRow).where(SegmentRow.id.in_(ids))
    segments, leaving = {row.id: row for row in tx.session.scalars(query)}, leases.leaving(tx)
    holders = [_holder(lease, segments[lease.segment_id], leaving.get(lease.epoch, ())) for lease in leased]
    waiting = [job for job in in_order(snapshot.jobs) if segments[job.segment_id].state == SegmentState.WAITING]
    last = leases.last_slots(tx, [job.job_id for job in waiting])
    askers = [_asker(job, last.get(job.job_id, ())) for job in waiting]
    moves = plan_moves(tx.now, tx.settings.grace_seconds, leases.free_slots(tx), holders, askers, plan.targets)
    _write_targets(tx, plan, moves, decision_id)
    return _apply(tx, moves), _check_at(tx, moves)


def _asker(job: JobView, last_slots: tuple[Slot, ...]) -> Asker:
    return Asker(job_id=job.job_id, segment_id=job.segment_id, limits=job.limits, last_slots=last_slots)


def _holder(lease: LeaseRow, segment: SegmentRow, leaving: tuple[Slot, ...]) -> Holder:
    runs = SegmentState(segment.state).open and segment.epoch == lease.epoch and lease.fenced_at is None
    since = segment.revoked_at if runs else (lease.fenced_at or segment.ended_at)
    return Holder(
        job_id=lease.job_id,
        segment_id=lease.segment_id,
        allocation=leases.allocation(lease),
        ending_since=since,
        revoked_by=segment.revoked_by,
        open=runs,
        leaving=leaving,
        leaving_since=lease.granted_at if leaving else None,
    )


def _apply(tx: Tx, moves: Moves) -> list[str]:
    actions = []
    for grant in moves.grants:
        segment = tx.segment(grant.asker.segment_id)
        job = tx.job(segment.job_id, lock=True)
        segment.start_step = lineage.head_step(tx, job)
        lease = leases.open_lease(tx, job, segment, grant.allocation, grant.reason)
        places = ", ".join(leases.slot_id(slot) for slot in grant.allocation.slots)
        actions.append(f"{segment.id}: granted {places} as epoch {lease.epoch}")
    for segment_id, reason in moves.revocations.items():
        leases.revoke(tx, tx.segment(segment_id), "plan", reason)
        actions.append(f"{segment_id}: asked to reach a boundary: {reason}")
    for segment_id in moves.withdrawals:
        leases.clear_revocation(tx.segment(segment_id))
        actions.append(f"{segment_id}: may go on after all")
    return actions


def _write_targets(tx: Tx, plan: Plan, moves: Moves, decision_id: int) -> None:
    tx.session.execute(delete(TargetRow).where(TargetRow.job_id.not_in(list(plan.targets))))
    rows = [
        {"job_id": job_id, "target": to_json(target), "decision_id": decision_id, "waits": moves.waits.get(job_id)}
        for job_id, target in plan.targets.items()
    ]
    if rows:
        statement = insert(TargetRow)
        new = statement.excluded
        statement = statement.on_conflict_do_update(
            index_elements=[TargetRow.job_id],
            set_={"target": new.target, "decision_id": new.decision_id, "waits": new.waits},
        )
        tx.session.execute(statement, rows)


def _check_at(tx: Tx, moves: Moves) -> float | None:
    """A rule of waiting runs out, or a job between two segments loses its place."""
    created = tx.session.scalars(select(SegmentRow).where(SegmentRow.state == SegmentState.CREATED))
    times = [until for segment in created if (until := between_until(segment)) is not None and until > tx.now]
    return min([*times, *([moves.check_at] if moves.check_at is not None else [])], default=None)
