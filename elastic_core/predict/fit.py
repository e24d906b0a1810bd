"""From a job's profile to its models: the one call that the control plane makes for every job of a snapshot."""

from __future__ import annotations

from functools import lru_cache

from elastic_core.domain import Limits, ProfilePoint, ThroughputModel
from elastic_core.predict import throughput


@lru_cache(maxsize=4096)
def job_models(points: tuple[ProfilePoint, ...], limits: Limits) -> ThroughputModel:
    """The throughput model of a job, from its measurements so far. Never raises on odd measurements.

    Remembers its answers: between two reports of a job the same points come in with every decision.
    """
    return throughput.fit(points, limits)
