"""From jobs' profiles to their models: the calls that the control plane and the simulator make for every snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from elastic_core.domain import JobView, Limits, ProfilePoint, ThroughputModel
from elastic_core.predict import throughput
from elastic_core.predict.experience import NOTHING, Experience, learn


@lru_cache(maxsize=4096)
def job_models(points: tuple[ProfilePoint, ...], limits: Limits, experience: Experience = NOTHING) -> ThroughputModel:
    """The throughput model of a job, from its measurements so far. Never raises on odd measurements.

    Remembers its answers: between two reports of a job the same points come in with every decision.
    """
    return throughput.fit(points, limits, experience)


def experience_of(jobs: Sequence[JobView]) -> Experience:
    """What the jobs that were measured on several types tell about the others."""
    return experience_from([(job.profile, job.limits) for job in jobs])


def experience_from(measured: Sequence[tuple[tuple[ProfilePoint, ...], Limits]]) -> Experience:
    """The same from their measurements; who was measured on one type only has nothing to tell."""
    models = [
        throughput.StepTime.of(job_models(points, limits), limits)
        for points, limits in measured
        if len({point.type for point in points}) > 1
    ]
    return learn(models) if models else NOTHING
