"""The commit point: one transaction makes a checkpoint visible, ends the segment and opens the next one.

An interval commit only adds its checkpoint. A final one creates the next segment and hands the lease over, where the
same processes can go on under a new epoch: on the very slots that they hold, on fewer of them, or on more that are
free now and for which workers wait. Slots that are left stay held until the processes on them are gone.
A commit whose answer was lost is answered again from what the ledger holds.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import bindparam, select

from elastic_core.control.ledger import leases, lineage
from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.feed import add_note, emit
from elastic_core.control.ledger.nodes import set_aside_nodes
from elastic_core.control.ledger.tables import CheckpointRow, JobRow, LeaseRow, SegmentRow, TargetRow
from elastic_core.control.ledger.views import checkpoint_record, pause_of
from elastic_core.control.transitions.endings import emit_segment_ended, end_by_wish, end_job
from elastic_core.control.transitions.handover import Handover, plan_handover
from elastic_core.control.transitions.lifecycle import add_segment
from elastic_core.control.transitions.progress import check_live, guard
from elastic_core.crashing import crash_here
from elastic_core.domain import JobState, SegmentState, to_json
from elastic_core.errors import Conflict, Fenced, UserError
from elastic_core.protocol.events import EventKind
from elastic_core.protocol.process_groups import LaunchOrder
from elastic_core.protocol.tokens import Claims
from elastic_core.protocol.trainer import Commit, CommitAnswer, Directive
from elastic_core.state.stores.paths import CheckpointPath

OrderOf = Callable[[Tx, JobRow, SegmentRow, LeaseRow], LaunchOrder]


def commit(tx: Tx, order_of: OrderOf, claims: Claims, commit: Commit) -> CommitAnswer:
    """Under the scheduling lock when the commit is final. `order_of`: what the processes need that go on."""
    job = tx.job(claims.job_id, lock=True)
    if commit.final:
        tx.look_at(_WANTED, {"segment": claims.segment_id, "epoch": claims.epoch, "head": job.head_id})
    segment = tx.segment(claims.segment_id)
    existing = _existing_checkpoint(tx, job, commit)
    if existing is not None and _was_committed_before(segment, existing, claims, commit):
        return _answer_again(tx, order_of, job, segment, existing, commit)
    guard(tx, claims)
    _check_segment_open(segment, commit)
    lease = tx.lease(claims.epoch)
    if existing is not None:
        row = _end_at_existing(tx, job, existing, commit)
    else:
        row = _add_checkpoint(tx, job, segment, claims, commit)
    segment.failures = 0
    for text in commit.notes:
        if text not in job.notes:  # said once, with whichever checkpoint it was first true of
            add_note(tx, job, text)
    crash_here("commit.added")
    if not commit.final:
        return CommitAnswer(checkpoint_id=row.id, directive=Directive.GO_ON, reason="")
    _close_segment(tx, segment, row)
    crash_here("commit.closed")
    if commit.finished:
        segment.end_reason = "finished"
        emit_segment_ended(tx, segment)
        end_job(tx, job, JobState.FINISHED, None)
        return _stop_answer(row, segment)
    wish = pause_of(job)
    if wish is not None and wish.ends:
        segment.end_reason = wish.words
        emit_segment_ended(tx, segment)
        end_by_wish(tx, job)
        return _stop_answer(row, segment)
    with tx.session.no_autoflush:  # what is read from here on is nothing that was changed: all of it is written at once
        return _begin_successor(tx, order_of, job, segment, lease, row, commit)


def check_final(tx: Tx, claims: Claims, commit: Commit) -> None:
    """Raises what `commit` would raise of a final one to a segment that is open: before anybody decides what the job
    gets after it. Nothing is locked or changed, so `commit` asks all of it again."""
    check_live(tx, claims)
    job, segment = tx.job(claims.job_id), tx.segment(claims.segment_id)
    existing = _existing_checkpoint(tx, job, commit)
    if existing is not None:
        _check_same_place(job, existing, commit)
        return
    _check_uri(job, segment, claims, commit)
    _check_beyond_start(tx, job, commit)
    _check_beyond_head(tx, job, commit)


def _begin_successor(
    tx: Tx, order_of: OrderOf, job: JobRow, segment: SegmentRow, lease: LeaseRow, row: CheckpointRow, commit: Commit
) -> CommitAnswer:
    """In the same processes, where these can go on."""
    leaves = commit.draining or pause_of(job) is not None  # paused: whether or not that is decided yet
    handover = None if leaves else plan_handover(tx, segment, lease, commit.ready, set_aside_nodes(tx))
    stays = handover is not None and set(handover.slots) == set(leases.allocation(lease).slots)
    unasked = stays and segment.revoked_by != "user"  # what a plan asked for, and withdrew in fact, says nothing
    segment.end_reason = "boundary" if unasked else (segment.revoke_reason or "boundary")
    emit_segment_ended(tx, segment)
    successor = add_segment(tx, job, follows=segment.id, asked_at=None if handover is None else tx.now)
    if handover is None:
        return _stop_answer(row, segment)
    if handover.short_of_workers:
        tx.trigger = f"{job.id} is to grow"  # asks for its next boundary, for which they are started ahead
    granted = _hand_over(tx, job, successor, lease, handover)
    return _go_on_answer(tx, order_of, job, successor, granted, row)


def _check_segment_open(segment: SegmentRow, commit: Commit) -> None:
    if not SegmentState(segment.state).open:
        raise Fenced(f"segment {segment.id} is {segment.state}: nothing more can be committed to it. Stop.")
    if commit.finished and not commit.final:
        raise UserError("a commit that finishes the job also ends its segment: set final, too")


# Of the segment that ends: itself, its lease, what its job is to have, and the checkpoint that it began from.
_WANTED = (
    select(SegmentRow, LeaseRow, TargetRow, CheckpointRow)
    .select_from(SegmentRow)
    .join(LeaseRow, LeaseRow.epoch == bindparam("epoch"))
    .outerjoin(TargetRow, TargetRow.job_id == SegmentRow.job_id)
    .outerjoin(CheckpointRow, CheckpointRow.id == bindparam("head"))
    .where(SegmentRow.id == bindparam("segment"))
)
_OF_URI = select(CheckpointRow).where(CheckpointRow.job_id == bindparam("job"), CheckpointRow.uri == bindparam("uri"))


def _existing_checkpoint(tx: Tx, job: JobRow, commit: Commit) -> CheckpointRow | None:
    return tx.session.scalars(_OF_URI, {"job": job.id, "uri": commit.uri}).one_or_none()


def _was_committed_before(segment: SegmentRow, existing: CheckpointRow, claims: Claims, commit: Commit) -> bool:
    """This very commit was made before, by who asks now: the answer holds the successor's token."""
    if commit.final:
        return segment.end_checkpoint_id == existing.id and segment.epoch == claims.epoch
    return existing.epoch == claims.epoch


def _answer_again(
    tx: Tx, order_of: OrderOf, job: JobRow, segment: SegmentRow, existing: CheckpointRow, commit: Commit
) -> CommitAnswer:
    if not commit.final:
        return CommitAnswer(checkpoint_id=existing.id, directive=Directive.GO_ON, reason="")
    successor = tx.session.scalars(select(SegmentRow).where(SegmentRow.follows == segment.id)).one_or_none()
    if successor is not None and successor.handed_over and successor.attempt == 0 and successor.epoch is not None:
        lease = tx.lease(successor.epoch)
        if lease.released_at is None and lease.fenced_at is None:
            return _go_on_answer(tx, order_of, job, successor, lease, existing)
    return _stop_answer(existing, segment)


def _end_at_existing(tx: Tx, job: JobRow, existing: CheckpointRow, commit: Commit) -> CheckpointRow:
    """A segment may end at the checkpoint that is the job's head already, when it made no step since."""
    _check_same_place(job, existing, commit)
    existing.final = True
    tx.session.flush()
    return existing


def _check_same_place(job: JobRow, existing: CheckpointRow, commit: Commit) -> None:
    same_place = (existing.step, existing.samples) == (commit.step, commit.samples)
    if not commit.final or existing.id != job.head_id or not same_place:
        raise Conflict(
            f"{commit.uri} is checkpoint {existing.id} of step {existing.step} already, "
            f"committed by epoch {existing.epoch}. "
            "Each checkpoint has a folder of its own; only the last one may end a later segment that made no step."
        )


def _add_checkpoint(tx: Tx, job: JobRow, segment: SegmentRow, claims: Claims, commit: Commit) -> CheckpointRow:
    _check_uri(job, segment, claims, commit)
    _check_beyond_start(tx, job, commit)
    previous_step = lineage.furthest_step(tx, job)
    row = CheckpointRow(
        job_id=job.id,
        lineage=segment.lineage,
        step=commit.step,
        samples=commit.samples,
        epoch=claims.epoch,
        segment_id=segment.id,
        previous_id=job.head_id,
        uri=commit.uri,
        manifest_sha256=commit.manifest_sha256,
        size_bytes=commit.size_bytes,
        layout=to_json(commit.layout),
        metrics=dict(commit.metrics),
        fingerprints=dict(commit.fingerprints),
        timings=dict(commit.timings),
        committed_at=tx.now,
        final=commit.final,
        bad=False,
        progress=commit.progress,
        gain=commit.gain,
    )
    tx.session.add(row)
    tx.session.flush()
    job.head_id = row.id
    payload = {
        "checkpoint": to_json(checkpoint_record(row)),
        "previous_step": previous_step,
        "timings": dict(commit.timings),
    }
    emit(tx, EventKind.COMMITTED, job.id, payload, segment.id, claims.epoch)
    return row


def _check_uri(job: JobRow, segment: SegmentRow, claims: Claims, commit: Commit) -> None:
    """Only the folder that this very commit was written to: whoever sweeps or backs up the store goes by the name."""
    if not commit.uri.startswith(f"{job.id}/") or ".." in commit.uri.split("/"):
        raise UserError(f"the checkpoint uri {commit.uri!r} is outside the job's own prefix {job.id + '/'!r}")
    named = CheckpointPath.parse(commit.uri)
    nonce = named.nonce if named is not None and named.is_writers else "<1 to 64 letters and digits>"
    own = CheckpointPath(job.id, segment.lineage, commit.step, claims.epoch, nonce)
    if commit.uri != own.uri:
        raise UserError(
            f"the checkpoint uri {commit.uri!r} is not that of step {commit.step} under epoch {claims.epoch}; "
            f"allowed is {own.uri!r}: write the checkpoint there"
        )


def _check_beyond_start(tx: Tx, job: JobRow, commit: Commit) -> None:
    """A fork's first commit: the ledger's own triggers compare commits of one job."""
    head = lineage.head(tx, job)
    if head is not None and head.job_id != job.id and (commit.step < head.step or commit.samples < head.samples):
        raise Conflict(
            f"regress: step {commit.step} ({commit.samples} samples) of {job.id!r}, which was forked at step "
            f"{head.step} ({head.samples} samples)"
        )


def _check_beyond_head(tx: Tx, job: JobRow, commit: Commit) -> None:
    """As the ledger's triggers will, of a final commit."""
    head = lineage.head(tx, job)
    if head is None or head.job_id != job.id or (commit.step, commit.samples) == (head.step, head.samples):
        return
    if commit.step <= head.step or commit.samples <= head.samples:
        raise Conflict(
            f"regress: step {commit.step} ({commit.samples} samples) after step {head.step} ({head.samples} samples) "
            f"of {job.id!r}. A job's step only goes back by a rollback to a named checkpoint."
        )


def _close_segment(tx: Tx, segment: SegmentRow, row: CheckpointRow) -> None:
    segment.state = SegmentState.COMMITTED
    segment.end_step = row.step
    segment.end_checkpoint_id = row.id
    segment.ended_at = tx.now
    segment.error = None


def _hand_over(tx: Tx, job: JobRow, successor: SegmentRow, lease: LeaseRow, handover: Handover) -> LeaseRow:
    granted, reason = handover.allocation, handover.target.reason
    held = leases.release(tx, lease, f"handed over to {successor.id}")
    crash_here("handover.released")
    return leases.open_lease(tx, job, successor, granted, reason, origin_epoch=lease.origin_epoch, beside=held)


def _go_on_answer(
    tx: Tx, order_of: OrderOf, job: JobRow, successor: SegmentRow, lease: LeaseRow, row: CheckpointRow
) -> CommitAnswer:
    order = order_of(tx, job, successor, lease)
    reason = successor.grant_reason or ""
    return CommitAnswer(checkpoint_id=row.id, directive=Directive.GO_ON, reason=reason, order=order)


def _stop_answer(row: CheckpointRow, segment: SegmentRow) -> CommitAnswer:
    return CommitAnswer(checkpoint_id=row.id, directive=Directive.BOUNDARY, reason=segment.end_reason or "")
