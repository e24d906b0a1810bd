"""What the processes of a segment report while they run: heartbeats, observations, corrupt checkpoints, slots left.

Only the last takes the scheduling lock: the plan in force may go on then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import cast

from sqlalchemy import Table, bindparam, select, update
from sqlalchemy.dialects.postgresql import insert

from elastic_core.control.ledger import leases, lineage
from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.feed import add_note, emit
from elastic_core.control.ledger.nodes import SET_ASIDE, leave_by
from elastic_core.control.ledger.orders import issue
from elastic_core.control.ledger.tables import (
    CheckpointRow,
    HeartbeatRow,
    JobRow,
    LeaseRow,
    ObservationRow,
    SchedulingRow,
    SegmentRow,
    TargetRow,
)
from elastic_core.control.seen_lately import SeenLately
from elastic_core.control.transitions.handover import places_in_place, stays_as_it_is
from elastic_core.domain import (
    Allocation,
    JobState,
    Layout,
    Observation,
    SegmentState,
    Slot,
    Target,
    from_json,
    to_json,
)
from elastic_core.errors import Conflict, Fenced, UserError
from elastic_core.protocol.events import EventKind
from elastic_core.protocol.process_groups import fork_of
from elastic_core.protocol.tokens import Claims, TrainerTokens, near_end
from elastic_core.protocol.trainer import NOTE_CHARACTERS, Directive, Heartbeat, HeartbeatAnswer
from elastic_core.spec.parts.job_comm import CLASSES
from elastic_core.text import shortened

_LEASES = cast(Table, LeaseRow.__table__)  # no row of a session is looked for
_CLAIM = (
    update(_LEASES)
    .where(
        _LEASES.c.epoch == bindparam("of_epoch"),
        _LEASES.c.segment_id == bindparam("of_segment"),
        _LEASES.c.released_at.is_(None),
        _LEASES.c.fenced_at.is_(None),
    )
    .values(written_at=bindparam("now"))
    .returning(select(JobRow.lineage).where(JobRow.id == _LEASES.c.job_id).scalar_subquery())
)


def guard(tx: Tx, claims: Claims) -> int:
    """Compare-and-set on the live, un-fenced lease epoch: whoever wants to write for a segment passes here.

    Holds the lease's row until the transaction ends, so nobody can fence the epoch in between. Gives the lineage that
    the job is in. Raises `Fenced`.
    """
    claim = {"of_epoch": claims.epoch, "of_segment": claims.segment_id, "now": tx.now}
    lineage_now: int | None = tx.session.execute(_CLAIM, claim).scalar_one_or_none()
    if lineage_now is None:
        raise _fenced(tx, claims)
    return lineage_now


def check_live(tx: Tx, claims: Claims) -> None:
    """What `guard` asks for, without holding the lease's row: before something that writes nothing for the segment, and
    that nobody with an ended epoch may bring about. Raises `Fenced`."""
    lease = tx.row(LeaseRow, claims.epoch)
    if lease is None or (lease.segment_id, lease.released_at, lease.fenced_at) != (claims.segment_id, None, None):
        raise _fenced(tx, claims)


def _fenced(tx: Tx, claims: Claims) -> Fenced:
    why = _why_over(tx, claims)
    return Fenced(f"epoch {claims.epoch} of segment {claims.segment_id} {why}. Stop: commit nothing more.")


def _why_over(tx: Tx, claims: Claims) -> str:
    lease = tx.session.get(LeaseRow, claims.epoch)
    if lease is None:
        return "was never granted"
    return f"is over ({lease.release_reason or lease.fence_reason})"


# Of the chain's live lease, which is locked. Asked for together, as a thousand jobs ask every few seconds.
_OF_CHAIN = (
    select(LeaseRow, SegmentRow, TargetRow, SchedulingRow, SET_ASIDE.scalar_subquery())
    .join(SegmentRow, SegmentRow.id == LeaseRow.segment_id)
    .join(SchedulingRow, SchedulingRow.id == 1)
    .join(TargetRow, TargetRow.job_id == LeaseRow.job_id, isouter=True)
    .where(LeaseRow.origin_epoch == bindparam("origin"), LeaseRow.released_at.is_(None))
    .with_for_update(of=LeaseRow, key_share=True)
)


def heartbeat(
    tx: Tx, tokens: TrainerTokens, claims: Claims, beat: Heartbeat, lately: SeenLately
) -> tuple[HeartbeatAnswer, bool]:
    """Renews the lease of the chain, also for an older epoch of it: the beat may cross a commit's answer. With it:
    whether a decision is due."""
    found = tx.session.execute(_OF_CHAIN, {"origin": claims.origin_epoch}).one_or_none()
    if found is None:
        return _answer_without_lease(tx, claims, None), tx.scheduling().is_due(tx.now)
    lease, segment, target, scheduling, aside = found
    set_aside: Mapping[str, float | None] = aside or {}
    due = scheduling.is_due(tx.now)
    if lease.fenced_at is not None:
        return _answer_without_lease(tx, claims, lease), due
    _renew(tx, lease, beat)
    if lease.started_at is None:
        _mark_started(tx, lease, segment)
    directive, reason = _directive(segment, beat)
    asked = directive is Directive.BOUNDARY and segment.revoked_by is not None and SegmentState(segment.state).open
    # A token of an older epoch is not renewed: its successor came, or comes, with the commit's answer.
    renew = claims.epoch == lease.epoch and near_end(claims, tx.now)
    return HeartbeatAnswer(
        directive=directive,
        reason=reason,
        lease_seconds=tx.settings.lease_seconds,
        token=issue(tokens, lease, tx.now) if renew else None,
        slots=_slots_after_boundary(tx, target, lease, set_aside, lately) if asked and target is not None else (),
        heartbeat_seconds=lately.seconds(tx),
        steady=target is not None and stays_as_it_is(tx, segment, lease, set_aside, lately.free_slots),
    ), due


def _slots_after_boundary(
    tx: Tx, row: TargetRow, lease: LeaseRow, set_aside: Mapping[str, float | None], lately: SeenLately
) -> tuple[Slot, ...]:
    """On which slots the same processes could go on after the boundary that was asked for; () if they have to end.

    On a node that is about to go nobody waits for workers elsewhere to load.
    """
    target, held = from_json(Target, row.target), leases.allocation(lease)
    places = places_in_place(target, held, lately.free_slots(tx), set_aside, leases.tied_to(tx, lease)) or ()
    by = leave_by(set_aside, {slot.node for slot in held.slots}, tx.settings)
    return places if by is None or tx.now < by or {*places} <= {*held.slots} else ()


def _answer_without_lease(tx: Tx, claims: Claims, lease: LeaseRow | None) -> HeartbeatAnswer:
    job = tx.job(claims.job_id)
    if job.state in (JobState.CANCELLED, JobState.FAILED):
        return HeartbeatAnswer(directive=Directive.STOP, reason=f"the job was {job.state}: {job.error}")
    why = lease.fence_reason if lease is not None else _why_over(tx, claims)
    return HeartbeatAnswer(directive=Directive.FENCED, reason=f"epoch {claims.epoch}: {why}")


def _directive(segment: SegmentRow, beat: Heartbeat) -> tuple[Directive, str]:
    if segment.state == SegmentState.COMMITTED:
        return Directive.BOUNDARY, "the segment is committed"
    # A plan may not end a segment that made no step yet: resizes must not eat all progress.
    if segment.revoked_by == "user" or (segment.revoked_by and beat.step > segment.start_step):
        return Directive.BOUNDARY, segment.revoke_reason or ""
    return Directive.GO_ON, ""


_BEATS = cast(Table, HeartbeatRow.__table__)
# Named unlike the columns: by their names the lease's would be set, too.
_NEW_BEAT = insert(_BEATS).values({column.name: bindparam(f"beat_{column.name}") for column in _BEATS.c})
_RENEWED = update(_LEASES).where(_LEASES.c.epoch == bindparam("of_epoch")).values(expires_at=bindparam("until"))
_BEAT = _NEW_BEAT.on_conflict_do_update(
    index_elements=[HeartbeatRow.epoch],
    set_={name: column for name, column in _NEW_BEAT.excluded.items() if name != "epoch"},
    where=HeartbeatRow.step <= _NEW_BEAT.excluded.step,
).add_cte(_RENEWED.cte("renewed"))


def _renew(tx: Tx, lease: LeaseRow, beat: Heartbeat) -> None:
    """The lease, and the heartbeat is stored; but one that comes late, or again, does not take the steps of an epoch
    back."""
    values = {
        "epoch": lease.epoch,
        "step": beat.step,
        "samples": beat.samples,
        "sent_at": beat.at,
        "received_at": tx.now,
        "host": beat.host,
        "pids": list(beat.pids),
        "progress": beat.progress,
        "gain": beat.gain,
    }
    renewed = {"of_epoch": lease.epoch, "until": tx.now + tx.settings.lease_seconds}
    tx.session.execute(_BEAT, {**renewed, **{f"beat_{name}": value for name, value in values.items()}})


def _mark_started(tx: Tx, lease: LeaseRow, segment: SegmentRow) -> None:
    lease.started_at = tx.now
    if segment.epoch == lease.epoch and segment.state == SegmentState.GRANTED:
        segment.started_at = tx.now
        segment.state = SegmentState.RUNNING


_COLUMNS = {
    field.name: "passes" if field.name == "epoch" else field.name
    for field in fields(Observation)
    if field.name not in ("exchanges", "exchange_needs", "stages")  # the segment's, and the lease's
}

_NEW_OBSERVATIONS = insert(ObservationRow).on_conflict_do_nothing().returning(ObservationRow.step)


def observe(tx: Tx, claims: Claims, observations: Sequence[Observation]) -> str | None:
    """Store what is new of them. What was measured with something else than the lease has counts as not told: models
    of a job have parameters for each type that it reports, and other jobs learn from them. Gives the first difference
    in words, if there is any."""
    lineage_now = guard(tx, claims)
    if not observations:
        return None
    granted = _granted(leases.allocation(tx.lease(claims.epoch)))
    differences = [_difference(one, granted) for one in observations]
    store(tx, claims, lineage_now, [one for one, words in zip(observations, differences, strict=True) if words is None])
    return next(filter(None, differences), None)


_OF_NEEDS = ("type", "num_slots", "num_nodes")  # fields that `ExchangeNeeds` shares with the report that has it


def _granted(held: Allocation) -> Mapping[str, Collection[object]]:
    """By field of an observation, what it can be with this allocation.

    An epoch's never changes: reports go out under the token of the order that they were made under. `comm` is what the
    ranks find or fall back to, one of those that there are.
    """
    return {
        "type": held.counts().keys(),
        "num_slots": (held.num_slots,),
        "num_nodes": (held.num_nodes,),
        "global_batch": (held.global_batch,),
        "layout": (None if held.layout == Layout(data=held.num_slots) else held.layout,),
        "comm": CLASSES.keys(),
    }


def _difference(one: Observation, granted: Mapping[str, Collection[object]]) -> str | None:
    """In words, where it was measured with something else; None where it was not."""
    told = [(name, getattr(one, name), values) for name, values in granted.items()]
    needs = one.exchange_needs
    if needs is not None:
        told += [(f"{name} of exchange_needs", getattr(needs, name), granted[name]) for name in _OF_NEEDS]
        told += [("an algorithm of exchange_needs", cost.algorithm, granted["comm"]) for cost in needs.costs]
    for name, value, values in told:
        if value not in values:
            return f"{name} is {value!r}; with the lease it can be {' or '.join(map(str, values))}"
    return None


def store(tx: Tx, claims: Claims, lineage_now: int, observations: Sequence[Observation]) -> None:
    """Unchecked. Two observations of one epoch at the same step are the same observation."""
    if not observations:
        return
    job_id = claims.job_id
    about = {"job_id": job_id, "segment_id": claims.segment_id, "epoch": claims.epoch, "lineage": lineage_now}
    told = [to_json(o) for o in observations]
    rows = [{**about, **{column: one[key] for key, column in _COLUMNS.items()}} for one in told]
    new_steps = set(tx.session.scalars(_NEW_OBSERVATIONS, rows))
    new_observations = [one for one in told if one["step"] in new_steps]
    for o in observations:
        if o.choice is not None:
            tx.segment(claims.segment_id).exchange = to_json(o.choice)
    if new_observations:
        emit(tx, EventKind.OBSERVED, job_id, {"observations": new_observations}, claims.segment_id, claims.epoch)


def release_slots(tx: Tx, claims: Claims, slots: Sequence[Slot], epoch: int) -> None:
    """Free those of the slots that the lease of this epoch holds beside its allocation, by the word of the agent that
    watches its processes. Under the scheduling lock."""
    lease = tx.row(LeaseRow, epoch)
    if lease is None or lease.origin_epoch != claims.origin_epoch:
        raise Conflict(f"epoch {epoch} is none of the processes that began under epoch {claims.origin_epoch}")
    if lease.released_at is not None:
        raise Fenced(f"epoch {epoch} is over: what is left of its slots is the next one's, or free")
    tx.carries_out = leases.release_left(tx, lease, slots)


def mark_bad(tx: Tx, claims: Claims, checkpoint_id: int, why: str) -> None:
    """A checkpoint was found corrupt on reading. If it was the head, the newest good one before it is the head now.

    The last good one stays what it is, since a job with history never begins at step 0: whoever reads it again may find
    it sound, where its store was not mounted.
    """
    why = shortened(why, NOTE_CHARACTERS)
    job = tx.job(claims.job_id, lock=True)
    guard(tx, claims)
    row = tx.session.get(CheckpointRow, checkpoint_id)
    fork = fork_of(job.results)
    if fork is not None and fork.checkpoint_id == checkpoint_id:  # the parent's to mark; and nothing is before it
        raise UserError(
            f"job {job.id!r} was forked from {fork.words}, which cannot be read: {why}. Fork another checkpoint."
        )
    if row is None or row.job_id != job.id:
        raise UserError(f"checkpoint {checkpoint_id} is none of job {job.id!r}: only its own can be marked as corrupt")
    if row.bad:
        return
    is_head = job.head_id == row.id
    before = _good_before(tx, job, row) if is_head else None
    if is_head and before is None:
        last = f"checkpoint {row.id} (step {row.step}), the last one of the job, cannot be read: {why}"
        if last not in job.notes:
            add_note(tx, job, last)
        return
    row.bad, row.bad_reason = True, why
    tx.session.flush()
    emit(tx, EventKind.CHECKPOINTS_RETIRED, job.id, {"uris": [row.uri], "why": f"corrupt: {why}"})
    consequence = "newer ones are not affected" if before is None else _step_back(tx, job, before)
    add_note(tx, job, f"checkpoint {row.id} (step {row.step}) is corrupt and was passed over: {why}; {consequence}")


def _good_before(tx: Tx, job: JobRow, row: CheckpointRow) -> CheckpointRow | None:
    return next(iter(lineage.newest_usable(tx, job, row.previous_id, 1)), None) or lineage.fork_start(tx, job)


def _step_back(tx: Tx, job: JobRow, good: CheckpointRow) -> str:
    job.head_id = good.id
    tx.session.flush()
    step = lineage.head_step(tx, job)
    open_states = [state for state in SegmentState if state.open]
    tx.session.execute(
        update(SegmentRow)
        .where(SegmentRow.job_id == job.id, SegmentRow.state.in_(open_states))
        .values(start_step=step)
        .execution_options(synchronize_session="fetch")
    )
    return f"the job goes on from checkpoint {good.id} (step {step})"
