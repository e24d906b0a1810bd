"""The safety net: what a crash left between ledger and processes is repaired, with nobody's help.

`groups` is what one host knows of its process groups. A group is gone when its host says so, or when it was fenced
and its host has never heard of it. That counts only of a list that was made some time after the fence: an older one
may have lain in a server that was stopped, while the processes were started by an order from before the fence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from math import inf

from sqlalchemy import select

from elastic_core.control.ledger import leases
from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.feed import add_note
from elastic_core.control.ledger.tables import HeartbeatRow, JobRow, LeaseRow, SegmentRow
from elastic_core.control.transitions.endings import expire, group_gone, lose_attempt
from elastic_core.domain import JobState, SegmentState
from elastic_core.protocol.process_groups import ExitKind, ExitReport, ProcessGroup

REPORT_SECONDS = 20.0  # that the agent of a dead group has for its own report, which knows more than we do
ROUNDS_BEFORE_A_NOTE = 3  # of slots that were held for a whole lease while nobody started anything on them
LASTING_SECONDS = 120.0  # past the grace, after which processes that have not ended are told of
START_SECONDS = 30.0  # that an order from before a fence may take until its processes are on their host's list


@dataclass(frozen=True, slots=True)
class Reconciled:
    stop: tuple[int, ...]
    actions: tuple[str, ...]


def reconcile_ledger(
    tx: Tx, groups: Sequence[ProcessGroup], serving_since: float, listed_at: float | None = None
) -> Reconciled:
    """Under the scheduling lock. `listed_at`: when the host made the list, Unix seconds; None: now."""
    leases.bring_back(tx)
    as_of = tx.now if listed_at is None else listed_at
    actions = expire(tx, serving_since)
    known = {group.origin_epoch: group for group in groups}
    live = select(LeaseRow).where(LeaseRow.released_at.is_(None)).order_by(LeaseRow.epoch)
    for lease in tx.session.scalars(live).all():
        action = _reconcile_lease(tx, lease, known.get(lease.origin_epoch), as_of)
        actions += [action] if action else []
    stop, lasting = _without_lease(tx, groups)
    return Reconciled(stop=tuple(stop), actions=(*actions, *lasting))


def _reconcile_lease(tx: Tx, lease: LeaseRow, group: ProcessGroup | None, as_of: float) -> str | None:
    if group is not None and group.alive:
        return None
    segment_id, origin = lease.segment_id, lease.origin_epoch
    if group is not None:
        if tx.now - _last_sign_of_life(tx, lease) < REPORT_SECONDS:
            return None
        group_gone(tx, origin, ExitReport(kind=ExitKind.INFRASTRUCTURE, error="its processes were found dead"))
        return f"{segment_id}: its processes were found dead, the slots of epoch {lease.epoch} are free"
    if lease.fenced_at is None or as_of - lease.fenced_at < START_SECONDS:
        return None  # its processes may be about to start, or have started since the list was made
    if tx.now - lease.granted_at < tx.settings.lease_seconds:
        return None
    if lease.started_at is None:
        return _never_started(tx, lease)
    if tx.now - _last_sign_of_life(tx, lease) < tx.settings.lease_seconds:
        return None  # trainers stop by themselves before a lease life without renewal is over
    group_gone(tx, origin, ExitReport(kind=ExitKind.INFRASTRUCTURE, error="its processes have vanished"))
    return f"{segment_id}: its processes have vanished, the slots of epoch {lease.epoch} are free"


def _never_started(tx: Tx, lease: LeaseRow) -> str:
    """Nobody's fault but of whoever should have started them: no attempt of the job's is used up. After some such
    rounds in a row the job's notes say so, since it looks as if it were about to begin."""
    job = tx.job(lease.job_id, lock=True)
    segment = tx.session.get_one(SegmentRow, lease.segment_id)
    leases.release(tx, lease, "its processes never started")
    tx.carries_out = True
    if segment.epoch == lease.epoch:
        if _rounds_without_a_start(tx, segment) == ROUNDS_BEFORE_A_NOTE:
            rounds = f"segment {segment.id} was given slots {ROUNDS_BEFORE_A_NOTE} times in a row"
            add_note(tx, job, f"{rounds}, and its processes never started: the log of its run's task says why")
        lose_attempt(tx, segment, "infrastructure: its processes never started", counts=False)
    return f"{segment.id}: its processes never started, the slots of epoch {lease.epoch} are free"


def _rounds_without_a_start(tx: Tx, segment: SegmentRow) -> int:
    """Leases of the segment since the last one under which processes began, as far as they are counted."""
    of_job = select(LeaseRow.segment_id, LeaseRow.started_at).where(LeaseRow.job_id == segment.job_id)
    newest = tx.session.execute(of_job.order_by(LeaseRow.epoch.desc()).limit(ROUNDS_BEFORE_A_NOTE + 1))
    never_started = takewhile(lambda lease: lease.segment_id == segment.id and lease.started_at is None, newest)
    return sum(1 for _ in never_started)


def _last_sign_of_life(tx: Tx, lease: LeaseRow) -> float:
    beat = tx.session.get(HeartbeatRow, lease.epoch)
    return max(lease.granted_at, beat.received_at if beat is not None else 0.0)


def _without_lease(tx: Tx, groups: Sequence[ProcessGroup]) -> tuple[list[int], list[str]]:
    """Live groups without a lease in force; those that were fenced first get their time to stop by themselves. And of
    those that have not ended since, which slots they keep."""
    stop, lasting = [], []
    for group in groups:
        if not group.alive:
            continue
        lease = leases.live_of_origin(tx, group.origin_epoch, lock=False)  # heartbeats wait for nobody who looks
        over = inf if lease is None else tx.now - lease.fenced_at if lease.fenced_at is not None else 0.0
        if over > tx.settings.grace_seconds:
            stop.append(group.origin_epoch)
        if lease is not None and over > tx.settings.grace_seconds + LASTING_SECONDS:
            slots = ", ".join(leases.slot_id(slot) for slot in leases.allocation(lease).slots)
            lasting.append(
                f"{lease.segment_id}: its processes have not ended for {over:.0f} s since the end of epoch "
                f"{lease.epoch}, which keeps {slots}"
            )
    return stop, lasting


def active_segments(tx: Tx) -> tuple[str, ...]:
    """Open segments of active jobs: each should have its run in Airflow."""
    open_states = [state for state in SegmentState if state.open]
    query = select(SegmentRow.id).join(JobRow, JobRow.id == SegmentRow.job_id)
    query = query.where(JobRow.state == JobState.ACTIVE, SegmentRow.state.in_(open_states))
    return tuple(tx.session.scalars(query.order_by(JobRow.submitted_at, SegmentRow.id)))


def active_jobs(tx: Tx) -> tuple[str, ...]:
    query = select(JobRow.id).where(JobRow.state == JobState.ACTIVE).order_by(JobRow.submitted_at, JobRow.id)
    return tuple(tx.session.scalars(query))
