"""What a resize takes by the size of the state: seconds = fixed + per byte, fitted to what resizes of jobs took.

The prior is a flat line, on which every job takes as long as the median one did: a slope is believed as far as sizes
differ by more than the times scatter (ridge regression; the scatter is that of all times, so that an odd one makes
every slope doubtful). So jobs of a few MiB say next to nothing about one of many GiB. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median, pvariance
from typing import Self

GIB = 2**30
SLOPE_SPREAD = 5.0  # s/GiB: one standard deviation of slopes before anything was measured


@dataclass(frozen=True, slots=True)
class ResizeLine:
    """`fixed` in seconds, `per_gib` in seconds a GiB; neither is negative. `usual_gib`: of a job of unknown size."""

    fixed: float
    per_gib: float
    usual_gib: float

    @classmethod
    def fit(cls, measured: Sequence[tuple[float, int | None]]) -> Self:
        """`measured`: seconds, and bytes of the state or None, of each job; at least one. Jobs of unknown size count as
        of the median one."""
        usual = median([size / GIB for _, size in measured if size is not None] or [0.0])
        seconds = [took for took, _ in measured]
        sizes = [usual if size is None else size / GIB for _, size in measured]
        mean_size, mean_seconds = fmean(sizes), fmean(seconds)
        together = sum((x - mean_size) * (y - mean_seconds) for x, y in zip(sizes, seconds, strict=True))
        apart = sum((x - mean_size) ** 2 for x in sizes)
        doubt = pvariance(seconds) / SLOPE_SPREAD**2
        slope = max(together / (apart + doubt), 0.0) if together else 0.0
        fixed = median(y - slope * x for x, y in zip(sizes, seconds, strict=True))
        return cls(max(fixed, 0.0), slope, usual)

    def seconds(self, state_bytes: int | None) -> float:
        return self.fixed + self.per_gib * (self.usual_gib if state_bytes is None else state_bytes / GIB)
