"""Brings a plan into force, as far as it can be now: writes the targets, grants, revokes. Under the scheduling lock."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence

from sqlalchemy import ColumnElement, Double, and_, bindparam, case, cast, delete, select, text, update
from sqlalchemy.dialects.postgresql import JSONB

from elastic_core.control.ledger import leases, lineage
from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.nodes import leave_by, set_aside_nodes
from elastic_core.control.ledger.tables import DecisionRow, JobRow, LeaseRow, SegmentRow, TargetRow
from elastic_core.control.ledger.views import spec_in_force
from elastic_core.control.scheduling.snapshots import between_until, submission
from elastic_core.crashing import crash_here
from elastic_core.domain import JobView, Plan, SegmentState, Slot, Snapshot, Target, from_json
from elastic_core.policy.base.queue import in_order
from elastic_core.policy.plans.grants import grants_to_returning, is_settled, plan_moves, usable
from elastic_core.policy.plans.moves import Asker, Holder, Moves
from elastic_core.snapshot.job_record import Submission

_LIVE = select(LeaseRow).where(LeaseRow.released_at.is_(None)).order_by(LeaseRow.epoch)
_GOES_ON = and_(
    SegmentRow.epoch == LeaseRow.epoch,
    SegmentRow.state.in_([state for state in SegmentState if state.open]),
    SegmentRow.revoked_at.is_(None),
    LeaseRow.fenced_at.is_(None),
)
# Of each live lease: the decision that its job's target is of, where its segment goes on.
_STANDING = (
    select(LeaseRow.epoch, case((_GOES_ON, TargetRow.decision_id)))
    .join(SegmentRow, SegmentRow.id == LeaseRow.segment_id)
    .outerjoin(TargetRow, TargetRow.job_id == LeaseRow.job_id)
    .where(LeaseRow.released_at.is_(None))
)
_WAITING = (  # a plan that was made before a job was paused gives it nothing
    select(SegmentRow.job_id, SegmentRow.id)
    .join(JobRow, JobRow.id == SegmentRow.job_id)
    .where(SegmentRow.state == SegmentState.WAITING, JobRow.paused.is_(None))
)
# Of the plan as it is recorded: nothing is sent twice. A job that still is to have nothing goes on to tell who
# preempted it, which only the plan that stopped it says.
_TARGETS_OF_DECISION = text("""
    INSERT INTO targets (job_id, target, decision_id, waits)
    SELECT planned.job_id, planned.target, d.id, CAST(:waits AS jsonb) ->> planned.job_id
    FROM decisions d CROSS JOIN jsonb_each(d.plan -> 'targets') AS planned (job_id, target)
    WHERE d.id = :decision
    ON CONFLICT (job_id) DO UPDATE SET decision_id = excluded.decision_id, waits = excluded.waits, target = CASE
        WHEN excluded.target -> 'counts' = '{}' AND NOT excluded.target ? 'preempted_by'
             AND targets.target ? 'preempted_by'
        THEN excluded.target || jsonb_build_object('preempted_by', targets.target -> 'preempted_by')
        ELSE excluded.target END
""").bindparams(bindparam("waits", type_=JSONB))
_IN_FORCE = select(DecisionRow.id, cast(DecisionRow.plan["wake_at"].astext, Double).label("wake_at")).where(
    DecisionRow.version == bindparam("version")
)
_CREATED = select(SegmentRow).where(SegmentRow.state == SegmentState.CREATED)


class Settled:
    """Leases that hold what their job's target says, so that nothing is to be done for them (`grants.is_settled`).

    Of a thousand jobs nearly all are, and a step of the plan is about one. What a lease holds and what a decision has
    for a job never change: once found, it is known for as long as both are in force. One ledger's, of one process.
    """

    def __init__(self) -> None:
        self._decisions: dict[int, int] = {}  # by epoch: the decision whose target it holds

    def learn(self, epochs: Iterable[int], decision_id: int) -> None:
        """These hold what this decision has for their jobs; of those that another one was about nothing is known."""
        same = {epoch: of for epoch, of in self._decisions.copy().items() if of == decision_id}
        self._decisions = {**same, **dict.fromkeys(epochs, decision_id)}

    def others(self, tx: Tx) -> list[int]:
        """Epochs of the live leases that are not known to be settled."""
        known = self._decisions
        return [epoch for epoch, of in tx.session.execute(_STANDING) if of is None or known.get(epoch) != of]


def enforce(
    tx: Tx, snapshot: Snapshot, plan: Plan, decision_id: int, settled: Settled
) -> tuple[list[str], float | None]:
    """What was done, in words, and when to look again should nothing happen before."""
    holders = _holders(tx, tx.session.scalars(_LIVE).all())
    at_rest = _settled_among(holders, plan.targets)
    askers = _askers(tx, snapshot.jobs, _waiting(tx, plan.targets))
    moves = _moves(tx, _without(holders, at_rest), askers, plan.targets)
    _write_targets(tx, plan, moves, decision_id)
    settled.learn(at_rest, decision_id)
    return _apply(tx, moves), _check_at(tx, moves)


def give_back(tx: Tx) -> None:
    """Jobs that lost an attempt get of what is free now what the plan in force has for them, whatever is due and
    whoever else waits. Where that is nothing, a decision is due."""
    targets = {row.job_id: from_json(Target, row.target) for row in tx.among(TargetRow.job_id, tx.returning)}
    moves = grants_to_returning(leases.free_slots(tx).pool(), _waiting_askers(tx, _waiting(tx, targets)), targets)
    _add_actions(tx, _apply(tx, moves))
    without = set(tx.returning) - {grant.asker.job_id for grant in moves.grants}
    if without and tx.trigger is None:
        tx.trigger = f"{', '.join(sorted(without))} lost an attempt"


def carry_on(tx: Tx, settled: Settled) -> None:
    """The plan in force goes on, as far as it can now. Where a decision is due, that will do it."""
    scheduling = tx.scheduling()
    if scheduling.version != scheduling.decided_version:
        return
    decision = tx.session.execute(_IN_FORCE, {"version": scheduling.decided_version}).one_or_none()
    if decision is None:
        return
    holders, waiting = _holders(tx, _to_look_at(tx, settled)), _waiting(tx)
    rows = tx.among(TargetRow.job_id, {*waiting, *(holder.job_id for holder in holders.values())})
    targets = {row.job_id: from_json(Target, row.target) for row in rows}
    askers = _waiting_askers(tx, {job_id: waiting[job_id] for job_id in targets if job_id in waiting})
    at_rest = _settled_among(holders, targets)
    moves = _moves(tx, _without(holders, at_rest), askers, targets)
    for row in tx.session.scalars(select(TargetRow).where(_waits_or_is_to(moves))):
        row.waits = moves.waits.get(row.job_id)
    settled.learn(at_rest, decision.id)
    _add_actions(tx, _apply(tx, moves))
    times = (decision.wake_at, _check_at(tx, moves))
    scheduling.wake_at = min((at for at in times if at is not None), default=None)


def _to_look_at(tx: Tx, settled: Settled) -> Sequence[LeaseRow]:
    """The live leases, but for settled ones, in the order of their epochs. Where a node is set aside, all."""
    if set_aside_nodes(tx):
        return tx.session.scalars(_LIVE).all()
    epochs = settled.others(tx)
    return tx.session.scalars(_LIVE.where(LeaseRow.epoch.in_(epochs))).all() if epochs else ()


def _waits_or_is_to(moves: Moves) -> ColumnElement[bool]:
    return TargetRow.waits.is_not(None) | TargetRow.job_id.in_(moves.waits)


def _settled_among(holders: Mapping[int, Holder], targets: Mapping[str, Target]) -> set[int]:
    return {epoch for epoch, holder in holders.items() if is_settled(holder, targets.get(holder.job_id))}


def _without(holders: Mapping[int, Holder], epochs: Container[int]) -> list[Holder]:
    return [holder for epoch, holder in holders.items() if epoch not in epochs]


def _add_actions(tx: Tx, actions: list[str]) -> None:
    """To the record of the decision in force, without reading what it was made from."""
    if actions:
        in_force = update(DecisionRow).where(DecisionRow.version == tx.scheduling().decided_version)
        added = DecisionRow.actions.concat(bindparam("added", actions, JSONB))
        tx.session.execute(in_force.values(actions=added), execution_options={"synchronize_session": False})


def _holders(tx: Tx, leased: Sequence[LeaseRow]) -> dict[int, Holder]:
    """By epoch, in their order."""
    of_leases = tx.among(SegmentRow.id, {lease.segment_id for lease in leased})
    segments, draining = {row.id: row for row in of_leases}, leases.draining(tx, [lease.epoch for lease in leased])
    aside = set_aside_nodes(tx)
    return {
        lease.epoch: _holder(tx, lease, segments[lease.segment_id], draining.get(lease.epoch, ()), aside)
        for lease in leased
    }


def _moves(tx: Tx, holders: Sequence[Holder], askers: Sequence[Asker], targets: Mapping[str, Target]) -> Moves:
    free = leases.free_slots(tx).pool() if holders or askers else ()
    return plan_moves(tx.now, tx.settings.grace_seconds, free, holders, askers, targets)


def _waiting(tx: Tx, job_ids: Container[str] | None = None) -> dict[str, str]:
    """By job, of these: its segment that waits, which may have been made after the snapshot."""
    found = tx.session.execute(_WAITING)
    return {job_id: segment_id for job_id, segment_id in found if job_ids is None or job_id in job_ids}


def _waiting_askers(tx: Tx, waiting: Mapping[str, str]) -> list[Asker]:
    """`waiting`: a segment by job."""
    jobs = tx.among(JobRow.id, waiting)
    return _askers(tx, [submission(job, spec_in_force(job)) for job in jobs], waiting)


def _askers(tx: Tx, jobs: Iterable[JobView] | Iterable[Submission], waiting: Mapping[str, str]) -> list[Asker]:
    """In the order of the queue. `jobs`: at least those that wait, in any order."""
    last = leases.last_slots(tx, list(waiting))
    return [
        Asker(job_id=job.job_id, segment_id=waiting[job.job_id], limits=job.limits, last_slots=last.get(job.job_id, ()))
        for job in in_order(job for job in jobs if job.job_id in waiting)
    ]


def _holder(
    tx: Tx, lease: LeaseRow, segment: SegmentRow, draining: tuple[Slot, ...], aside: Mapping[str, float | None]
) -> Holder:
    held = leases.allocation(lease)
    leaves = tuple(sorted({slot.node for slot in held.slots} & aside.keys()))
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
        leaves=leaves,
        leave_by=leave_by(aside, leaves, tx.settings),
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
    tx.session.execute(_TARGETS_OF_DECISION, {"decision": decision_id, "waits": moves.waits})


def _check_at(tx: Tx, moves: Moves) -> float | None:
    """A rule of waiting runs out, or a job between two segments loses its place."""
    times = [
        until
        for segment in tx.session.scalars(_CREATED)
        if (until := between_until(segment)) is not None and until > tx.now
    ]
    return min([*times, *([moves.check_at] if moves.check_at is not None else [])], default=None)
