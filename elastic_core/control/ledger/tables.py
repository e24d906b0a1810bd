"""The ledger's tables for SQLAlchemy. The DDL itself, with the invariants, is in `migrations/versions`.

Instants are Unix seconds. Frozen domain objects are stored as JSON (`domain.to_json`); what is asked for in SQL
has a column. A test compares these classes with the migrated database.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Double, ForeignKey, Identity, Index, MetaData, Text, UniqueConstraint, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from elastic_core.control.believable import Believed
from elastic_core.domain import EXACT
from elastic_core.domain.number_ranges import COUNT, GAIN

Json = dict[str, Any]
_REGISTERED = text("(results ->> 'registered_model')"), text("(results ->> 'registered_version')")
_OPEN = text("state IN ('created', 'waiting', 'granted', 'running')")
KEPT = "last plan"  # where a policy's name stands in the record of a decision that kept the plan before it


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={"uq": "uq_%(table_name)s_%(column_0_N_name)s", "ix": "ix_%(table_name)s_%(column_0_N_name)s"}
    )
    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy's own way
        str: Text,
        float: Double,
        Json: JSONB,
        list[str]: JSONB,
        list[int]: JSONB,
    }


def _big(*args: Any, **kwargs: Any) -> Any:
    return mapped_column(BigInteger, *args, **kwargs)


class JobRow(Base):
    __tablename__ = "jobs"
    __table_args__ = (
        Index("ix_jobs_active", "submitted_at", postgresql_where=text("state = 'active'")),
        Index("ix_jobs_registered_versions", text("(results -> 'registered_versions')"), postgresql_using="gin"),
        Index("ix_jobs_registered_model", *_REGISTERED),
        Index("ix_jobs_finished_at", "finished_at"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    spec: Mapped[Json]
    facts: Mapped[Json]
    state: Mapped[str]
    lineage: Mapped[int] = mapped_column(default=0)
    head_id: Mapped[int | None] = _big(ForeignKey("checkpoints.id", name="fk_jobs_head_id", use_alter=True))
    total_samples: Mapped[int] = _big()
    submitted_at: Mapped[float]
    finished_at: Mapped[float | None]
    warm_start: Mapped[str | None]
    submitted_by: Mapped[str | None]
    error: Mapped[str | None]
    notes: Mapped[list[str]] = mapped_column(default=list)
    results: Mapped[Json] = mapped_column(default=dict)
    exchange_fallback: Mapped[Json | None] = mapped_column(JSONB(none_as_null=True))  # an `ExchangeFallback`
    paused: Mapped[Json | None] = mapped_column(JSONB(none_as_null=True))  # a `Pause`
    changes: Mapped[Json | None] = mapped_column(JSONB(none_as_null=True))  # a `JobChanges`
    hindsight: Mapped[list[Json] | None] = mapped_column(JSONB(none_as_null=True))  # grades of its forecasts, once over


class SegmentRow(Base):
    __tablename__ = "segments"
    __table_args__ = (
        UniqueConstraint("job_id", "index"),
        Index("uq_segments_open", "job_id", unique=True, postgresql_where=_OPEN),
        Index("ix_segments_exchange", "job_id", "index", postgresql_where=text("exchange IS NOT NULL")),
        Index("ix_segments_ended_at", "ended_at"),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    index: Mapped[int]
    lineage: Mapped[int]
    state: Mapped[str]
    attempt: Mapped[int] = mapped_column(default=0)
    failures: Mapped[int] = mapped_column(default=0)
    epoch: Mapped[int | None] = _big()
    follows: Mapped[str | None]
    start_step: Mapped[int] = _big()
    end_step: Mapped[int | None] = _big()
    end_checkpoint_id: Mapped[int | None] = _big()
    created_at: Mapped[float]
    asked_at: Mapped[float | None]
    granted_at: Mapped[float | None]
    started_at: Mapped[float | None]
    ended_at: Mapped[float | None]
    handed_over: Mapped[bool] = mapped_column(default=False)
    revoked_at: Mapped[float | None]
    revoked_by: Mapped[str | None]
    revoke_reason: Mapped[str | None]
    end_reason: Mapped[str | None]
    grant_reason: Mapped[str | None]
    error: Mapped[str | None]
    exchange: Mapped[Json | None] = mapped_column(JSONB(none_as_null=True))  # an `ExchangeChoice` made in it


class NodeRow(Base):
    __tablename__ = "nodes"

    name: Mapped[str] = mapped_column(primary_key=True)
    type: Mapped[str]
    num_slots: Mapped[int]
    price_per_slot_hour: Mapped[float]
    present: Mapped[bool]
    set_aside_at: Mapped[float | None]
    set_aside_by: Mapped[str | None]
    set_aside_reason: Mapped[str | None]
    leaves_at: Mapped[float | None]  # of one that is set aside: until when it is there
    trusted_since: Mapped[float | None]  # taken back: what happened before counts no more


class QueueRow(Base):
    __tablename__ = "queues"

    name: Mapped[str] = mapped_column(primary_key=True)
    guaranteed: Mapped[Json]
    rules: Mapped[Json] = mapped_column(default=dict)  # the other fields of `QueueSpec`, where they are given


class SlotRow(Base):
    __tablename__ = "slots"
    __table_args__ = (
        UniqueConstraint("node", "index"),
        Index("ix_slots_free", "node", "index", postgresql_where=text("NOT held")),
    )

    id: Mapped[str] = mapped_column(primary_key=True)
    node: Mapped[str] = mapped_column(ForeignKey("nodes.name"))
    index: Mapped[int]
    held: Mapped[bool] = mapped_column(server_default=text("false"))  # by triggers, as `lease_slots` says


class LeaseRow(Base):
    __tablename__ = "leases"
    __table_args__ = (
        Index("uq_leases_live_segment", "segment_id", unique=True, postgresql_where=text("released_at IS NULL")),
        Index("uq_leases_live_origin", "origin_epoch", unique=True, postgresql_where=text("released_at IS NULL")),
        Index("ix_leases_job_id", "job_id", "epoch"),
        Index("ix_leases_live", "job_id", postgresql_where=text("released_at IS NULL")),
        Index("ix_leases_released_at", "released_at"),
        Index("ix_leases_fenced_at", "fenced_at", postgresql_where=text("fenced_at IS NOT NULL")),
    )

    epoch: Mapped[int] = _big(primary_key=True, autoincrement=False)
    origin_epoch: Mapped[int] = _big()
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    segment_id: Mapped[str] = mapped_column(ForeignKey("segments.id"))
    attempt: Mapped[int]
    allocation: Mapped[Json]
    num_slots: Mapped[int]
    granted_at: Mapped[float]
    expires_at: Mapped[float]
    started_at: Mapped[float | None]
    fenced_at: Mapped[float | None]
    fence_reason: Mapped[str | None]
    released_at: Mapped[float | None]
    release_reason: Mapped[str | None]
    written_at: Mapped[float | None]


class LeaseSlotRow(Base):
    __tablename__ = "lease_slots"
    __table_args__ = (Index("uq_lease_slots_held", "slot", unique=True, postgresql_where=text("released_at IS NULL")),)

    epoch: Mapped[int] = _big(ForeignKey("leases.epoch"), primary_key=True, autoincrement=False)
    slot: Mapped[str] = mapped_column(ForeignKey("slots.id"), primary_key=True)
    released_at: Mapped[float | None]


class HeldSecondsRow(Base):
    __tablename__ = "held_seconds"  # of slots that are free again: by triggers, as `lease_slots` says

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    node: Mapped[str] = mapped_column(ForeignKey("nodes.name"), primary_key=True)
    seconds: Mapped[float]


class LeaseSumsRow(Base):
    __tablename__ = "lease_sums"  # what a job's leases up to one of them come to (`profiles.sum_up_leases`)

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    up_to_epoch: Mapped[int] = _big()
    slot_seconds: Mapped[float]
    num_resizes: Mapped[int] = _big()
    last_resize_at: Mapped[float | None]
    allocated_since: Mapped[float | None]
    num_moves: Mapped[int] = _big()
    move_seconds: Mapped[float]
    num_in_place: Mapped[int] = _big()
    in_place_seconds: Mapped[float]
    num_restarts: Mapped[int] = _big()
    restart_seconds: Mapped[float]
    num_starts: Mapped[int] = _big()
    start_seconds: Mapped[float]


class HeartbeatRow(Base):
    __tablename__ = "heartbeats"

    epoch: Mapped[int] = _big(ForeignKey("leases.epoch"), primary_key=True, autoincrement=False)
    step: Mapped[int] = _big()
    samples: Mapped[int] = _big()
    sent_at: Mapped[float]
    received_at: Mapped[float]
    host: Mapped[str]
    pids: Mapped[list[int]]
    progress: Mapped[float | None] = mapped_column(Believed(COUNT))  # at the base batch; NULL: samples are the measure
    gain: Mapped[float | None] = mapped_column(Believed(GAIN))


class TargetRow(Base):
    __tablename__ = "targets"

    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"), primary_key=True)
    target: Mapped[Json]
    decision_id: Mapped[int] = _big()
    waits: Mapped[str | None]


class ForecastRow(Base):
    __tablename__ = "forecasts"
    __table_args__ = (Index("ix_forecasts_job_id", "job_id", "id"),)

    id: Mapped[int] = _big(Identity(always=True), primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    forecast: Mapped[Json]


class ObservationRow(Base):
    __tablename__ = "observations"
    __table_args__ = (UniqueConstraint("epoch", "step"), Index("ix_observations_job_id", "job_id", "id"))

    id: Mapped[int] = _big(Identity(always=True), primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    segment_id: Mapped[str]
    epoch: Mapped[int] = _big(ForeignKey("leases.epoch"))
    lineage: Mapped[int]
    step: Mapped[int] = _big()
    samples: Mapped[int] = _big()
    at: Mapped[float]
    passes: Mapped[float]
    num_slots: Mapped[int]
    num_nodes: Mapped[int]
    type: Mapped[str]
    global_batch: Mapped[int]
    local_batch: Mapped[int]
    accumulation: Mapped[int]
    step_seconds: Mapped[float]
    sync_seconds: Mapped[float]
    samples_per_second: Mapped[float]
    loss: Mapped[float]
    learning_rate: Mapped[float]
    grad_sqr: Mapped[float | None]
    grad_var: Mapped[float | None]
    memory_bytes: Mapped[int] = _big()
    metrics: Mapped[Json]
    layout: Mapped[Json | None] = mapped_column(JSONB(none_as_null=True))  # NULL: data-parallel replicas
    progress: Mapped[float | None] = mapped_column(Believed(COUNT))  # at the base batch; NULL: samples are the measure
    gain: Mapped[float | None] = mapped_column(Believed(GAIN))
    comm: Mapped[str] = mapped_column(server_default=EXACT)  # communication algorithm


class CheckpointRow(Base):
    __tablename__ = "checkpoints"
    __table_args__ = (
        UniqueConstraint("job_id", "uri"),
        Index("ix_checkpoints_lineage", "job_id", "lineage", "step"),
        Index("ix_checkpoints_epoch", "epoch"),
        Index("ix_checkpoints_usable", "job_id", "lineage", postgresql_where=text("NOT bad AND swept_at IS NULL")),
    )

    id: Mapped[int] = _big(Identity(always=True), primary_key=True)
    job_id: Mapped[str] = mapped_column(ForeignKey("jobs.id"))
    lineage: Mapped[int]
    step: Mapped[int] = _big()
    samples: Mapped[int] = _big()
    epoch: Mapped[int] = _big(ForeignKey("leases.epoch"))
    segment_id: Mapped[str] = mapped_column(ForeignKey("segments.id"))
    previous_id: Mapped[int | None] = _big(ForeignKey("checkpoints.id"))
    uri: Mapped[str]
    manifest_sha256: Mapped[str]
    size_bytes: Mapped[int] = _big()
    layout: Mapped[Json]
    metrics: Mapped[Json]
    fingerprints: Mapped[Json] = mapped_column(deferred=True)  # megabytes, of many ranks; only proofs want them
    timings: Mapped[Json] = mapped_column(deferred=True)  # statements in SQL read them
    committed_at: Mapped[float]
    final: Mapped[bool]
    bad: Mapped[bool] = mapped_column(default=False)
    bad_reason: Mapped[str | None]
    swept_at: Mapped[float | None]
    progress: Mapped[float | None] = mapped_column(Believed(COUNT))  # at the base batch; NULL: samples are the measure
    gain: Mapped[float | None] = mapped_column(Believed(GAIN))


class ImportedRunRow(Base):
    __tablename__ = "imported_runs"  # of another installation, or of MLflow: learnt from beside the jobs of this ledger
    __table_args__ = (Index("ix_imported_runs_finished_at", "finished_at"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    finished_at: Mapped[float]
    imported_at: Mapped[float]
    run: Mapped[Json]


class DecisionRow(Base):
    __tablename__ = "decisions"

    id: Mapped[int] = _big(Identity(always=True), primary_key=True)
    version: Mapped[int] = _big(unique=True)
    at: Mapped[float]
    trigger: Mapped[str]
    policy: Mapped[str]
    wanted: Mapped[str]
    failure: Mapped[str | None]
    seconds: Mapped[float]
    snapshot: Mapped[Json] = mapped_column(deferred=True)  # the inputs: half a megabyte with a hundred jobs
    plan: Mapped[Json]
    actions: Mapped[list[str]]


class AuditRow(Base):
    """What a user, a DAG or the operator did, or was refused. `job_id` may name no job of the ledger."""

    __tablename__ = "audit_records"
    __table_args__ = (
        Index("ix_audit_records_job_id", "job_id", "id"),
        Index("ix_audit_records_actor", "actor", "id"),
        Index("ix_audit_records_at", "at"),
    )

    id: Mapped[int] = _big(Identity(always=True), primary_key=True)
    at: Mapped[float]
    actor: Mapped[str]
    way: Mapped[str]
    action: Mapped[str]
    job_id: Mapped[str | None]
    subject: Mapped[str]
    queue: Mapped[str | None]
    done: Mapped[bool]  # False: refused
    detail: Mapped[str]


class EventRow(Base):
    __tablename__ = "events"
    __table_args__ = (
        Index("uq_events_position", "position", unique=True),
        Index("ix_events_unplaced", "id", postgresql_where=text("position IS NULL")),
        Index("ix_events_segment", "segment_id", "position"),
    )

    id: Mapped[int] = _big(Identity(always=True), primary_key=True)
    position: Mapped[int | None] = _big()
    at: Mapped[float]
    kind: Mapped[str]
    job_id: Mapped[str]
    segment_id: Mapped[str | None]
    epoch: Mapped[int | None] = _big()
    payload: Mapped[Json]


class ReaderRow(Base):
    __tablename__ = "readers"

    name: Mapped[str] = mapped_column(primary_key=True)
    position: Mapped[int] = _big()


class SchedulingRow(Base):
    """One row. Its lock orders everything that changes who holds or wants slots."""

    __tablename__ = "scheduling"

    id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    version: Mapped[int] = _big()
    decided_version: Mapped[int] = _big()
    trigger: Mapped[str]
    policy: Mapped[str]
    policy_state: Mapped[Json] = mapped_column(deferred=True)  # it may be large, and only decisions want it
    wake_at: Mapped[float | None]
    chosen_policy: Mapped[str | None]  # by an operator; NULL: the configured one decides

    @property
    def is_undecided(self) -> bool:
        return self.version != self.decided_version

    def is_due(self, now: float) -> bool:
        """Whether the plan's own next time has come, or a crash left an event undecided."""
        return self.is_undecided or (self.wake_at is not None and self.wake_at <= now)
