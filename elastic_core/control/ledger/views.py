"""Rows of the ledger as the contract's frozen records. A fixed number of queries, however many jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import ceil, inf, isfinite

from sqlalchemy import BindParameter, Text, bindparam, func, select, text, true
from sqlalchemy.dialects.postgresql import ARRAY, distinct_on
from sqlalchemy.orm import aliased

from elastic_core.control.ledger import forecast_rows
from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.leases import allocation
from elastic_core.control.ledger.money import slot_prices, spent
from elastic_core.control.ledger.profiles import BestKnown, best_known
from elastic_core.control.ledger.tables import (
    CheckpointRow,
    HeartbeatRow,
    JobRow,
    LeaseRow,
    SegmentRow,
    TargetRow,
)
from elastic_core.domain import (
    Allocation,
    ExchangeChoice,
    ExchangeFallback,
    JobState,
    Layout,
    Limits,
    SegmentState,
    Target,
    from_json,
)
from elastic_core.protocol.encoding import dumps, loads
from elastic_core.protocol.forecasts import Forecast, median_left
from elastic_core.protocol.records import CheckpointRecord, JobFacts, JobStatus, Pause, SegmentStatus
from elastic_core.spec import JobSpec
from elastic_core.spec.job import most_samples
from elastic_core.spec.job_changes import AS_SUBMITTED, JobChanges


def checkpoint_record(row: CheckpointRow) -> CheckpointRecord:
    return CheckpointRecord(
        checkpoint_id=row.id,
        job_id=row.job_id,
        lineage=row.lineage,
        step=row.step,
        samples=row.samples,
        epoch=row.epoch,
        segment_id=row.segment_id,
        uri=row.uri,
        manifest_sha256=row.manifest_sha256,
        size_bytes=row.size_bytes,
        layout=from_json(Layout, row.layout),
        metrics={name: float(value) for name, value in row.metrics.items()},
        committed_at=row.committed_at,
        final=row.final,
        bad=row.bad,
        progress=row.progress,
        gain=row.gain,
    )


def changes_of(job: JobRow) -> JobChanges:
    return AS_SUBMITTED if job.changes is None else from_json(JobChanges, job.changes)


def pause_of(job: JobRow) -> Pause | None:
    return None if job.paused is None else from_json(Pause, job.paused)


def spec_in_force(job: JobRow) -> JobSpec:
    """The job's spec with what was set since."""
    return _spec(dumps(job.spec), dumps(job.changes))


def spec_of(job: JobRow) -> JobSpec:
    """As it was submitted."""
    return _spec(dumps(job.spec), "null")


def limits_in_force(job: JobRow) -> Limits:
    """Of the spec in force, without the model of a placed job."""
    return _limits(dumps(job.spec), dumps(job.changes))


@lru_cache(maxsize=8192)
def _spec(spec: str, changes: str) -> JobSpec:
    """Of the texts that the ledger keeps: they are read with every decision and every page, and checking one takes a
    millisecond."""
    parsed, changed = from_json(JobSpec, loads(spec)), loads(changes)
    return parsed if changed is None else from_json(JobChanges, changed).applied(parsed)


@lru_cache(maxsize=8192)
def _limits(spec: str, changes: str) -> Limits:
    return _spec(spec, changes).limits()


def segment_status(row: SegmentRow, lease: LeaseRow | None) -> SegmentStatus:
    return SegmentStatus(
        segment_id=row.id,
        job_id=row.job_id,
        index=row.index,
        lineage=row.lineage,
        state=SegmentState(row.state),
        attempt=row.attempt,
        epoch=row.epoch,
        lease_live=lease is not None and lease.released_at is None,
        allocation=allocation(lease) if lease is not None else None,
        start_step=row.start_step,
        end_step=row.end_step,
        created_at=row.created_at,
        asked_at=row.asked_at,
        granted_at=row.granted_at,
        started_at=row.started_at,
        ended_at=row.ended_at,
        released_at=lease.released_at if lease is not None else None,
        handed_over=row.handed_over,
        revoke_reason=row.revoke_reason,
        end_reason=row.end_reason,
        grant_reason=row.grant_reason,
        error=row.error,
    )


def segment_statuses(tx: Tx, rows: Sequence[SegmentRow]) -> list[SegmentStatus]:
    epochs = [row.epoch for row in rows if row.epoch is not None]
    leases = {lease.epoch: lease for lease in tx.among(LeaseRow.epoch, epochs)}
    return [segment_status(row, leases.get(row.epoch) if row.epoch is not None else None) for row in rows]


_RESTORES = text("""
    SELECT wanted.id, told.timings
    FROM unnest(CAST(:jobs AS text[])) AS wanted (id)
    CROSS JOIN LATERAL (
        SELECT timings FROM (
            SELECT timings, lineage, step FROM checkpoints WHERE job_id = wanted.id
            ORDER BY lineage DESC, step DESC LIMIT :recent
        ) AS newest
        WHERE timings ->> 'restore_fetch' IS NOT NULL ORDER BY lineage DESC, step DESC LIMIT 1
    ) AS told
""")
_RECENT = 50  # checkpoints that are looked at: a long job costs no more than a short one


def last_restores(tx: Tx, job_ids: Sequence[str]) -> dict[str, dict[str, float]]:
    """What each job's newest checkpoints tell of its last restore: `restore_...` seconds and bytes."""
    rows = tx.session.execute(_RESTORES, {"jobs": list(job_ids), "recent": _RECENT})
    return {
        job_id: {name: float(value) for name, value in timings.items() if name.startswith("restore")}
        for job_id, timings in rows
    }


def last_exchanges(tx: Tx, job_ids: Sequence[str]) -> dict[str, ExchangeChoice]:
    rows = tx.session.execute(_EXCHANGES, {"jobs": list(job_ids)})
    return {job_id: from_json(ExchangeChoice, chosen) for job_id, chosen in rows}


_JOBS: BindParameter[str] = bindparam("jobs", expanding=True)
_WANTED = func.unnest(bindparam("jobs", type_=ARRAY(Text))).table_valued("id", name="wanted").render_derived()
_LAST_OF_JOB = select(SegmentRow).where(SegmentRow.job_id == _WANTED.c.id).order_by(SegmentRow.index.desc()).limit(1)
_LAST_SEGMENT = aliased(SegmentRow, _LAST_OF_JOB.lateral("last"))  # of each by its index: a long job costs no more
_LAST_SEGMENTS = select(_LAST_SEGMENT).select_from(_WANTED).join(_LAST_SEGMENT, true())
_LIVE_LEASES = (
    select(LeaseRow).where(LeaseRow.job_id.in_(_JOBS), LeaseRow.released_at.is_(None)).order_by(LeaseRow.epoch)
)
_EXCHANGES = (
    select(SegmentRow.job_id, SegmentRow.exchange)
    .where(SegmentRow.job_id.in_(_JOBS), SegmentRow.exchange.is_not(None))
    .ext(distinct_on(SegmentRow.job_id))
    .order_by(SegmentRow.job_id, SegmentRow.index.desc())
)
_SPEEDS = text("""
    SELECT wanted.epoch, percentile_cont(0.5) WITHIN GROUP (ORDER BY o.samples_per_second)
    FROM unnest(CAST(:epochs AS bigint[])) AS wanted (epoch)
    CROSS JOIN LATERAL (
        SELECT samples_per_second FROM observations WHERE epoch = wanted.epoch ORDER BY step DESC LIMIT :latest
    ) AS o
    GROUP BY wanted.epoch
""")
_LATEST_SPEEDS = 100  # reports: a few minutes


def last_segments(tx: Tx, job_ids: Iterable[str]) -> dict[str, SegmentRow]:
    """The open segment of each job, or its last one."""
    return {row.job_id: row for row in tx.session.scalars(_LAST_SEGMENTS, {"jobs": list(job_ids)})}


def live_leases(tx: Tx, job_ids: Iterable[str]) -> dict[str, LeaseRow]:
    """The newest lease of each job that still holds slots."""
    return {lease.job_id: lease for lease in tx.session.scalars(_LIVE_LEASES, {"jobs": list(job_ids)})}


def job_statuses(tx: Tx, jobs: Sequence[JobRow], paid: Mapping[str, float] | None = None) -> list[JobStatus]:
    """`paid`: as `money.spent` says of them, where that is known already."""
    if not jobs:
        return []
    ids = [job.id for job in jobs]
    segments, leases = last_segments(tx, ids), live_leases(tx, ids)
    epochs = [lease.epoch for lease in leases.values()]
    beats = {beat.epoch: beat for beat in tx.among(HeartbeatRow.epoch, epochs)}
    targets = {target.job_id: target for target in tx.among(TargetRow.job_id, ids)}
    heads = tx.among(CheckpointRow.id, [job.head_id for job in jobs if job.head_id is not None])
    checkpoints = {row.id: row for row in heads}
    speeds, forecasts = (
        _speeds(tx, epochs),
        forecast_rows.latest(tx, [j.id for j in jobs if j.state == JobState.ACTIVE]),
    )
    unmeasured = [job for job in jobs if _aims(job) and not (job.id in leases and speeds.get(leases[job.id].epoch))]
    known = best_known(tx, {job.id: _speeds_wanted(job) for job in unmeasured})
    prices = slot_prices(tx)
    paid = spent(tx, ids) if paid is None else paid
    restores, exchanges = last_restores(tx, ids), last_exchanges(tx, ids)
    statuses = []
    for job in jobs:
        lease = leases.get(job.id)
        epoch = lease.epoch if lease is not None and lease.fenced_at is None else -1
        head = checkpoints.get(job.head_id) if job.head_id is not None else None
        statuses.append(
            _job_status(
                job,
                segments[job.id],
                lease,
                head,
                beats.get(epoch),
                targets.get(job.id),
                speeds.get(epoch),
                forecasts.get(job.id),
                paid.get(job.id, 0.0),
                restores.get(job.id, {}),
                exchanges.get(job.id),
                known.get(job.id),
                prices,
                tx.now,
            )
        )
    return statuses


def _aims(job: JobRow) -> bool:
    """An active job that may miss something."""
    return job.state == JobState.ACTIVE and (job.spec.get("deadline") is not None or job.spec.get("budget") is not None)


def _speeds_wanted(job: JobRow) -> tuple[str, Limits, bool]:
    spec = spec_of(job)
    return spec.entry_point, limits_in_force(job), spec.work.scale_invariant


def job_status(tx: Tx, job: JobRow) -> JobStatus:
    return job_statuses(tx, [job])[0]


def _job_status(
    job: JobRow, segment: SegmentRow, lease: LeaseRow | None, head: CheckpointRow | None,
    beat: HeartbeatRow | None, target: TargetRow | None, speed: float | None, forecast: Forecast | None, paid: float,
    restore: Mapping[str, float], exchange: ExchangeChoice | None, known: BestKnown | None,
    prices: Mapping[str, float], now: float,
) -> JobStatus:  # fmt: skip
    # Of the live lease, what is not committed yet is shown, too.
    last = beat if beat is not None and (head is None or beat.step > head.step) else head
    step, samples = (last.step, last.samples) if last is not None else (0, 0)
    spec, held = spec_of(job), allocation(lease) if lease is not None else None
    if forecast is not None and forecast.lineage != job.lineage:
        forecast = None
    done = _work_done(spec, last)
    work_left = _work_left(spec, job.total_samples, done, forecast)
    most_left = max(0, most_samples(spec, job.total_samples) - samples)
    left = _left_to_read(spec, last, held, work_left, most_left)
    active = job.state == JobState.ACTIVE
    seconds_left = _seconds_left(left, speed, forecast, now) if active and lease is not None else None
    aims = _aims(job)
    asked_at_best = aims and seconds_left is None
    rate = sum(prices.get(slot.node, 0.0) for slot in held.slots) if held is not None else 0.0
    pause = pause_of(job) if active else None
    placed = from_json(Target, target.target).placed if target is not None and spec.places_layers else None
    return JobStatus(
        job_id=job.id,
        spec=spec,
        facts=from_json(JobFacts, job.facts),
        state=JobState(job.state),
        lineage=job.lineage,
        total_samples=job.total_samples,
        done_samples=int(done),
        step=step,
        submitted_at=job.submitted_at,
        finished_at=job.finished_at,
        segment_id=segment.id,
        segment_state=SegmentState(segment.state),
        allocation=held,
        target_reason=_why(segment, target, pause) if active else "",
        error=job.error,
        notes=tuple(job.notes),
        samples_read=samples,
        predicted_samples=(samples + left if active else samples) if spec.work.scale_invariant else None,
        gain=last.gain if last is not None else None,
        seconds_left=seconds_left,
        results=job.results,
        spent=paid,
        price_per_hour=rate,
        expected_cost=paid + rate * seconds_left / 3600 if rate and seconds_left is not None else None,
        samples_per_second=speed,
        seconds_at_best=_seconds_at_best(work_left, most_left, done, forecast, known) if asked_at_best else None,
        cost_at_least=_cost_at_least(paid, work_left, most_left, known) if aims else None,
        placed=placed,
        last_restore=restore,
        exchange=exchange,
        exchange_fallback=from_json(ExchangeFallback, job.exchange_fallback) if job.exchange_fallback else None,
        forecast=forecast,
        hindsight=forecast_rows.hindsight(job),
        submitted_by=job.submitted_by,
        epoch=segment.epoch,
        paused=pause,
        changes=changes_of(job),
    )


def _work_done(spec: JobSpec, last: HeartbeatRow | CheckpointRow | None) -> float:
    """In the unit of the job's work."""
    if last is None:
        return 0.0
    return (last.progress or 0.0) if spec.work.scale_invariant else last.samples


def _work_left(spec: JobSpec, total: int, done: float, forecast: Forecast | None) -> float:
    """In the same unit: all that is not done; of a job whose end is not known no more than its last forecast says."""
    left = max(0.0, total - done)
    if forecast is None or spec.work.end_is_known:
        return left
    return min(left, median_left(forecast.work_left, done - forecast.done))


def _left_to_read(
    spec: JobSpec, last: HeartbeatRow | CheckpointRow | None, held: Allocation | None, work_left: float, most: int
) -> int:
    """Samples that the job has yet to read, at `most` so many; one measured by progress, if its batch and its last
    step's gain stay.

    Before the first step, and while it holds no slots, at the base batch.
    """
    if not spec.work.scale_invariant:
        return round(work_left)
    base, gain = spec.batch.base or spec.batch.min, last.gain if last is not None else None
    dearness = held.global_batch / (gain * base) if held is not None and gain else 1.0
    return ceil(min(work_left * dearness, most))


def _seconds_left(left: int, speed: float | None, forecast: Forecast | None, now: float) -> float | None:
    """As the last forecast says; `left` at the measured speed (samples/s) where it names no time, or passed ones."""
    if forecast is not None and forecast.finish_on_slots is not None:
        seconds = median_left(forecast.finish_on_slots, now)
        if 0 < seconds < inf:
            return seconds
    return seconds if speed and isfinite(seconds := left / speed) else None


def _seconds_at_best(
    work_left: float, most: int, done: float, forecast: Forecast | None, known: BestKnown | None
) -> float | None:
    """That a job without a speed of now needs once it trains: as long as its last forecast gave to the same part of the
    work, if that named a time; else as its work, or the samples that it reads at `most`, take at the best speed that is
    known."""
    if forecast is not None and (seconds := forecast.seconds_on_slots) is not None and forecast.work_left[1] > 0:
        return seconds * forecast.work_left_at(done)[1] / forecast.work_left[1]
    return known.seconds(work_left, most) if known is not None else None


def _cost_at_least(paid: float, work_left: float, most: int, known: BestKnown | None) -> float | None:
    return paid + known.money(work_left, most) if known is not None and known.money_per_sample else None


def _why(segment: SegmentRow, target: TargetRow | None, pause: Pause | None) -> str:
    """Why an active job holds, will hold or waits for what it does."""
    if pause is not None:
        holds = segment.state in (SegmentState.GRANTED, SegmentState.RUNNING)
        return f"to be {pause.words}, once it has committed" if holds else pause.words
    if segment.state == SegmentState.CREATED:
        wants = "between two segments: " if segment.follows else "not started: "
        asked = f"{wants}nobody has asked for the slots of {segment.id} yet (its run in Airflow does)"
        return asked if target is None else f"{asked}; {from_json(Target, target.target).reason}"
    if target is None:
        return "waits for the next decision"
    reason = from_json(Target, target.target).reason
    return f"{target.waits}; {reason}" if target.waits else reason


def _speeds(tx: Tx, epochs: Sequence[int]) -> dict[int, float]:
    """Median samples per second of the latest reports of each live lease."""
    if not epochs:
        return {}
    rows = tx.session.execute(_SPEEDS, {"epochs": list(epochs), "latest": _LATEST_SPEEDS})
    return {epoch: float(value) for epoch, value in rows if value and value > 0}
