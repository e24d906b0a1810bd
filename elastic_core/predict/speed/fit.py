"""From jobs' profiles to their models: the calls that the control plane and the simulator make for every snapshot."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from elastic_core.domain import Limits, ProfilePoint, ThroughputModel
from elastic_core.predict.speed import throughput
from elastic_core.predict.speed.experience import NOTHING, Experience, learn


@lru_cache(maxsize=4096)
def job_models(points: tuple[ProfilePoint, ...], limits: Limits, experience: Experience = NOTHING) -> ThroughputModel:
    """The throughput model of a job, from its measurements so far. Never raises on odd measurements.

    Remembers its answers: between two reports of a job the same points come in with every decision.
    """
    return throughput.fit(points, limits, experience)


def experience_from(measured: Sequence[tuple[tuple[ProfilePoint, ...], Limits]]) -> Experience:
    """What the jobs that were measured on several types show about the others; `measured`: (profile, limits) of each.

    A job that was measured on one type only shows nothing of how fast types are relative to each other.
    """
    models = [
        throughput.StepTime.of(job_models(points, limits), limits)
        for points, limits in measured
        if len({point.type for point in points}) > 1
    ]
    return learn(models) if models else NOTHING
