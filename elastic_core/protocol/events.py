"""The ledger's outbox: what happened, in an order that a reader can follow with one number.

Written in the same transaction as what it tells. `track` follows it, so that the ledger is the spool when
MLflow is away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

MLFLOW_READER, TRACES_READER = "mlflow", "traces"
SWEPT = "swept"  # why a checkpoint is retired whose bytes are gone from the store


class EventKind(StrEnum):
    """In parentheses: the keys of the payload, besides `segment_id` and `epoch` where there is a segment."""

    JOB_SUBMITTED = "job_submitted"  # (spec, facts, total_samples)
    SEGMENT_GRANTED = "segment_granted"  # (index, lineage, attempt, allocation, reason, handed_over, start_step)
    OBSERVED = "observed"  # (observations: list of Observation)
    # (checkpoint: CheckpointRecord, previous_step, timings); previous_step: the furthest that the lineage had committed
    # before, also by a checkpoint found corrupt since, so that a step counts for the first epoch that committed it
    COMMITTED = "committed"
    SEGMENT_ENDED = "segment_ended"  # (state, reason, error): an attempt is over; the epoch says which
    JOB_ENDED = "job_ended"  # (state, error, lineage)
    RESULTS = "results"  # (results, lineage)
    EXCHANGE_FELL_BACK = "exchange_fell_back"  # (fallback: ExchangeFallback): a job goes on by the exact sum
    NOTE = "note"  # (text): what the job's user should know
    POLICY_CHANGED = "policy_changed"  # (policy, before): of the pool, so its job_id is empty
    CHECKPOINTS_RETIRED = "checkpoints_retired"  # (uris, why): `SWEPT`, or found corrupt


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    position: int  # strictly increasing for a reader that goes on from the last one it saw; nothing appears behind it
    at: float
    kind: EventKind
    job_id: str
    segment_id: str | None
    epoch: int | None
    payload: Mapping[str, Any]


class Feed(Protocol):
    def events(self, after: int, limit: int = 500, segment_id: str | None = None) -> Sequence[Event]:
        """Events behind position `after`, in order; with `segment_id`, only those of that segment. At most `limit`, and
        fewer where they are large; none only where there is none."""

    def position(self, reader: str) -> int:
        """The last position that this reader has acknowledged, 0 for a new one."""

    def acknowledge(self, reader: str, position: int) -> None: ...
