"""How attempts, segments and jobs end, and how slots become free again. All under the scheduling lock."""

from __future__ import annotations

from sqlalchemy import delete, select

from elastic_core.control.ledger import forecast_rows, leases
from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.feed import emit
from elastic_core.control.ledger.tables import JobRow, LeaseRow, SegmentRow, TargetRow
from elastic_core.control.ledger.views import last_segments, pause_of
from elastic_core.control.transitions.exchange_fallback import fall_back
from elastic_core.crashing import crash_here
from elastic_core.domain import JobState, SegmentState
from elastic_core.protocol.events import EventKind
from elastic_core.protocol.process_groups import ExitKind, ExitReport


def end_job(tx: Tx, job: JobRow, state: JobState, error: str | None, why: str | None = None) -> None:
    """The job is over. What still runs is fenced; its slots are held until its processes are gone.

    `why` is the end reason of its open segment, where it differs from the job's error.
    """
    segment = last_segments(tx, [job.id])[job.id]
    if state != JobState.FINISHED and SegmentState(segment.state).open:  # else its processes leave after their commit
        for lease in leases.live_of_job(tx, job.id):
            leases.fence(tx, lease, f"the job was {state}: {error}")
    if SegmentState(segment.state).open:
        segment.state = SegmentState.FAILED if state == JobState.FAILED else SegmentState.CANCELLED
        segment.ended_at = tx.now
        segment.end_reason = why or f"{state}: {error}"
        segment.error = error
        emit_segment_ended(tx, segment)
    job.state = state
    job.error = error
    job.finished_at = tx.now
    forecast_rows.grade(tx, job)
    tx.session.execute(delete(TargetRow).where(TargetRow.job_id == job.id))
    emit(tx, EventKind.JOB_ENDED, job.id, {"state": state, "error": error, "lineage": job.lineage})
    tx.trigger = f"{job.id} is {state}"


def end_by_wish(tx: Tx, job: JobRow) -> bool:
    """The job is over where its user wishes that it end, and nothing of it is to be committed any more."""
    wish = pause_of(job)
    if wish is None or not wish.ends:
        return False
    end_job(tx, job, JobState.CANCELLED, wish.words)
    return True


def emit_segment_ended(tx: Tx, segment: SegmentRow) -> None:
    payload = {"state": segment.state, "reason": segment.end_reason, "error": segment.error}
    emit(tx, EventKind.SEGMENT_ENDED, segment.job_id, payload, segment.id, segment.epoch)


def group_gone(tx: Tx, origin_epoch: int, report: ExitReport) -> None:
    """No process of this chain lives any more: its slots are free. Reported again, it changes nothing."""
    known = leases.live_of_origin(tx, origin_epoch, lock=False)
    if known is None:
        return
    job = tx.job(known.job_id, lock=True)
    lease = leases.live_of_origin(tx, origin_epoch)
    assert lease is not None, "leases are only released under the scheduling lock, which we hold"
    segment = tx.segment(lease.segment_id)
    leases.release(tx, lease, f"{report.kind}: {report.error}" if report.error else report.kind)
    tx.carries_out = True
    crash_here("ending.released")
    if job.state != JobState.ACTIVE or segment.epoch != lease.epoch or not SegmentState(segment.state).open:
        return  # it ended in the ledger before; only its slots were still held
    if report.kind == ExitKind.USER_ERROR:
        end_job(tx, job, JobState.FAILED, report.error, f"user error: {report.error}")
        return
    fell_back = report.kind == ExitKind.DIVERGED and fall_back(tx, job, segment, lease, report.error)
    reason = f"{report.kind}: {report.error}" if report.error else report.kind
    lose_attempt(tx, segment, reason, counts=not fell_back)


def lose_attempt(tx: Tx, segment: SegmentRow, reason: str, *, counts: bool = True) -> None:
    """The attempt ended without its final commit: the segment asks again, under a new epoch to come. That is no news to
    the plan in force: the job gets what that has for it, or else a decision (`scheduling.allocator`).

    `counts`: it is one of the attempts in a row without any commit that the job is allowed.
    """
    job = tx.job(segment.job_id, lock=True)
    if job.state != JobState.ACTIVE or not SegmentState(segment.state).open:
        return
    segment.attempt += 1
    segment.failures += counts
    leases.clear_revocation(segment)
    if end_by_wish(tx, job):
        return
    if segment.failures >= tx.settings.max_attempts:
        many = f"{segment.failures} attempts in a row of {segment.id} ended without any commit; the last: {reason}"
        end_job(tx, job, JobState.FAILED, many, reason)
        return
    segment.state = SegmentState.WAITING
    segment.asked_at = tx.now
    segment.end_reason = segment.error = reason
    emit_segment_ended(tx, segment)
    tx.returning.append(job.id)
    tx.session.flush()


def expire(tx: Tx, serving_since: float) -> list[str]:
    """Fence the leases that were not renewed. Their slots stay held until their processes are known to be gone.

    `serving_since`: when this control plane started. For one lease life after that nobody can have renewed, because
    there was nobody to renew with.
    """
    if tx.now - serving_since < tx.settings.lease_seconds:
        return []
    late = select(LeaseRow).where(
        LeaseRow.released_at.is_(None), LeaseRow.fenced_at.is_(None), LeaseRow.expires_at < tx.now
    )
    actions = []
    for lease in tx.session.scalars(late.order_by(LeaseRow.epoch).with_for_update(key_share=True)):
        silent = tx.now - lease.expires_at + tx.settings.lease_seconds
        what = "no heartbeat" if lease.started_at is not None else "its processes never started"
        leases.fence(tx, lease, f"{what} for {silent:.0f} s")
        tx.trigger = f"the lease of {lease.segment_id} expired"
        actions.append(f"{lease.segment_id}: the lease of epoch {lease.epoch} expired ({what} for {silent:.0f} s)")
    return actions
