"""How much of what is told about a job's remaining work to believe, by the class of the job (AITurbo, HPDC 2021).

Of a predictable job: all of it. Of an unpredictable one what is told jumps about, and three things are put together in
logarithms, where such errors are symmetric: the mean of all that was told of it so far; what jobs of this pool usually
need; and what it has run for already, since whoever has run for long is long (Lindy's law). How much a single telling
counts against the usual is not assumed but seen: by how much tellings of unpredictable jobs jump (`spread`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, log
from typing import Any

import numpy as np

from elastic_core.domain import JobView
from elastic_core.policy.remaining import known_remaining
from elastic_core.predict.throughput import Floats

CERTAIN = 0.5  # probability from which on a job counts as predictable
USUAL_SPREAD = 1.0  # of the logarithm: jobs of a pool differ by a factor of e, give or take
FIRST_SPREAD, FIRST_WEIGHT = 1.0, 4.0  # of tellings, before any jump was seen, and the jumps that it counts for
ANOTHER = 0.02  # relative change of a total that is another telling, not a rounding
LEAST_LEFT = 0.02  # of a told total: a job that has outlived a telling is not done for that
MOST_TELLINGS = 32
FEW = 3  # predictable jobs that say what is usual; with fewer, everybody does


def is_sure(job: JobView) -> bool:
    """Without a classifier's word what is declared is believed."""
    return job.predictable is None or job.predictable >= CERTAIN


@dataclass(frozen=True, slots=True)
class Told:
    """Total works that were told of each job, oldest first; and the jumps between tellings of unpredictable jobs."""

    totals: Mapping[str, tuple[float, ...]]
    jumps: tuple[float, float] = (0.0, 0.0)  # (half the sum of their squares, their number)

    @property
    def spread(self) -> float:
        """Variance of the logarithm of one telling."""
        half_squares, number = self.jumps
        return (FIRST_WEIGHT * FIRST_SPREAD**2 + half_squares) / (FIRST_WEIGHT + number)

    @staticmethod
    def of(state: Mapping[str, Any], jobs: Sequence[JobView]) -> Told:
        """What is remembered, and what is told now. Memories of another form are forgotten."""
        known, (half_squares, number) = _remembered(state)
        totals = {}
        for job in jobs:
            before, now = known.get(job.job_id, ()), job.done_samples + known_remaining(job)
            if isfinite(now) and not (before and abs(now / before[-1] - 1.0) < ANOTHER):
                if before and not is_sure(job):
                    half_squares, number = half_squares + log(now / before[-1]) ** 2 / 2.0, number + 1.0
                before = (*before, max(now, 1.0))[-MOST_TELLINGS:]
            totals[job.job_id] = before
        return Told(totals, (half_squares, number))

    def to_state(self) -> dict[str, Any]:
        return {"totals": {job_id: list(told) for job_id, told in self.totals.items()}, "jumps": list(self.jumps)}


def _remembered(state: Mapping[str, Any]) -> tuple[dict[str, tuple[float, ...]], tuple[float, float]]:
    try:
        kept = state["told"]
        half_squares, number = (float(value) for value in kept["jumps"])
        totals = {str(job): tuple(float(value) for value in told) for job, told in kept["totals"].items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}, (0.0, 0.0)
    return totals, (half_squares, number)


def believed(jobs: Sequence[JobView], told: Told, fastest: Floats) -> Floats:
    """Samples that each job still needs. `fastest`: samples a second of each, to compare jobs by their time."""
    left = np.asarray([max(known_remaining(job), 1.0) for job in jobs])
    sure = np.asarray([is_sure(job) for job in jobs]) & np.isfinite(left)
    usual = _usual(left / fastest, sure)
    found = left.copy()
    for row in map(int, np.flatnonzero(~sure)):
        job, speed = jobs[row], float(fastest[row])
        tellings = [log(max(total - job.done_samples, LEAST_LEFT * total) / speed) for total in told.totals[job.job_id]]
        ordinary = log(usual + job.done_samples / speed)
        weight = len(tellings) / told.spread
        mean = float(np.mean(tellings)) if tellings else 0.0
        own = (weight * mean + ordinary / USUAL_SPREAD**2) / (weight + 1.0 / USUAL_SPREAD**2)
        found[row] = np.exp(own) * speed
    return found


def _usual(seconds: Floats, sure: Any) -> float:
    """What a job of this pool needs, in the middle."""
    known = seconds[sure] if sure.sum() >= FEW else seconds[np.isfinite(seconds)]
    return float(np.exp(np.median(np.log(known)))) if len(known) else 1.0
