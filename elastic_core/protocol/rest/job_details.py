"""One job in depth, as the REST API answers it: its reports, what its moves cost, how fast it would be elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from elastic_core.domain import EXACT, Layout, Quantiles
from elastic_core.protocol.records import CheckpointRecord, SegmentStatus

MOST_REPORTS = 5000  # of an answer
MOST_LISTED = 500  # of a page


@dataclass(frozen=True, slots=True)
class Part:
    """Of a list of a job's: so many from there on. `descending`: of the same list from its end."""

    descending: bool = False
    offset: int = 0
    limit: int = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentPage:
    """`total`: of all segments of the job, on whichever page."""

    total: int
    offset: int
    segments: tuple[SegmentStatus, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPage:
    """`total`: of all its checkpoints that still exist, on whichever page."""

    total: int
    offset: int
    checkpoints: tuple[CheckpointRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """What a segment measured over the steps since its last report. `step` and `samples` are the job's."""

    lineage: int  # one below the job's was left by a rollback
    segment_id: str
    step: int
    samples: int  # read so far, over all passes
    at: float
    num_slots: int
    num_nodes: int
    type: str
    global_batch: int
    samples_per_second: float
    loss: float
    learning_rate: float
    metrics: Mapping[str, float] = field(default_factory=dict)  # that the task has logged
    layout: Layout | None = None  # None: data-parallel replicas
    comm: str = EXACT
    progress: float | None = None  # work done in samples at the base batch, where that is the job's measure


@dataclass(frozen=True, slots=True, kw_only=True)
class JobMoves:
    """What starting and resizing a job has cost, over all its lineages."""

    num_resizes: int  # changes of its slots, and restarts
    slot_seconds: float  # that it has held slots for
    restores: int  # of its state, that checkpoints tell of
    restore_seconds: float  # that these took in all
    moved: Mapping[str, int]  # bytes that all ranks together took, by where these came from (`..._bytes` of a restore)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedSpeed:
    """Samples a second as the model of the job's steps says: 0.1, 0.5 and 0.9 quantiles."""

    num_slots: int
    num_nodes: int  # the fewest that have so many slots of the type
    global_batch: int
    layout: Layout
    samples_per_second: Quantiles
    exchange: str = ""  # that it is predicted by, where the job has yet to try one; "": by what it kept elsewhere


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeCurve:
    """Of one type of slot; one entry for each number of slots that the job may hold of it, or evenly spread ones."""

    type: str
    speeds: tuple[PredictedSpeed, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredSpeed:
    """`reports` of one configuration, as fast as a quarter of them. `predicted`: the model's median for it."""

    types: str  # e.g. "h200", or "2 h200, 4 cpu" of a placed job
    num_slots: int
    num_nodes: int | None  # None where it is not told apart, like what follows
    global_batch: int | None
    samples_per_second: float
    reports: int
    layout: Layout | None = None
    comm: str = EXACT
    predicted: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingCurve:
    """How fast the job was measured to be, and how fast its model says that it would be on other slots.

    There are no predictions before anything was measured, whose scale nobody knows, nor of a placed job.
    """

    global_batch: int  # that predictions are for: of its slots, or of the last ones; larger where slots are too many
    source: str  # of the model: "fitted", "prior" (one configuration was measured), or "none"
    measured: tuple[MeasuredSpeed, ...]
    curves: tuple[TypeCurve, ...]
