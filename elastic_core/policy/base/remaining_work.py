"""How much work each job still has, in samples, as one number: what policies ask that take no distribution.

Four answers, by what a policy needs: what is declared or read off the loss curve (`known_remaining`); the same, and a
guess where neither says anything (`expected_remaining`); what is declared, in steps (`remaining_steps`); and what is
declared, as far as the job's class lets it be believed (`DeclaredWork`, `believed_remaining`: AITurbo, HPDC 2021). None
of them is a promise: the work that a job turns out to need is known when it ends. What is known beyond one number is in
`policy.base.remaining_distribution`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, isinf, log
from typing import Any

import numpy as np

from elastic_core.domain import JobView
from elastic_core.predict.forecasts.forecast_weights import CERTAIN
from elastic_core.predict.speed.efficiency import work_per_sample
from elastic_core.predict.speed.throughput import Floats

TYPICAL_SPREAD = 1.0  # of the logarithm: jobs of a pool differ by a factor of e, give or take
FIRST_SPREAD, FIRST_WEIGHT = 1.0, 4.0  # of declarations, before any jump was seen, and the jumps that it counts for
CHANGED = 0.02  # relative change of a total that is another declaration, not a rounding
LEAST_LEFT = 0.02  # of a declared total: a job that has outlived a declaration is not done for that
MOST_DECLARATIONS = 32
FEW = 3  # predictable jobs that say what is typical; with fewer, everybody does

Totals = Mapping[str, tuple[float, ...]]  # total works that were declared of each job, oldest first


def declaration_is_trusted(job: JobView) -> bool:
    """Whether the job is of the predictable class. Where no classifier was asked, what is declared is believed."""
    return job.predictable is None or job.predictable >= CERTAIN


def known_remaining(job: JobView) -> float:
    """Samples that it still needs: declared, else what its loss curve says; infinite where neither is known."""
    if job.total_samples is None and job.expected_samples is not None:
        return max(job.before_the_cap(job.expected_samples - job.done_samples), 1.0)
    return job.remaining_samples


def expected_remaining(job: JobView) -> float:
    """As `known_remaining`; as much again as was done where nothing is known (Lindy's rule)."""
    remaining = known_remaining(job)
    return job.before_the_cap(float(job.done_samples)) if isinf(remaining) else remaining


def remaining_steps(job: JobView, batch: int) -> float:
    """Undeclared work: as much again as was done, one step at least (Lindy's rule: the age tells the time to come)."""
    samples = job.remaining_samples
    if isinf(samples):
        samples = max(job.done_samples, batch)
    steps = samples / work_of_step(job, batch)
    return steps if job.samples_left is None else min(steps, job.samples_left / batch)


def work_of_step(job: JobView, batch: int) -> float:
    """Work that one step at this batch does, in the job's own unit."""
    reference, noise = job.limits.reference_batch, job.noise_scale
    return batch * work_per_sample(batch, reference, noise, scale_invariant=job.scale_invariant)


# How far to believe what is declared of a job of the unpredictable class, which jumps about. Three things are put
# together in logarithms, where such errors are symmetric: the mean of all declarations so far; what jobs of this pool
# typically need; and what it has run for already, since whoever has run for long is long (Lindy's law). How much one
# declaration counts against the typical is not assumed but seen: by how much declarations jump (`spread`).


@dataclass(frozen=True, slots=True)
class DeclaredWork:
    """What was declared of each job so far, and by how much declarations of unpredictable jobs jump."""

    totals: Totals
    jumps: tuple[float, float] = (0.0, 0.0)  # (half the sum of their squares, their number)

    @property
    def spread(self) -> float:
        """Variance of the logarithm of one declaration."""
        half_squares, number = self.jumps
        return (FIRST_WEIGHT * FIRST_SPREAD**2 + half_squares) / (FIRST_WEIGHT + number)

    @staticmethod
    def of(state: Mapping[str, Any], jobs: Sequence[JobView]) -> DeclaredWork:
        """What is remembered, and what is declared now. Memories of another form are forgotten."""
        known, (half_squares, number) = _stored(state)
        totals = {}
        for job in jobs:
            declared, now = known.get(job.job_id, ()), job.done_samples + known_remaining(job)
            if isfinite(now) and not (declared and abs(now / declared[-1] - 1.0) < CHANGED):
                if declared and not declaration_is_trusted(job):
                    half_squares, number = half_squares + log(now / declared[-1]) ** 2 / 2.0, number + 1.0
                declared = (*declared, max(now, 1.0))[-MOST_DECLARATIONS:]
            totals[job.job_id] = declared
        return DeclaredWork(totals, (half_squares, number))

    def to_state(self) -> dict[str, Any]:
        """Plain JSON, for `Plan.state` under "told"."""
        return {"totals": {job_id: list(totals) for job_id, totals in self.totals.items()}, "jumps": list(self.jumps)}


def _stored(state: Mapping[str, Any]) -> tuple[Totals, tuple[float, float]]:
    try:
        stored = state["told"]
        half_squares, number = (float(value) for value in stored["jumps"])
        totals = {str(job): tuple(float(total) for total in of_job) for job, of_job in stored["totals"].items()}
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}, (0.0, 0.0)
    return totals, (half_squares, number)


def believed_remaining(jobs: Sequence[JobView], declared: DeclaredWork, fastest: Floats) -> Floats:
    """Samples that each job still needs. `fastest`: samples a second of each, to compare jobs by their time."""
    remaining = np.asarray([max(known_remaining(job), 1.0) for job in jobs])
    trusted = np.asarray([declaration_is_trusted(job) for job in jobs]) & np.isfinite(remaining)
    typical = _typical(remaining / fastest, trusted)
    for row in map(int, np.flatnonzero(~trusted)):
        job, speed = jobs[row], float(fastest[row])
        totals = declared.totals[job.job_id]
        declarations = [log(max(total - job.done_samples, LEAST_LEFT * total) / speed) for total in totals]
        ordinary = log(typical + job.done_samples / speed)
        weight = len(declarations) / declared.spread
        mean = float(np.mean(declarations)) if declarations else 0.0
        posterior = (weight * mean + ordinary / TYPICAL_SPREAD**2) / (weight + 1.0 / TYPICAL_SPREAD**2)
        remaining[row] = np.exp(posterior) * speed
    return remaining


def _typical(seconds: Floats, trusted: Any) -> float:
    """What a job of this pool needs, in the middle."""
    known = seconds[trusted] if trusted.sum() >= FEW else seconds[np.isfinite(seconds)]
    return float(np.exp(np.median(np.log(known)))) if len(known) else 1.0
