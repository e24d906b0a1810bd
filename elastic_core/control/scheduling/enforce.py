"""Brings a plan into force, as far as it can be now: writes the targets, grants, revokes. Under the scheduling lock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.dialects.postgresql import insert

from elastic_core.control.ledger import leases, lineage
from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.nodes import set_aside_nodes
from elastic_core.control.ledger.tables import DecisionRow, JobRow, LeaseRow, SegmentRow, TargetRow
from elastic_core.control.ledger.views import spec_in_force
from elastic_core.control.scheduling.snapshots import between_until, submission
from elastic_core.crashing import crash_here
from elastic_core.domain import JobView, Plan, SegmentState, Slot, Snapshot, Target, from_json, to_json
from elastic_core.policy.base.queue import in_order
from elastic_core.policy.plans.grants import grants_to_returning, plan_moves, usable
from elastic_core.policy.plans.moves import Asker, Holder, Moves
from elastic_core.snapshot.job_record import Submission

_LIVE = select(LeaseRow).where(LeaseRow.released_at.is_(None)).order_by(LeaseRow.epoch)
_WAITING = (  # a plan that was made before a job was paused gives it nothing
    select(SegmentRow.job_id, SegmentRow.id)
    .join(JobRow, JobRow.id == SegmentRow.job_id)
    .where(SegmentRow.state == SegmentState.WAITING, JobRow.paused.is_(None))
)
PREEMPTED_BY = "preempted_by"  # of a stored target
_PREEMPTED = select(TargetRow.job_id, TargetRow.target[PREEMPTED_BY]).where(TargetRow.target.has_key(PREEMPTED_BY))
_CREATED = select(SegmentRow).where(SegmentRow.state == SegmentState.CREATED)


def enforce(tx: Tx, snapshot: Snapshot, plan: Plan, decision_id: int) -> tuple[list[str], float | None]:
    """What was done, in words, and when to look again should nothing happen before."""
    moves = _moves(tx, snapshot.jobs, plan.targets)
    _write_targets(tx, plan, moves, decision_id)
    return _apply(tx, moves), _check_at(tx, moves)


def give_back(tx: Tx) -> None:
    """Jobs that lost an attempt get of what is free now what the plan in force has for them, whatever is due and
    whoever else waits. Where that is nothing, a decision is due."""
    targets = {row.job_id: from_json(Target, row.target) for row in tx.among(TargetRow.job_id, tx.returning)}
    moves = grants_to_returning(leases.free_slots(tx), _askers(tx, _waiting_jobs(tx, targets), targets), targets)
    decision = _in_force(tx)
    actions = _apply(tx, moves)
    if decision is not None:
        decision.actions = [*decision.actions, *actions]
    without = set(tx.returning) - {grant.asker.job_id for grant in moves.grants}
    if without and tx.trigger is None:
        tx.trigger = f"{', '.join(sorted(without))} lost an attempt"


def carry_on(tx: Tx) -> None:
    """The plan in force goes on, as far as it can now. Where a decision is due, that will do it."""
    scheduling = tx.scheduling()
    if scheduling.version != scheduling.decided_version:
        return
    decision = _in_force(tx)
    rows = {row.job_id: row for row in tx.session.scalars(select(TargetRow))}
    if decision is None or not rows:
        return
    moves = _moves(tx, _waiting_jobs(tx, rows), {job_id: from_json(Target, row.target) for job_id, row in rows.items()})
    for job_id, row in rows.items():
        row.waits = moves.waits.get(job_id)
    decision.actions = [*decision.actions, *_apply(tx, moves)]
    times = (decision.plan.get("wake_at"), _check_at(tx, moves))
    scheduling.wake_at = min((at for at in times if at is not None), default=None)


def _in_force(tx: Tx) -> DecisionRow | None:
    decided = tx.scheduling().decided_version
    return tx.session.scalar(select(DecisionRow).where(DecisionRow.version == decided))


def _waiting_jobs(tx: Tx, job_ids: Iterable[str]) -> list[Submission]:
    waiting = tx.among(JobRow.id, _waiting(tx, job_ids))
    return [submission(job, spec_in_force(job)) for job in waiting]


def _moves(tx: Tx, jobs: Iterable[JobView] | Iterable[Submission], targets: Mapping[str, Target]) -> Moves:
    """`jobs`: at least those that wait, in any order."""
    leased = tx.session.scalars(_LIVE).all()
    of_leases = tx.among(SegmentRow.id, {lease.segment_id for lease in leased})
    segments, draining = {row.id: row for row in of_leases}, leases.draining(tx)
    aside = set_aside_nodes(tx)
    holders = [_holder(lease, segments[lease.segment_id], draining.get(lease.epoch, ()), aside) for lease in leased]
    askers = _askers(tx, jobs, targets)
    return plan_moves(tx.now, tx.settings.grace_seconds, leases.free_slots(tx), holders, askers, targets)


def _askers(tx: Tx, jobs: Iterable[JobView] | Iterable[Submission], targets: Mapping[str, Target]) -> list[Asker]:
    """In the order of the queue."""
    waiting = _waiting(tx, targets)
    last = leases.last_slots(tx, list(waiting))
    return [
        Asker(job_id=job.job_id, segment_id=waiting[job.job_id], limits=job.limits, last_slots=last.get(job.job_id, ()))
        for job in in_order(job for job in jobs if job.job_id in waiting)
    ]


def _waiting(tx: Tx, job_ids: Iterable[str]) -> dict[str, str]:
    """By job: its segment that waits, which may have been made after the snapshot."""
    known = set(job_ids)
    return {job_id: segment_id for job_id, segment_id in tx.session.execute(_WAITING) if job_id in known}


def _holder(lease: LeaseRow, segment: SegmentRow, draining: tuple[Slot, ...], aside: frozenset[str]) -> Holder:
    held = leases.allocation(lease)
    runs = SegmentState(segment.state).open and segment.epoch == lease.epoch and lease.fenced_at is None
    since = segment.revoked_at if runs else (lease.fenced_at or segment.ended_at)
    return Holder(
        job_id=lease.job_id,
        segment_id=lease.segment_id,
        allocation=usable(held, aside),
        ending_since=since,
        revoked_by=segment.revoked_by,
        open=runs,
        draining=tuple(slot for slot in draining if slot.node not in aside),
        draining_since=lease.granted_at if draining else None,
        leaves=tuple(sorted({slot.node for slot in held.slots} & aside)),
    )


def _apply(tx: Tx, moves: Moves) -> list[str]:
    actions = []
    for grant in moves.grants:
        crash_here("decision.granting")
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
    preempted = {job_id: by for job_id, by in tx.session.execute(_PREEMPTED)}
    rows = [
        {
            "job_id": job_id, "target": _remembering(to_json(target), preempted.get(job_id)),
            "decision_id": decision_id, "waits": moves.waits.get(job_id),
        }
        for job_id, target in plan.targets.items()
    ]  # fmt: skip
    if rows:
        statement = insert(TargetRow)
        new = statement.excluded
        statement = statement.on_conflict_do_update(
            index_elements=[TargetRow.job_id],
            set_={"target": new.target, "decision_id": new.decision_id, "waits": new.waits},
        )
        tx.session.execute(statement, rows)


def _remembering(target: Any, preempted_by: Any) -> Any:
    """Of a job that still is to have nothing: who preempted it, which only the plan that stopped it says."""
    if preempted_by is None or target["counts"] or PREEMPTED_BY in target:
        return target
    return {**target, PREEMPTED_BY: preempted_by}


def _check_at(tx: Tx, moves: Moves) -> float | None:
    """A rule of waiting runs out, or a job between two segments loses its place."""
    times = [
        until
        for segment in tx.session.scalars(_CREATED)
        if (until := between_until(segment)) is not None and until > tx.now
    ]
    return min([*times, *([moves.check_at] if moves.check_at is not None else [])], default=None)
