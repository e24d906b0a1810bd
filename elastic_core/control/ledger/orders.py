"""The launch order of a granted segment: all that its processes need, with their token."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from sqlalchemy import ColumnElement, and_, exists, func, literal, or_, select
from sqlalchemy.dialects.postgresql import JSONB

from elastic_core.control.ledger.database import Tx
from elastic_core.control.ledger.leases import allocation
from elastic_core.control.ledger.lineage import restore_point
from elastic_core.control.ledger.tables import CheckpointRow, JobRow, LeaseRow, ObservationRow, SegmentRow
from elastic_core.control.ledger.views import spec_of
from elastic_core.domain import EXACT, ExactLoss, JobState, from_json
from elastic_core.logs import get_logger
from elastic_core.predict.work.exact_loss import limits
from elastic_core.protocol.process_groups import LaunchOrder, code_of
from elastic_core.protocol.records import JobFacts
from elastic_core.protocol.tokens import TrainerTokens
from elastic_core.spec.parts.job_comm import MOMENTA, STEPS_ALONE


def launch_order(
    tx: Tx, job: JobRow, segment: SegmentRow, lease: LeaseRow, *, tokens: TrainerTokens,
    exact_loss: ExactLoss | None = None,
) -> LaunchOrder:  # fmt: skip
    """Without the agent's token: it may go to the workers themselves. `exact_loss`: as `exact_loss_of` said before."""
    spec, granted = spec_of(job), allocation(lease)
    if job.exchange_fallback is not None:
        spec = spec.model_copy(update={"comm": spec.comm.model_copy(update={"stage_ratio": None})})
    is_exact = granted.comm == EXACT and not spec.comm.shrinks_stages(granted.layout)
    return LaunchOrder(
        segment_id=segment.id,
        job_id=job.id,
        index=segment.index,
        lineage=segment.lineage,
        epoch=lease.epoch,
        origin_epoch=lease.origin_epoch,
        attempt=segment.attempt,
        spec=spec,
        facts=from_json(JobFacts, job.facts),
        allocation=granted,
        total_samples=job.total_samples,
        restore=restore_point(tx, job),
        warm_start=job.warm_start,
        warm_start_sha256=None if job.head_id is not None else _manifest_sha256(tx, job.warm_start),
        segment_seconds=spec.segment.seconds,
        segment_steps=spec.segment.steps,
        token=issue(tokens, lease, tx.now),
        lease_seconds=tx.settings.lease_seconds,
        heartbeat_seconds=tx.settings.heartbeat_seconds,
        grant_reason=segment.grant_reason or "",
        exact_loss=ExactLoss() if is_exact else exact_loss or _exact_loss(tx, job),
        code=code_of(job.results).sha256,
    )


log = get_logger(__name__)
_LOSSES = select(ObservationRow.samples, ObservationRow.loss).order_by(ObservationRow.samples)
_ALONE = and_(ObservationRow.num_slots == 1, ObservationRow.comm.not_in(STEPS_ALONE))  # and exchanges nothing
_EXACT = or_(ObservationRow.comm == EXACT, _ALONE)
_ALIKE = ("entry_point", "params", "batch", "precision")  # in these the specs of two jobs whose losses are compared
_MOST_REPORTS = 2000  # of a run, the last of each cell of equal work


def exact_loss_of(tx: Tx, job_id: str) -> ExactLoss | None:
    """What an order needs to know of a job that may exchange otherwise than exactly, looked up before a lock is taken:
    it is forecast from thousands of reports. None of others."""
    job = tx.job(job_id)
    comm = spec_of(job).comm
    return None if comm.algorithm == EXACT and comm.stage_ratio is None else _exact_loss(tx, job)


def _exact_loss(tx: Tx, job: JobRow) -> ExactLoss:
    """From the newest finished job of the same task and parameters that reported under the exact sum, else from what
    this one reported so; the first that it reported, if nothing can be forecast."""
    own = ObservationRow.job_id == job.id
    first = tx.session.execute(_LOSSES.where(own).limit(1)).first()
    known = first.loss if first is not None and isfinite(first.loss) else None
    alike = [JobRow.spec[key] == literal(job.spec[key], JSONB) for key in _ALIKE]
    reported = exists().where(ObservationRow.job_id == JobRow.id, ObservationRow.comm == EXACT)
    alike.append(JobRow.spec["comm"]["stage_ratio"].astext.is_(None))
    alike.append(
        func.coalesce(JobRow.spec["comm"]["algorithm"].astext, EXACT).not_in(MOMENTA)
    )  # whose warm-up is exact
    finished = select(JobRow.id).where(JobRow.state == JobState.FINISHED, JobRow.id != job.id, *alike, reported)
    other = tx.session.scalar(finished.order_by(JobRow.finished_at.desc()).limit(1))
    exactly = _EXACT if spec_of(job).comm.stage_ratio is None else _ALONE  # reports do not say how stages sent
    of_other = and_(ObservationRow.job_id == other, _EXACT)
    for source, rows in ((f"{other}, under the exact sum", of_other), ("its own steps so", and_(own, exactly))):
        if found := _forecast(_spread(tx, rows), job):
            return ExactLoss(first=known, limits=found, source=source)
    return ExactLoss(first=known)


def _spread(tx: Tx, rows: ColumnElement[bool]) -> list[tuple[int, float]]:
    """(samples, loss) of the reports, evenly over the work: those of long ago are thinned (`retention`)."""
    furthest = tx.session.scalar(select(func.max(ObservationRow.samples)).where(rows))
    if not furthest:
        return []
    cell = func.floor(ObservationRow.samples * (_MOST_REPORTS / furthest))
    last = select(func.max(ObservationRow.id)).where(rows).group_by(cell)
    return [(row.samples, row.loss) for row in tx.session.execute(_LOSSES.where(ObservationRow.id.in_(last)))]


def _forecast(points: Sequence[tuple[float, float]], job: JobRow) -> tuple[tuple[float, float], ...]:
    """() as well where the predictor fails: training goes on."""
    try:
        return limits(points, job.total_samples)
    except Exception:
        log.exception("the loss of an exact run cannot be forecast", job=job.id, points=len(points))
        return ()


def _manifest_sha256(tx: Tx, uri: str | None) -> str | None:
    """None for a checkpoint that no job of this ledger has committed: nobody knows what it should be."""
    if uri is None:
        return None
    of_job = CheckpointRow.job_id == uri.partition("/")[0]
    return tx.session.scalar(select(CheckpointRow.manifest_sha256).where(of_job, CheckpointRow.uri == uri))


def issue(tokens: TrainerTokens, lease: LeaseRow, now: float, *, agent: bool = False) -> str:
    return tokens.issue(
        job_id=lease.job_id,
        segment_id=lease.segment_id,
        epoch=lease.epoch,
        origin_epoch=lease.origin_epoch,
        now=now,
        agent=agent,
    )
