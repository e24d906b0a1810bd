"""Where jobs that wait stand: looked up for all of them at once, and once for each change of what that follows from.

A page asks every few seconds, for each of many people. What is found holds until somebody asks for slots, gets or frees
some, or a decision is made; and for `KEEP_SECONDS` at most, since ends that were forecast pass.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Row, select, text

from elastic_core.control.ledger import forecast_rows
from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.nodes import queues
from elastic_core.control.ledger.profiles import BestKnown, best_known
from elastic_core.control.ledger.tables import JobRow, SegmentRow, TargetRow
from elastic_core.control.ledger.views import limits_in_force, spec_in_force
from elastic_core.domain import JobState, Limits, Preemptor, SegmentState, from_json
from elastic_core.policy.base.queue import in_order
from elastic_core.predict.work.estimated_starts import SlotsFreed, WaitingJob, estimated_starts
from elastic_core.protocol.forecasts import Forecast
from elastic_core.protocol.records import JobStatus
from elastic_core.protocol.waiting.queued import MOST_NAMED, HeldBy, InQueue, words_of_need

KEEP_SECONDS = 10.0
_STANDING = text("""
    SELECT s.version, s.decided_version, (SELECT max(epoch) FROM leases WHERE released_at IS NULL),
           (SELECT count(*) FROM lease_slots WHERE released_at IS NULL),
           (SELECT count(*) FROM segments WHERE state = 'waiting'), (SELECT count(*) FROM targets WHERE waits IS NULL)
    FROM scheduling s
""")
_CAPACITY = text("SELECT type, sum(num_slots) FROM nodes WHERE present AND set_aside_at IS NULL GROUP BY type")
_HELD = text("""
    SELECT l.job_id, n.type, count(*)
    FROM lease_slots h JOIN leases l ON l.epoch = h.epoch JOIN slots s ON s.id = h.slot JOIN nodes n ON n.name = s.node
    WHERE h.released_at IS NULL AND n.present AND n.set_aside_at IS NULL AND s.index < n.num_slots
    GROUP BY l.job_id, n.type
""")
_WAITING = (
    select(JobRow)
    .join(SegmentRow, SegmentRow.job_id == JobRow.id)
    .where(JobRow.state == JobState.ACTIVE, JobRow.paused.is_(None), SegmentRow.state == SegmentState.WAITING)
)
_TARGETS = select(TargetRow.job_id, TargetRow.target["counts"], TargetRow.target["preempted_by"])
_Standing = Row[Any]  # what the places follow from


def waits(job: JobStatus) -> bool:
    return job.state is JobState.ACTIVE and job.segment_state is SegmentState.WAITING and job.paused is None


class WaitingJobs:
    """Of one control plane; safe to use from many threads."""

    def __init__(self) -> None:
        self._kept: tuple[float, _Standing, Mapping[str, InQueue]] | None = None

    def placed(self, tx: Tx, jobs: Sequence[JobStatus]) -> list[JobStatus]:
        """The same, and of those that wait how they stand."""
        if not any(map(waits, jobs)):
            return list(jobs)
        places = self.places(tx)
        return [replace(job, in_queue=places.get(job.job_id)) if waits(job) else job for job in jobs]

    def places(self, tx: Tx) -> Mapping[str, InQueue]:
        """By job, of all that wait."""
        standing, kept = tx.session.execute(_STANDING).one(), self._kept
        if kept is None or kept[1] != standing or not 0 <= tx.now - kept[0] < KEEP_SECONDS:
            self._kept = kept = tx.now, standing, _places(tx)
        return kept[2]


@dataclass(frozen=True, slots=True)
class _Queued:
    """What a job's place in the queue, and when it may start, follow from."""

    job_id: str
    submitted_at: float
    priority: int
    queue: str
    task: str
    limits: Limits
    of_one_type: bool
    scale_invariant: bool  # the unit of its work


@dataclass(frozen=True, slots=True)
class _Planned:
    """What the plan in force has for a job: slots by type; and of one that it stopped, for whom."""

    counts: Mapping[str, int]
    preempted_by: tuple[Preemptor, ...]


class _SlotsHeld:
    """Who holds slots of the nodes that can be used now. The same types are looked at once for all jobs."""

    def __init__(self, tx: Tx) -> None:
        self.capacity: dict[str, int] = {kind: int(count) for kind, count in tx.session.execute(_CAPACITY) if count}
        self.free = dict(self.capacity)
        self._held: dict[str, dict[str, int]] = {}
        self._holders: dict[tuple[str, ...], list[HeldBy]] = {}
        for job_id, kind, count in tx.session.execute(_HELD):
            self._held.setdefault(job_id, {})[kind] = count
            self.free[kind] -= count

    def types_of(self, limits: Limits) -> tuple[str, ...]:
        """Of the pool, that the job may use."""
        return tuple(kind for kind in limits.types or sorted(self.capacity) if kind in self.capacity)

    def others(self, job_id: str, kinds: tuple[str, ...]) -> tuple[tuple[HeldBy, ...], int]:
        """The first of those that hold slots of these types, the most slots first, and how many there are besides."""
        if kinds not in self._holders:
            sums = {job: sum(counts.get(kind, 0) for kind in kinds) for job, counts in self._held.items()}
            found = [HeldBy(job_id=job, num_slots=count) for job, count in sums.items() if count]
            self._holders[kinds] = sorted(found, key=lambda one: (-one.num_slots, one.job_id))
        holders, own = self._holders[kinds], self._held.get(job_id, {})
        first = tuple(one for one in holders[: MOST_NAMED + 1] if one.job_id != job_id)[:MOST_NAMED]
        return first, len(holders) - len(first) - any(own.get(kind) for kind in kinds)


def _places(tx: Tx) -> dict[str, InQueue]:
    queue, slots, planned = in_order(_waiting(tx)), _SlotsHeld(tx), _planned(tx)
    limited = {one.name for one in queues(tx) if one.is_limited}
    unknown = {job.job_id: _no_estimate(job, slots, limited) for job in queue}
    starts = _starts(tx, [job for job in queue if not unknown[job.job_id]], slots, planned)
    found = {}
    for place, job in enumerate(queue, 1):
        kinds, needs, starts_at = slots.types_of(job.limits), job.limits.min_slots, starts.get(job.job_id)
        held_by, more = slots.others(job.job_id, kinds)
        capacity, free = [slots.capacity[kind] for kind in kinds], max((slots.free[kind] for kind in kinds), default=0)
        preempted_by = planned[job.job_id].preempted_by if job.job_id in planned else ()
        why = unknown[job.job_id] or ("" if starts_at is not None else "it is not forecast when enough slots are free")
        found[job.job_id] = InQueue(
            place=place, length=len(queue), needs=needs, usable=sum(capacity), free=free, held_by=held_by,
            more_holders=more, preempted_by=preempted_by, starts_at=starts_at, unknown=why,
            words=words_of_need(needs, capacity, free, held_by, more, preempted_by),
        )  # fmt: skip
    return found


def _waiting(tx: Tx) -> list[_Queued]:
    return list(map(_queued, tx.session.scalars(_WAITING)))


def _queued(job: JobRow) -> _Queued:
    spec, limits = spec_in_force(job), limits_in_force(job)
    one_type = not spec.places_layers and not any(cut.servers for cut in limits.cuts)
    unit = spec.work.scale_invariant
    return _Queued(job.id, job.submitted_at, spec.priority, spec.queue, spec.entry_point, limits, one_type, unit)


def _planned(tx: Tx) -> dict[str, _Planned]:
    return {
        job_id: _Planned(counts, tuple(from_json(Preemptor, one) for one in preempted_by or ()))
        for job_id, counts, preempted_by in tx.session.execute(_TARGETS)
    }


def _no_estimate(job: _Queued, slots: _SlotsHeld, limited: Collection[str]) -> str:
    """Why no start is estimated for the job; "" where one may be."""
    if max((slots.capacity[kind] for kind in slots.types_of(job.limits)), default=0) < job.limits.min_slots:
        return "the pool has too few slots"
    if job.queue in limited:
        return f"queue {job.queue} has a limit of slots"
    return "" if job.of_one_type else "it may need slots of several types at once"


def _starts(tx: Tx, queue: Sequence[_Queued], slots: _SlotsHeld, planned: Mapping[str, _Planned]) -> dict[str, float]:
    """As if all had what the plan in force has for them: then its forecasts of their ends hold."""
    granted = {job_id: one.counts for job_id, one in planned.items() if any(one.counts.values())}
    forecasts = forecast_rows.latest(tx, {*granted, *(job.job_id for job in queue)})
    free = dict(slots.capacity)
    for counts in granted.values():
        for kind, count in counts.items():
            free[kind] = max(free.get(kind, 0) - count, 0)
    ends = {job_id: _end(forecasts.get(job_id), tx.now) for job_id in granted}
    releases = [
        SlotsFreed(at, kind, count)
        for job_id, at in ends.items()
        if at is not None
        for kind, count in granted[job_id].items()
        if count
    ]
    known = best_known(tx, {job.job_id: (job.task, job.limits, job.scale_invariant) for job in queue})
    waiting = [
        WaitingJob(job.job_id, job.limits.min_slots, slots.types_of(job.limits), _seconds(job, forecasts, known))
        for job in queue
        if job.job_id not in granted
    ]
    at_once = {job.job_id: tx.now for job in queue if job.job_id in granted}
    return {**at_once, **estimated_starts(tx.now, free, releases, waiting)}


def _end(forecast: Forecast | None, now: float) -> float | None:
    """The median, or the high end once that has passed; None once both have, or where neither is known."""
    if forecast is None or forecast.finish_on_slots is None:
        return None
    return next((at for at in forecast.finish_on_slots[1:] if at > now), None)


def _seconds(job: _Queued, forecasts: Mapping[str, Forecast], known: Mapping[str, BestKnown]) -> float | None:
    """That the job trains once it starts, at the best speed that is known of it or its task."""
    forecast, speed = forecasts.get(job.job_id), known.get(job.job_id)
    return None if forecast is None or speed is None else speed.seconds(forecast.work_left[1])
