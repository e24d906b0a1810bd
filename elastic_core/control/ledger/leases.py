"""Leases: opened, fenced, released. A fenced lease may write nothing more, but its slots are still held; they are
free once it is released, that is when its processes are known to be gone (or its node has left).

A lease that passes on with fewer slots than before still holds the others beside its allocation, until the processes
on them are gone, too (`release_left`)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from sqlalchemy import Select, SQLColumnExpression, Text, bindparam, func, select, text, true, update
from sqlalchemy import Sequence as DatabaseSequence
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import aliased

from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.feed import emit
from elastic_core.control.ledger.tables import HeartbeatRow, JobRow, LeaseRow, LeaseSlotRow, SegmentRow, TargetRow
from elastic_core.domain import EXACT, Allocation, SegmentState, Slot, from_json, to_json
from elastic_core.policy.plans.free_slots import FreeSlots
from elastic_core.protocol.events import EventKind

T = TypeVar("T")

AHEAD_SECONDS = 10.0  # that clocks of several hosts may differ by
EPOCHS = DatabaseSequence("lease_epoch")

FREE = text("""
    SELECT s.node, n.type, array_agg(s.index ORDER BY s.index) FROM slots s JOIN nodes n ON n.name = s.node
    WHERE NOT s.held AND n.present AND n.set_aside_at IS NULL AND s.index < n.num_slots
    GROUP BY s.node, n.type ORDER BY s.node
""")

DRAINING = text("""
    SELECT h.epoch, s.node, s.index, n.type
    FROM lease_slots h JOIN slots s ON s.id = h.slot JOIN nodes n ON n.name = s.node JOIN leases l ON l.epoch = h.epoch
    WHERE h.epoch = ANY(:epochs) AND h.released_at IS NULL AND l.released_at IS NULL
      AND NOT EXISTS (
          SELECT 1 FROM jsonb_array_elements(l.allocation -> 'slots') a
          WHERE a ->> 'node' = s.node AND (a ->> 'index')::int = s.index)
    ORDER BY s.node, s.index
""")

_WANTED = func.unnest(bindparam("jobs", type_=ARRAY(Text))).table_valued("id", name="wanted").render_derived()
# Said as a range, and ordered by both columns of the index on jobs: by the epoch alone PostgreSQL may go through the
# leases of all jobs from the newest on, which for a job that never had one are all that there are.
_OF_JOB = LeaseRow.job_id.between(_WANTED.c.id, _WANTED.c.id)
_NEWEST = select(LeaseRow).where(_OF_JOB).order_by(LeaseRow.job_id.desc(), LeaseRow.epoch.desc()).limit(1)
LAST = aliased(LeaseRow, _NEWEST.lateral("last"))  # of each job by its index: a long one costs no more


def of_last(what: SQLColumnExpression[T]) -> Select[str, T]:
    """By job, of those in `jobs` that ever held slots: what its newest lease (`LAST`) says."""
    return select(LAST.job_id, what).select_from(_WANTED).join(LAST, true())


_LAST_ALLOCATIONS = of_last(LAST.allocation)
_LIVE_OF_ORIGIN = select(LeaseRow).where(LeaseRow.origin_epoch == bindparam("origin"), LeaseRow.released_at.is_(None))
_LOCKED_OF_ORIGIN = _LIVE_OF_ORIGIN.with_for_update(key_share=True)


def slot_id(slot: Slot) -> str:
    return f"{slot.node}:{slot.index}"


def allocation(lease: LeaseRow) -> Allocation:
    return from_json(Allocation, lease.allocation)


def free_slots(tx: Tx) -> FreeSlots:
    return FreeSlots({node: (kind, indices) for node, kind, indices in tx.session.execute(FREE)})


def draining(tx: Tx, epochs: Collection[int]) -> dict[int, tuple[Slot, ...]]:
    """By epoch, of these: slots that are held beside the allocation, because processes may still be on them."""
    slots_by_epoch: dict[int, list[Slot]] = {}
    for epoch, node, index, kind in tx.session.execute(DRAINING, {"epochs": list(epochs)}):
        slots_by_epoch.setdefault(epoch, []).append(Slot(node, index, kind))
    return {epoch: tuple(slots) for epoch, slots in slots_by_epoch.items()}


def live_of_origin(tx: Tx, origin_epoch: int, *, lock: bool = True) -> LeaseRow | None:
    """The lease that this chain of processes holds now, if any."""
    return tx.session.scalars(_LOCKED_OF_ORIGIN if lock else _LIVE_OF_ORIGIN, {"origin": origin_epoch}).one_or_none()


def tied_to(tx: Tx, lease: LeaseRow) -> str | None:
    """The node without which the lease's processes cannot go on (`policy.plans.staying`); None where there is none."""
    return ties(tx, [lease]).get(lease.epoch)


def ties(tx: Tx, leases: Collection[LeaseRow]) -> dict[int, str]:
    """The same of those of these leases that have one, by epoch."""
    if tx.settings.launcher != "ray":
        return {}
    began = {row.epoch: row for row in tx.among(LeaseRow.epoch, {lease.origin_epoch for lease in leases})}
    return {
        lease.epoch: allocation(began[lease.origin_epoch]).slots[0].node
        for lease in leases
        if lease.origin_epoch in began
    }


def live_of_job(tx: Tx, job_id: str) -> list[LeaseRow]:
    """Locked. More than one only while an old process group dies and its successor waits."""
    query = select(LeaseRow).where(LeaseRow.job_id == job_id, LeaseRow.released_at.is_(None))
    return list(tx.session.scalars(query.order_by(LeaseRow.epoch).with_for_update(key_share=True)))


def live_epochs(tx: Tx, job_ids: Sequence[str]) -> list[int]:
    query = select(LeaseRow.epoch).where(LeaseRow.job_id.in_(job_ids), LeaseRow.released_at.is_(None))
    return list(tx.session.scalars(query.order_by(LeaseRow.epoch)))


def last_slots(tx: Tx, job_ids: Sequence[str]) -> dict[str, tuple[Slot, ...]]:
    """What each job held last."""
    if not job_ids:
        return {}
    rows = tx.session.execute(_LAST_ALLOCATIONS, {"jobs": list(job_ids)})
    return {job_id: from_json(Allocation, held).slots for job_id, held in rows}


def open_lease(
    tx: Tx, job: JobRow, segment: SegmentRow, granted: Allocation, reason: str, origin_epoch: int | None = None,
    beside: Iterable[str] = (),
) -> LeaseRow:  # fmt: skip
    """Give the segment its slots under a new epoch; `origin_epoch` when the same processes go on.

    `beside`: ids of slots that it holds without being granted them, while processes are still on them.
    """
    if job.exchange_fallback is not None:  # whatever plan is carried out: it may be older
        granted = replace(granted, comm=EXACT)
    epoch = tx.session.scalars(EPOCHS.next_value()).one()
    lease = LeaseRow(
        epoch=epoch,
        origin_epoch=epoch if origin_epoch is None else origin_epoch,
        job_id=job.id,
        segment_id=segment.id,
        attempt=segment.attempt,
        allocation=to_json(granted),
        num_slots=granted.num_slots,
        granted_at=tx.now,
        expires_at=tx.now + tx.settings.lease_seconds,
        started_at=tx.now if origin_epoch is not None else None,
    )
    tx.session.add(lease)
    tx.session.flush()
    tx.session.add_all(LeaseSlotRow(epoch=epoch, slot=slot) for slot in {*map(slot_id, granted.slots), *beside})
    segment.epoch = epoch
    segment.granted_at = tx.now
    segment.started_at = lease.started_at
    segment.state = SegmentState.GRANTED if origin_epoch is None else SegmentState.RUNNING
    segment.handed_over = origin_epoch is not None
    segment.grant_reason = reason
    segment.end_reason = segment.error = None
    clear_revocation(segment)
    tx.session.flush()
    payload = {
        "index": segment.index,
        "lineage": segment.lineage,
        "attempt": segment.attempt,
        "allocation": lease.allocation,
        "reason": reason,
        "handed_over": segment.handed_over,
        "start_step": segment.start_step,
    }
    target = tx.session.get(TargetRow, job.id) if granted.stages else None
    if target is not None:
        payload["placed"] = target.target.get("placed")  # what was predicted of its stages
    emit(tx, EventKind.SEGMENT_GRANTED, job.id, payload, segment.id, epoch)
    return lease


def held(tx: Tx, lease: LeaseRow) -> set[str]:
    """Ids of the slots that the lease holds now, with those beside its allocation."""
    query = select(LeaseSlotRow.slot).where(LeaseSlotRow.epoch == lease.epoch, LeaseSlotRow.released_at.is_(None))
    return set(tx.session.scalars(query))


def release_left(tx: Tx, lease: LeaseRow, slots: Sequence[Slot]) -> bool:
    """Free those of the slots that are held beside the allocation; whether there were any."""
    gone = set(map(slot_id, slots)) & held(tx, lease) - set(map(slot_id, allocation(lease).slots))
    held_rows = update(LeaseSlotRow).where(LeaseSlotRow.epoch == lease.epoch, LeaseSlotRow.slot.in_(gone))
    tx.session.execute(held_rows.values(released_at=tx.now))
    return bool(gone)


def release(tx: Tx, lease: LeaseRow, reason: str) -> set[str]:
    """Free the lease's slots; their ids, with those beside its allocation."""
    lease.released_at = tx.now
    lease.release_reason = reason
    held = update(LeaseSlotRow).where(LeaseSlotRow.epoch == lease.epoch, LeaseSlotRow.released_at.is_(None))
    freed = set(tx.session.scalars(held.values(released_at=tx.now).returning(LeaseSlotRow.slot)))
    tx.session.flush()
    return freed


def bring_back(tx: Tx) -> None:
    """Let no live lease have times that are still to come, as after a start of the host with its clock set back.

    Until then nobody would see that it is renewed no more. It gets a whole life from now on; one that was fenced none,
    but its fence counts from now on.
    """
    latest = tx.now + tx.settings.lease_seconds + AHEAD_SECONDS
    live = update(LeaseRow).where(LeaseRow.released_at.is_(None))
    ahead_of_us = live.where(LeaseRow.expires_at > latest, LeaseRow.fenced_at.is_(None))
    tx.session.execute(ahead_of_us.values(expires_at=tx.now + tx.settings.lease_seconds))
    tx.session.execute(live.where(LeaseRow.granted_at > tx.now + AHEAD_SECONDS).values(granted_at=tx.now))
    tx.session.execute(live.where(LeaseRow.fenced_at > tx.now + AHEAD_SECONDS).values(fenced_at=tx.now))
    ahead = update(HeartbeatRow).where(HeartbeatRow.received_at > tx.now + AHEAD_SECONDS)
    tx.session.execute(ahead.values(received_at=tx.now))


def fence(tx: Tx, lease: LeaseRow, reason: str) -> None:
    """From now on this epoch can write nothing. Its slots stay held."""
    if lease.fenced_at is None:
        lease.fenced_at = tx.now
        lease.fence_reason = reason
        tx.session.flush()


def revoke(tx: Tx, segment: SegmentRow, by: str, reason: str) -> None:
    segment.revoked_at = tx.now
    segment.revoked_by = by
    segment.revoke_reason = reason


def clear_revocation(segment: SegmentRow) -> None:
    segment.revoked_at = segment.revoked_by = segment.revoke_reason = None
