"""What jobs reported of themselves, and what was fitted to it or is forecast from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import Field

from elastic_core.domain.exchange_costs import ExchangeNeeds
from elastic_core.domain.number_ranges import (
    COUNT,
    GAIN,
    INSTANT,
    OF_THE_MODEL,
    SECONDS,
    SOME,
    STEP_SECONDS_OR_NONE,
)
from elastic_core.domain.placed import Stages
from elastic_core.domain.resources import EXACT, Layout, Roles

Quantiles = tuple[float, float, float]  # low, median, high of what is forecast: its 0.1, 0.5 and 0.9 quantiles


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeFigures:
    """A communication algorithm that was weighed against others: of a step, seconds and bytes that a rank sends.

    None: not predicted, or not tried. `bucket_bytes`: of gradients that are exchanged at once, where sizes were
    tried, `size_trials` of them besides DDP's.
    """

    algorithm: str
    predicted_seconds: float | None = None
    predicted_bytes: float | None = None
    measured_seconds: float | None = None
    measured_bytes: float | None = None
    bucket_bytes: int | None = None
    size_trials: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeChoice:
    """What was chosen on so many slots, and from what: the fastest first, untried ones as fast as predicted."""

    algorithm: str
    num_slots: int
    figures: tuple[ExchangeFigures, ...]
    # What exchanges cost the job, for decisions about other slots.
    needs: Annotated[ExchangeNeeds | None, Field(exclude_if=lambda needs: needs is None)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What a segment measured over the steps since its last report. `step`, `samples` are the job's, not its own."""

    step: int
    samples: int  # samples of the job's work done, cumulative
    at: Annotated[float, INSTANT]
    epoch: float  # passes over the data set, e.g. 1.25
    num_slots: Annotated[int, SOME]
    num_nodes: Annotated[int, SOME]
    type: str
    global_batch: Annotated[int, SOME]
    local_batch: Annotated[int, SOME]
    accumulation: Annotated[int, SOME]
    # 0.0 where it is not known: weights are averaged at an interval, and none is over yet.
    step_seconds: Annotated[float, STEP_SECONDS_OR_NONE]
    sync_seconds: Annotated[float, SECONDS]
    samples_per_second: float
    loss: Annotated[float, OF_THE_MODEL]
    learning_rate: Annotated[float, OF_THE_MODEL]
    grad_sqr: Annotated[float, OF_THE_MODEL] | None = None  # estimate of |E g|^2
    grad_var: Annotated[float, OF_THE_MODEL] | None = None  # estimate of tr(cov g) for one sample
    memory_bytes: int = 0
    metrics: Mapping[str, Annotated[float, OF_THE_MODEL]] = field(default_factory=dict)
    layout: Layout | None = None  # None: data-parallel replicas, one a slot
    # The job's work done in samples at its base batch, where that is its measure.
    progress: Annotated[float, COUNT] | None = None
    gain: Annotated[float, GAIN] | None = None  # then: base-batch steps that the last step counted for
    comm: str = EXACT  # communication algorithm in force
    stages: Stages = ()  # of a placed job: those it was measured under; `num_slots` is of all, `type` the first one's
    exchanges: tuple[ExchangeFigures, ...] = ()  # why it is, where it was chosen by measurement: with the first report
    exchange_needs: ExchangeNeeds | None = None  # then: of those that it may have

    @property
    def choice(self) -> ExchangeChoice | None:
        """Of the algorithm in force, if this is the first report after it was chosen by measurement."""
        if not self.exchanges:
            return None
        return ExchangeChoice(
            algorithm=self.comm, num_slots=self.num_slots, figures=self.exchanges, needs=self.exchange_needs
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePoint:
    """Observations of one job under one configuration: `count` reports, as fast as a quarter of them."""

    num_slots: int
    num_nodes: int
    type: str
    global_batch: int
    local_batch: int  # samples of one micro-batch on one slot
    accumulation: int
    step_seconds: float
    sync_seconds: float  # part of step_seconds that the exchange of gradients took beyond what it hid behind
    count: int
    roles: Roles = ()  # of a job over parameter servers, whose slots here are its GPUs
    server_cores: float = 0.0  # of each of its servers
    layout: Layout | None = None  # None: data-parallel replicas, one a slot
    comm: str = EXACT  # communication algorithm


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedSpeed:
    """What a placed job measured under some stages: `count` reports, as fast as a quarter of them."""

    stages: Stages
    samples_per_second: float
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ThroughputModel:
    """Fitted parameters of one job's step time (see `predict.speed.throughput`); `source` is "fitted" or "prior"."""

    params: Mapping[str, float]
    source: str
    num_points: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkForecast:
    """Quantiles of the whole work of a job whose end is not known, in the unit of its work."""

    probabilities: tuple[float, ...]  # ascending, inside (0, 1)
    totals: tuple[float, ...]  # the quantile at each, ascending
    source: str  # what it was made from: "loss curve", "submission", "history" or "prior"
    # How much it counts beside what finished jobs took, for a job of this class, where that was learnt.
    weight: Annotated[float | None, Field(ge=0.0, le=1.0, exclude_if=lambda weight: weight is None)] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkLeft:
    """What a job whose end is not known has yet to do, in the unit of its work, as a decision weighs it."""

    quantiles: Quantiles
    source: str  # what it is read off: `WorkForecast.source`, or which history


@dataclass(frozen=True, slots=True, kw_only=True)
class StepForecast:
    """Quantiles of the seconds of a step on ONE slot, by type, at the job's base batch: before it was measured."""

    probabilities: tuple[float, ...]  # ascending, inside (0, 1)
    seconds: Mapping[str, tuple[float, ...]]  # by type, the quantile at each, ascending
