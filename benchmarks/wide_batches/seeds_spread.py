"""The law: the final held-out metric of runs whose batch changes lies within the seeds' spread of the base batch.

The spread is `SPREAD` standard deviations of undisturbed runs at the base batch that differ by their seed alone
(initial weights and data order), to either side of their mean. A cell is a task under a rule; it is judged by the mean
over its runs, and only on the bad side. That was fixed before the runs that it judges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import fmean, stdev
from typing import Literal

SPREAD = 2.0


@dataclass(frozen=True, slots=True)
class SeedsSpread:
    """Of the base batch, over its seeds."""

    mean: float
    deviation: float
    mode: Literal["min", "max"]  # which metric is better

    @staticmethod
    def of(metrics: Sequence[float], mode: Literal["min", "max"]) -> SeedsSpread:
        """Raises `ValueError` where there are too few seeds to have a spread."""
        if len(metrics) < 3:
            raise ValueError(f"{len(metrics)} seeds at the base batch have no spread to speak of; run at least 3")
        return SeedsSpread(fmean(metrics), stdev(metrics), mode)

    @property
    def limit(self) -> float:
        """The worst mean that is within it."""
        return self.mean + (1 if self.mode == "min" else -1) * SPREAD * self.deviation

    def holds(self, metrics: Sequence[float]) -> bool:
        """Whether the mean of these runs is within it, or better. A metric that is no number is worse than any."""
        if not metrics or not all(map(isfinite, metrics)):
            return False
        mean = fmean(metrics)
        return mean <= self.limit if self.mode == "min" else mean >= self.limit

    def worst(self, metrics: Sequence[float]) -> float:
        return max(metrics) if self.mode == "min" else min(metrics)
