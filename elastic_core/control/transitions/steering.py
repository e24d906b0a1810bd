"""What a job's user does to it while it lives, short of ending it at once: pause, resume, stop at a boundary, set.

A paused job is one whose target is no slots by its user's wish. The wish is kept with the job, so that crashes,
retries and other policies keep it; `policy.rules.paused_jobs` is where it counts. One that is to be stopped is paused,
and ends with the commit at the boundary that it reaches (`endings.end_by_wish`).

All of it runs under the scheduling lock (`Ledger.change`), and is idempotent; each says whether it changed
anything.
"""

from __future__ import annotations

from elastic_core.control.ledger import leases
from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.tables import JobRow
from elastic_core.control.ledger.views import changes_of, last_segments, pause_of, spec_in_force, spec_of
from elastic_core.control.transitions.endings import end_by_wish
from elastic_core.control.transitions.pool_changes import check_change
from elastic_core.domain import JobState, SegmentState, from_json, to_json
from elastic_core.errors import Conflict, UserError
from elastic_core.placement.placed_models import declared_by
from elastic_core.protocol.records import JobFacts, Pause
from elastic_core.spec.admitted_layouts import check_layouts
from elastic_core.spec.job_changes import JobChanges


def pause(tx: Tx, job_id: str, by: str, reason: str, *, ends: bool = False) -> bool:
    """`ends`: it is to be stopped. Asked again it keeps the first one's words. Raises `Conflict` for a job that has
    ended, unless it was stopped."""
    job = tx.job(job_id, lock=True)
    before = pause_of(job)
    if ends and job.state == JobState.CANCELLED and before is not None and before.ends:
        return False
    _require_active(job, "stopped" if ends else "paused")
    if before is not None and (before.ends or not ends):
        return False
    wish = Pause(by=by, at=tx.now, reason=reason, ends=ends)
    job.paused = to_json(wish)
    if ends and not _holds_slots(tx, job):
        end_by_wish(tx, job)
        return True
    tx.trigger = f"{job.id} is {wish.words}"
    return True


def resume(tx: Tx, job_id: str) -> bool:
    """Its waiting counts from now on. A job that is not paused is left as it is."""
    job = tx.job(job_id, lock=True)
    _require_active(job, "resumed")
    if job.paused is None:
        return False
    job.paused = None
    segment = last_segments(tx, [job.id])[job.id]
    if segment.state == SegmentState.WAITING:
        segment.asked_at = tx.now
    tx.trigger = f"{job.id} is resumed"
    return True


def set_changes(tx: Tx, job_id: str, changes: JobChanges) -> bool:
    """These count from the next decision on, in place of the spec's; those that were set before stay."""
    if not changes.given():
        raise UserError("nothing is to be set; possible are priority, min_slots and max_slots")
    job = tx.job(job_id, lock=True)
    _require_active(job, "set anew")
    before, wanted = changes_of(job), changes.after(changes_of(job))
    if wanted == before:
        return False
    spec, facts = wanted.applied(spec_of(job)), from_json(JobFacts, job.facts)
    check_layouts(spec, facts.layouts)
    in_force = spec_in_force(job)
    if spec.slots != in_force.slots:
        check_change(tx, spec, in_force, declared_by(facts) if spec.places_layers else ())
    job.changes = to_json(wanted)
    tx.trigger = f"{job.id} is set to {changes.words}"
    return True


def require_slots(tx: Tx, job_id: str) -> str:
    """The id of the segment whose processes can be asked for a checkpoint. Raises `Conflict` where there are none."""
    job = tx.job(job_id)
    _require_active(job, "asked for a checkpoint")
    if not _holds_slots(tx, job):
        head = "it has none yet" if job.head_id is None else f"its newest one is checkpoint {job.head_id}"
        raise Conflict(
            f"the job {job_id!r} holds no slots, so that nothing is there to make a checkpoint of; {head}. "
            f"`elastic jobs explain {job_id}` says what it waits for"
        )
    return last_segments(tx, [job.id])[job.id].id


def _holds_slots(tx: Tx, job: JobRow) -> bool:
    segment = last_segments(tx, [job.id])[job.id]
    return any(lease.segment_id == segment.id and lease.fenced_at is None for lease in leases.live_of_job(tx, job.id))


def _require_active(job: JobRow, done: str) -> None:
    if job.state != JobState.ACTIVE:
        raise Conflict(
            f"the job {job.id!r} is {job.state}: it cannot be {done}. `elastic jobs revive` opens a failed or "
            "cancelled job again, `elastic jobs rollback` any"
        )
