"""How things stand now: jobs, slots, decisions, heartbeats, speeds. One question each, over what is active."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy import select, text

from elastic_core.control.believable import within
from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.profiles import progress_rate
from elastic_core.control.ledger.tables import NodeRow, QueueRow
from elastic_core.control.metrics import metric_families as families
from elastic_core.control.metrics.metric_families import Family
from elastic_core.domain import JobState
from elastic_core.domain.number_ranges import AMOUNT

Sample = tuple[Family, tuple[str, ...], float]  # its labels' values
RECENT_SECONDS, RECENT = 900.0, 500  # decisions that are looked at
STATES = ("created", "waiting", "paused", "starting", "training")
SLOT_STATES = ("held", "idle", "set_aside", "away")
QUANTILES = ("0.5", "0.95", "1")

_JOBS = text("""
    SELECT coalesce(j.spec ->> 'queue', 'default'),
           CASE WHEN s.state = 'running' THEN 'training' WHEN s.state = 'granted' THEN 'starting'
                WHEN j.paused IS NOT NULL THEN 'paused' WHEN s.state = 'waiting' THEN 'waiting' ELSE 'created' END
                AS standing,
           count(*), max(:now - s.asked_at)
    FROM jobs j LEFT JOIN segments s
        ON s.job_id = j.id AND s.state IN ('created', 'waiting', 'granted', 'running')
    WHERE j.state = 'active' GROUP BY 1, 2
""")
_ENDED = text("SELECT state, count(*) FROM jobs WHERE state <> 'active' GROUP BY state")
_SLOTS = text("""
    SELECT n.type, CASE WHEN h.slot IS NOT NULL THEN 'held' WHEN NOT n.present THEN 'away'
                        WHEN n.set_aside_at IS NOT NULL THEN 'set_aside' ELSE 'idle' END, count(*)
    FROM slots s JOIN nodes n ON n.name = s.node
    LEFT JOIN lease_slots h ON h.slot = s.id AND h.released_at IS NULL
    WHERE h.slot IS NOT NULL OR s.index < n.num_slots GROUP BY 1, 2
""")
_DECISIONS = text("""
    WITH newest AS (SELECT id, at, seconds, failure FROM decisions ORDER BY id DESC LIMIT :recent)
    SELECT coalesce(max(id), 0), count(failure) FILTER (WHERE at > :from),
           percentile_cont(CAST(:quantiles AS float8[])) WITHIN GROUP (ORDER BY seconds) FILTER (WHERE at > :from)
    FROM newest
""")
_HEARTBEATS = text("""
    SELECT coalesce(max(:now - coalesce(b.received_at, l.started_at)), 0)
    FROM leases l LEFT JOIN heartbeats b ON b.epoch = l.epoch
    WHERE l.released_at IS NULL AND l.fenced_at IS NULL AND l.started_at IS NOT NULL
""")
_SPEEDS = text(f"""
    SELECT coalesce(j.spec ->> 'queue', 'default'), sum(o.samples_per_second), sum({progress_rate("o", "j")})
    FROM leases l JOIN jobs j ON j.id = l.job_id
    CROSS JOIN LATERAL (
        SELECT samples_per_second, gain, global_batch FROM observations WHERE epoch = l.epoch
        ORDER BY step DESC LIMIT 1
    ) o
    WHERE l.released_at IS NULL AND l.fenced_at IS NULL
      AND {within("o.samples_per_second", AMOUNT)} GROUP BY 1
""")
_RATES = text("""
    SELECT coalesce(j.spec ->> 'queue', 'default'), sum(n.price_per_slot_hour)
    FROM lease_slots h JOIN leases l ON l.epoch = h.epoch JOIN jobs j ON j.id = l.job_id
    JOIN slots s ON s.id = h.slot JOIN nodes n ON n.name = s.node
    WHERE h.released_at IS NULL GROUP BY 1
""")


def queues(tx: Tx) -> list[str]:
    return sorted({"default", *tx.session.scalars(select(QueueRow.name))})


def standing(tx: Tx) -> Iterator[Sample]:
    """All of them; a state in which there is nothing is told as 0."""
    names = queues(tx)
    yield from _jobs(tx, names)
    yield from _slots(tx)
    yield from _decisions(tx)
    yield families.HEARTBEAT_AGE, (), tx.session.execute(_HEARTBEATS, {"now": tx.now}).scalar_one()
    yield families.LEASE_SECONDS, (), tx.settings.lease_seconds
    speeds = {queue: told for queue, *told in tx.session.execute(_SPEEDS)}
    rates: dict[str, float] = {queue: rate for queue, rate in tx.session.execute(_RATES)}
    for queue in sorted({*names, *speeds, *rates}):
        throughput, goodput = speeds.get(queue, (0.0, 0.0))
        yield families.THROUGHPUT, (queue,), throughput
        yield families.GOODPUT, (queue,), goodput
        yield families.COST_RATE, (queue,), rates.get(queue, 0.0)


def _jobs(tx: Tx, names: list[str]) -> Iterator[Sample]:
    numbers = {(queue, state): 0 for queue in names for state in STATES}
    waits = dict.fromkeys(names, 0.0)
    for queue, state, number, longest in tx.session.execute(_JOBS, {"now": tx.now}):
        numbers[queue, state] = number
        if state == "waiting":
            waits[queue] = longest or 0.0
    yield from ((families.JOBS, labels, number) for labels, number in numbers.items())
    yield from ((families.LONGEST_WAIT, (queue,), seconds) for queue, seconds in waits.items())
    ended = {state.value: 0 for state in JobState if state is not JobState.ACTIVE}
    ended |= {state: number for state, number in tx.session.execute(_ENDED)}
    yield from ((families.ENDED, (state,), number) for state, number in ended.items())


def _slots(tx: Tx) -> Iterator[Sample]:
    types = sorted(set(tx.session.scalars(select(NodeRow.type))))
    numbers = {(type_, state): 0 for type_ in types for state in SLOT_STATES}
    numbers |= {(type_, state): number for type_, state, number in tx.session.execute(_SLOTS)}
    yield from ((families.SLOTS, labels, number) for labels, number in numbers.items())


def _decisions(tx: Tx) -> Iterator[Sample]:
    given: dict[str, Any] = {
        "recent": RECENT,
        "from": tx.now - RECENT_SECONDS,
        "quantiles": list(map(float, QUANTILES)),
    }
    last, failures, seconds = tx.session.execute(_DECISIONS, given).one()
    yield families.DECISIONS, (), last
    yield families.DECISION_FAILURES, (), failures
    if seconds is not None:  # there were some
        told = zip(QUANTILES, seconds, strict=True)
        yield from ((families.DECISION_SECONDS, (name,), value) for name, value in told)
