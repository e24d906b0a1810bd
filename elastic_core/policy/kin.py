"""What jobs of one task have measured, kept for those of it that have not been measured yet.

AITurbo measures every model once, before its jobs run; here the first job of a task does that for the others. Kept in
`Plan.state` as plain JSON by task: the fitted model of the best measured job, and for jobs over parameter servers the
measurements themselves. A job that has no task has no kin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import ValidationError

from elastic_core.domain import JobView, ProfilePoint, ThroughputModel, from_json, to_json

T = TypeVar("T")

MOST_TASKS = 64
MOST_POINTS = 32  # of one task


@dataclass(frozen=True, slots=True)
class Kin:
    models: Mapping[str, ThroughputModel]  # by task
    points: Mapping[str, tuple[ProfilePoint, ...]]  # by task, of jobs over parameter servers

    @staticmethod
    def of(state: Mapping[str, Any], jobs: Sequence[JobView]) -> Kin:
        """What is remembered, and what the jobs have measured since. Odd or foreign memories are forgotten."""
        remembered = _remembered(state)
        models, points = dict(remembered.models), dict(remembered.points)
        for job in jobs:
            found = tuple(point for point in job.profile if point.roles)
            if job.task and found:
                points[job.task] = _merged(points.pop(job.task, ()), found)
            elif job.task and job.throughput is not None:
                known = models.get(job.task)
                if known is None or job.throughput.num_points >= known.num_points:
                    models.pop(job.task, None)
                    models[job.task] = job.throughput
        return Kin(_latest(models), _latest(points))

    def to_state(self) -> dict[str, Any]:
        return {
            "models": {task: to_json(model) for task, model in self.models.items()},
            "points": {task: [to_json(point) for point in points] for task, points in self.points.items()},
        }

    def teach(self, job: JobView) -> JobView:
        """The job as if it had measured what its kin did; its own measurements come first."""
        if job.limits.servers is not None:
            return replace(job, profile=_merged(self.points.get(job.task, ()), job.profile))
        if job.throughput is None and job.task in self.models:
            return replace(job, throughput=self.models[job.task])
        return job


def _remembered(state: Mapping[str, Any]) -> Kin:
    try:
        kept = state["kin"]
        return Kin(
            {task: from_json(ThroughputModel, model) for task, model in kept["models"].items()},
            {
                task: tuple(from_json(ProfilePoint, point) for point in points)
                for task, points in kept["points"].items()
            },
        )
    except (KeyError, TypeError, AttributeError, ValidationError):
        return Kin({}, {})


def _merged(older: tuple[ProfilePoint, ...], newer: tuple[ProfilePoint, ...]) -> tuple[ProfilePoint, ...]:
    """One point for each configuration, the newer one; the latest `MOST_POINTS` configurations."""
    kept = {_configuration(point): point for point in older}
    for point in newer:
        kept.pop(_configuration(point), None)
        kept[_configuration(point)] = point
    return tuple(kept.values())[-MOST_POINTS:]


def _configuration(point: ProfilePoint) -> tuple[Any, ...]:
    return point.roles, point.num_slots, point.server_cores, point.global_batch


def _latest(found: dict[str, T]) -> dict[str, T]:
    return dict(list(found.items())[-MOST_TASKS:])
