"""The outbox and its readers: what happened, in an order that a reader can follow with one number.

An event is written without a position, in the transaction that it tells of. Positions are given afterwards, by
whoever reads, under one lock and only to what is committed by then. So an event that commits late gets a position
behind everything that any reader has seen, and none is ever missed. Numbers drawn while writing (a sequence, or
transaction ids with a horizon) either miss late events or stall behind any idle transaction of the whole server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Integer, Select, bindparam, func, select, text
from sqlalchemy.dialects.postgresql import insert

from elastic_core.control.ledger.database import Ledger, Tx
from elastic_core.control.ledger.tables import EventRow, JobRow, ReaderRow
from elastic_core.crashing import crash_here
from elastic_core.protocol.events import Event, EventKind
from elastic_core.text import shortened

MOST_NOTES, FIRST_NOTES = 100, 20  # of a job
MOST_CHARACTERS = 4_000  # of one: words of ours around what a trainer said
# Of events that are read at once, as PostgreSQL keeps them (compressed, to a ninetieth at best): thousands of reports,
# and of what a job's code had reported as much as a reader has memory for.
PAGE_BYTES = 2 * 2**20

PLACE = text("""
    WITH placed AS MATERIALIZED (
        SELECT id, nextval('event_position') AS position
        FROM (SELECT id FROM events WHERE position IS NULL ORDER BY id) AS fresh
    )
    UPDATE events SET position = placed.position FROM placed WHERE events.id = placed.id
""")
_UNPLACED = select(EventRow.id).where(EventRow.position.is_(None)).limit(1)
PLACING = 7023112  # advisory lock: one caller gives positions at a time
_LOCK_PLACES = select(func.pg_advisory_xact_lock(PLACING))
_NEW_POSITION = insert(ReaderRow)
_ACKNOWLEDGE = _NEW_POSITION.on_conflict_do_update(
    index_elements=[ReaderRow.name],
    set_={"position": func.greatest(ReaderRow.position, _NEW_POSITION.excluded.position)},
)


def emit(
    tx: Tx, kind: EventKind, job_id: str, payload: Mapping[str, Any], segment_id: str | None = None,
    epoch: int | None = None,
) -> None:  # fmt: skip
    """Tell what this transaction does. `payload` is plain JSON values."""
    tx.session.add(
        EventRow(at=tx.now, kind=kind, job_id=job_id, segment_id=segment_id, epoch=epoch, payload=dict(payload))
    )


def add_note(tx: Tx, job: JobRow, text: str) -> None:
    """What the job's user should know. Every look at the job carries its notes: of many the first, which say what it
    began as, and the newest are kept, of a long one the beginning."""
    note = shortened(text, MOST_CHARACTERS)
    notes = [*job.notes, note]
    job.notes = notes if len(notes) <= MOST_NOTES else [*notes[:FIRST_NOTES], *notes[FIRST_NOTES - MOST_NOTES :]]
    emit(tx, EventKind.NOTE, job.id, {"text": note})


class LedgerFeed:
    """`events.Feed` over the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    def events(self, after: int, limit: int = 500, segment_id: str | None = None) -> Sequence[Event]:
        place_events(self._ledger)
        return self._ledger.read(lambda tx: _after(tx, after, limit, segment_id))

    def position(self, reader: str) -> int:
        def position_of_reader(tx: Tx) -> int:
            row = tx.row(ReaderRow, reader)
            return row.position if row else 0

        return self._ledger.read(position_of_reader)

    def acknowledge(self, reader: str, position: int) -> None:
        """Remember how far this reader is. A position before the remembered one changes nothing."""
        told = {"name": reader, "position": position}
        self._ledger.write(lambda tx: tx.session.execute(_ACKNOWLEDGE, told))


def place_events(ledger: Ledger) -> None:
    """Give positions to those that are committed and have none."""
    if ledger.read(_any_unplaced):
        ledger.write(_place)
        crash_here("feed.placed")


def _any_unplaced(tx: Tx) -> bool:
    return tx.session.scalar(_UNPLACED) is not None


def _place(tx: Tx) -> None:
    # Its own statement: the next one must see everything that was committed when the lock was got.
    tx.session.execute(_LOCK_PLACES)
    tx.session.execute(PLACE)


def _page(of_segment: bool) -> Select[Any]:
    """The next events, at most `limit` of them and as many as `PAGE_BYTES` allow; the first however large it is."""
    found = select(EventRow, func.pg_column_size(EventRow.payload).label("size")).where(
        EventRow.position > bindparam("after")
    )
    if of_segment:
        found = found.where(EventRow.segment_id == bindparam("segment"))
    found_rows = found.order_by(EventRow.position).limit(bindparam("limit", type_=Integer)).subquery()
    before = func.sum(found_rows.c.size).over(order_by=found_rows.c.position) - found_rows.c.size
    summed = select(found_rows, before.label("before")).subquery()
    return select(summed).where(summed.c.before < PAGE_BYTES).order_by(summed.c.position)


_AFTER, _AFTER_OF_SEGMENT = _page(of_segment=False), _page(of_segment=True)


def _after(tx: Tx, after: int, limit: int, segment_id: str | None) -> Sequence[Event]:
    wanted = {"after": after, "limit": limit}
    if segment_id is None:
        rows = tx.session.execute(_AFTER, wanted)
    else:
        rows = tx.session.execute(_AFTER_OF_SEGMENT, {**wanted, "segment": segment_id})
    return [
        Event(
            position=row.position,
            at=row.at,
            kind=EventKind(row.kind),
            job_id=row.job_id,
            segment_id=row.segment_id,
            epoch=row.epoch,
            payload=row.payload,
        )
        for row in rows
    ]
