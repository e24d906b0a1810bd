"""From jobs' profiles to their models: the calls that the control plane and the simulator make for every snapshot.

They remember their answers: between two reports of a job the same points come in with every decision. Models that are
asked for together are fitted together.
"""

from __future__ import annotations

from collections.abc import Sequence

from elastic_core.domain import Limits, ProfilePoint, ThroughputModel
from elastic_core.predict.remembered import Remembered
from elastic_core.predict.speed.experience import NOTHING, Experience, learn
from elastic_core.predict.speed.throughput import StepTime, fit_all, packed

Profiled = tuple[tuple[ProfilePoint, ...], Limits, Experience]  # what a model is fitted to

step_times: Remembered[Profiled, StepTime] = Remembered(fit_all, most=32768)
_models: Remembered[Profiled, ThroughputModel] = Remembered(
    lambda jobs: [packed(times) for times in step_times.all(jobs)], most=8192
)


def job_models(points: tuple[ProfilePoint, ...], limits: Limits, experience: Experience = NOTHING) -> ThroughputModel:
    """The throughput model of a job, from its measurements so far. Never raises on odd measurements."""
    return _models.answer((points, limits, experience))


def models_of_jobs(jobs: Sequence[Profiled]) -> list[ThroughputModel]:
    """The same of many."""
    return _models.all(jobs)


def experience_from(measured: Sequence[tuple[tuple[ProfilePoint, ...], Limits]]) -> Experience:
    """What the jobs that were measured on several types show about the others; `measured`: (profile, limits) of each.

    A job that was measured on one type only shows nothing of how fast types are relative to each other.
    """
    several = [(points, limits, NOTHING) for points, limits in measured if len({point.type for point in points}) > 1]
    return learn(step_times.all(several)) if several else NOTHING
