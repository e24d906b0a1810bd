"""When the loss of a job that does not exchange exactly is too high to be that of an exact run, and what came of it.

The margin is stated here: where an exact run's loss is forecast, a job has diverged that has learnt less than half of
what the exact run had by then, its forecast taken at the upper end (`predict.work.exact_loss` draws the line). Where
none is, one whose loss is twice that of its first steps.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

LEARNT = 0.5  # of what an exact run has learnt by then: a job that has learnt less has diverged
TIMES_FIRST = 2.0  # the loss of its first steps: a job without a forecast is above it


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactLoss:
    """What is known of the loss that the job would have under the exact sum."""

    first: float | None = None  # of the job: of its first steps, or the first that was reported of it
    limits: tuple[tuple[float, float], ...] = ()  # (samples, loss above which it has diverged), by ascending samples
    source: str = ""  # what the limits are forecast from

    def limit(self, samples: float) -> float | None:
        """The loss above which a job has diverged that has read so many samples; None where nothing is known.

        Between two points it is on the line between them, after the last it is its. Before the first the exact run said
        nothing, and a loss falls: there the job is measured against its own first steps.
        """
        if self.is_forecast(samples):
            return _between(self.limits, samples)
        return TIMES_FIRST * self.first if self.first is not None and self.first > 0 else None

    def is_forecast(self, samples: float) -> bool:
        """Whether `limit` is forecast from `source` there."""
        return bool(self.limits) and samples >= self.limits[0][0]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeFallback:
    """A job has diverged under this algorithm, and goes on by the exact sum for the rest of its life."""

    algorithm: str
    reason: str
    step: int  # of the commit that it goes on from
    at: float


def _between(points: Sequence[tuple[float, float]], samples: float) -> float:
    after = max(1, bisect_left(points, (samples,)))
    if after >= len(points):
        return points[-1][1]
    (left, below), (right, above) = points[after - 1], points[after]
    return below + (above - below) * (samples - left) / (right - left)
