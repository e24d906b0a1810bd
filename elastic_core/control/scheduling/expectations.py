"""What a decision expects of each job: its work left and its finish time, as they are stored with it.

The work left is what the policy decided by, where it weighs any (`Target.work_left`), else `predict.work.work_left`'s
of what is declared or forecast. The finish time is the policy's own (`Target.finish_seconds`, of `horizon` that of a
job that waits as well); where a policy tells none, it is the work left at the speed that the job's fitted model gives
the target, and nobody's before the job was measured. Both are of the plan: they assume that it comes into force now and
stays.

Not every decision's is kept. Stored is the first of a job (and of a lineage), and then one that differs: it has a
finish time or has none any more, or one that assumes something else, its expected total or end moved by more than
`CHANGED`, the job has done so much more, or `STALE_SECONDS` have passed. `control.ledger.forecast_rows` bounds their
number.
"""

from __future__ import annotations

from math import inf

from sqlalchemy import select

from elastic_core.control.ledger import forecast_rows
from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.tables import KEPT, JobRow
from elastic_core.domain import JobView, Plan, Quantiles, Snapshot, Target
from elastic_core.logs import get_logger
from elastic_core.policy.plans.grants import as_held
from elastic_core.predict.speed.efficiency import efficiency
from elastic_core.predict.speed.throughput import StepTime
from elastic_core.predict.work.work_left import finish_seconds, work_left
from elastic_core.protocol.forecasts import Assumption, Forecast

CHANGED = 0.05  # relative
STALE_SECONDS = 60.0
MODEL = "throughput model"
log = get_logger(__name__)


def worth_keeping(tx: Tx, snapshot: Snapshot, plan: Plan, decision_id: int) -> dict[str, Forecast]:
    """What the plan expects of the snapshot's jobs, by job, where that is worth keeping. One whose forecast fails goes
    without."""
    if plan.policy == KEPT:  # what it expected was stored when it was made
        return {}
    ids = [job.job_id for job in snapshot.jobs]
    columns = select(JobRow.id, JobRow.lineage).where(JobRow.id.in_(ids))
    lineages = {job_id: lineage for job_id, lineage in tx.session.execute(columns)}
    before, changed = forecast_rows.latest(tx, ids), {}
    for job in snapshot.jobs:
        try:
            forecast = expected(
                job, plan.targets[job.job_id], snapshot.now, lineage=lineages[job.job_id], policy=plan.policy,
                decision_id=decision_id,
            )  # fmt: skip
        except Exception:
            log.exception("a forecast cannot be made: the job goes on without", job=job.job_id, decision=decision_id)
            continue
        if is_worth_keeping(before.get(job.job_id), forecast):
            changed[job.job_id] = forecast
    return changed


def expected(job: JobView, target: Target, now: float, *, lineage: int, policy: str, decision_id: int) -> Forecast:
    """What the plan expects of the job, by the policy's own figures where it tells any."""
    left, source = work_left(job, target.work_left)
    seconds, finish_source = target.finish_seconds, policy
    if seconds is None and target.num_slots:
        seconds, finish_source = _modelled(job, target, left), MODEL
    return Forecast(
        at=now,
        lineage=lineage,
        done=float(job.done_samples),
        work_left=left,
        work_source=source,
        finish_at=None if seconds is None else (now + seconds[0], now + seconds[1], now + seconds[2]),
        assumes=None if seconds is None else _assumption(target),
        finish_source="" if seconds is None else finish_source,
        policy=policy,
        decision_id=decision_id,
        work_decided=target.work_left is not None,
    )


def _assumption(target: Target) -> Assumption:
    return Assumption.KEEPS_SLOTS if target.num_slots else Assumption.WAITS_ITS_TURN


def _modelled(job: JobView, target: Target, left: Quantiles) -> Quantiles | None:
    """Seconds until the job is done on the target's slots; None before anything was measured of it."""
    if job.throughput is None or not job.throughput.num_points:
        return None
    times, held = StepTime.of(job.throughput, job.limits), job.allocation
    stays = held is not None and as_held(target, held)
    num_nodes = held.num_nodes if held is not None and stays else len(target.nodes or ()) or 1
    batch = target.global_batch
    step = {kind: times.seconds_in(target.layout, num_nodes, kind, batch, job.limits) for kind in target.wanted}
    slowest = max(step, key=lambda kind: step[kind])
    sample_efficiency = efficiency(batch, job.limits.reference_batch, job.noise_scale) if job.scale_invariant else 1.0
    error = times.relative_error(target.num_slots, num_nodes, slowest, batch, job.limits)
    in_place = held is not None and held.counts().keys() == target.wanted.keys()
    measured = job.in_place_seconds if in_place else job.restart_seconds
    pause = 0.0 if stays else job.resize_seconds if measured is None else measured
    most = inf if job.samples_left is None else job.samples_left * sample_efficiency
    low, median, high = (min(work, most) for work in left)
    return finish_seconds(median * step[slowest] / (batch * sample_efficiency), (low, median, high), error, pause)


def is_worth_keeping(before: Forecast | None, now: Forecast) -> bool:
    """Beside the last one that was kept."""
    if before is None or before.lineage != now.lineage or now.at - before.at >= STALE_SECONDS:
        return True
    if before.work_decided != now.work_decided:
        return True
    if before.assumes is not now.assumes or (before.finish_at is None) != (now.finish_at is None):
        return True
    if now.done > (1.0 + CHANGED) * before.done:
        return True
    if _moved(before.done + before.work_left[1], now.done + now.work_left[1], now.done + now.work_left[1]):
        return True
    if before.finish_at is None or now.finish_at is None:
        return False
    return _moved(before.finish_at[1], now.finish_at[1], before.finish_at[1] - before.at)


def _moved(before: float, now: float, of: float) -> bool:
    return abs(now - before) > CHANGED * max(of, 0.0)
