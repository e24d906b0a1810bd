"""Forecasts of jobs as they are stored, and how they turned out: frozen records, as every caller gets them.

Two things are forecast and kept apart. The *work left* belongs to the job: what else runs does not change it. The
*finish time* depends on what the pool does next, so that it says what it assumes. Both are 80 % intervals around a
median. `predict.work.graded` grades them in hindsight.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from elastic_core.domain import Quantiles

DECLARED = "declared"  # `Forecast.work_source` of work that its user has declared: there is nothing to forecast


class Assumption(StrEnum):
    """What a finish time takes for granted. The values are stored."""

    KEEPS_SLOTS = "keeps slots"
    WAITS_ITS_TURN = "waits its turn"

    @property
    def words(self) -> str:
        return _WORDS[self]


_WORDS = {
    Assumption.KEEPS_SLOTS: "if it gets these slots now and keeps them, and nobody else arrives",
    Assumption.WAITS_ITS_TURN: (
        "if it starts on its fewest slots once those before it in the queue are done, and nobody else arrives"
    ),
}


class Quantity(StrEnum):
    """What is forecast. The values are stored."""

    WORK = "work"  # the work left, in the unit of the job's work
    FINISH = "finish"  # the time until the end, seconds, of a job that has slots
    FINISH_FROM_QUEUE = "finish from queue"  # the same of one that waits for slots

    @property
    def words(self) -> str:
        return _NAMES[self]


_NAMES = {
    Quantity.WORK: "work left",
    Quantity.FINISH: "time to the end",
    Quantity.FINISH_FROM_QUEUE: "time to the end, from the queue",
}


def median_left(interval: Quantiles, at: float) -> float:
    """How far the median of an end is from `at`; past it, the median of the ends that may still come; 0 past them all.

    Between the median and the high end of the 80 % interval, 0.4 of all ends are taken to lie evenly.
    """
    _, median, high = interval
    if at < median:
        return median - at
    if at >= high:
        return 0.0
    passed = (at - median) / (high - median)
    gone = 0.5 + 0.4 * passed
    of_the_rest = ((1.0 + gone) / 2.0 - 0.5) / 0.4  # by the same line
    return (min(of_the_rest, 1.0) - passed) * (high - median)


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What a decision expected of one job. `done` and `work_left` are in the unit of the job's work."""

    at: float  # Unix seconds of the decision
    lineage: int
    done: float
    work_left: Quantiles
    work_source: str  # `DECLARED`, `WorkLeft.source`, or `WorkForecast.source`
    finish_at: Quantiles | None  # Unix seconds; None where its speed was not known yet, or when it starts
    assumes: Assumption | None  # of the finish time
    finish_source: str  # whose finish time it is: the policy's name, or "throughput model"; "" for none
    policy: str
    decision_id: int
    work_decided: bool = False  # whether it was decided by `work_left`; else that is declared, or the raw forecast

    @property
    def finish_on_slots(self) -> Quantiles | None:
        """`finish_at` of a job that was to have slots; None of one that waits."""
        return self.finish_at if self.assumes is Assumption.KEEPS_SLOTS else None

    @property
    def seconds_on_slots(self) -> float | None:
        """Median of the time until then."""
        return None if self.finish_on_slots is None else self.finish_on_slots[1] - self.at

    @property
    def work_basis(self) -> str:
        """In words: what the work left is read off, and whether the decision rests on it."""
        if self.work_source == DECLARED:
            return "as declared"
        return f"by {self.work_source}" if self.work_decided else f"by {self.work_source}, on which no decision rests"

    def work_left_at(self, done: float) -> Quantiles:
        """What is left of the same totals once so much is done."""
        low, median, high = (max(self.done + left - done, 0.0) for left in self.work_left)
        return low, median, high


@dataclass(frozen=True, slots=True, kw_only=True)
class Grade:
    """How one forecast turned out. `error` and `held` are None where the job was stopped before that could be known."""

    quantity: Quantity
    stage: float  # part of the job's work that was to be done when it was made: 0 is submission
    made_at: float  # part of it that was done
    error: float | None  # of the median, relative to what was really left: 0.1 is a tenth too much, -0.1 too little
    held: bool | None  # whether the interval held what came
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSummary:
    """How the forecasts of one quantity at one stage turned out, over all jobs."""

    quantity: Quantity
    stage: float
    number: int  # forecasts whose interval could be judged
    held: int  # of them
    median_error: float | None  # of the absolute errors; None where none is known
    coverage: float | None  # held / number
    coverage_low: float | None  # Wilson's 95 % interval of the coverage
    coverage_high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ForecastReport:
    """How this installation's forecasts turned out: of the jobs that ended last, `declared` of whose works were known
    beforehand and are in no row of `Quantity.WORK`."""

    jobs: int  # that have ended, with forecasts
    declared: int
    stages: tuple[StageSummary, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutlook:
    """Seconds of a step on so many slots of a type, forecast from jobs of any task: 80 % lie between low and high."""

    type: str
    num_slots: int
    num_nodes: int  # the fewest that have so many
    global_batch: int
    seconds: Quantiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """What this installation's jobs say of one that is not submitted yet."""

    work: Quantiles | None = None  # all its work, in its unit; None where it is declared, or nothing is forecast
    work_source: str = DECLARED  # as `Forecast.work_source`
    work_decided: bool = False  # as `Forecast.work_decided`, by the policy in force
    steps: tuple[StepOutlook, ...] = ()  # none where too few jobs were measured to learn from
