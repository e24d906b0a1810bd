"""The measurements of single jobs, kept for those of their task that have not been measured yet.

AITurbo measures every model once, before its jobs run; here the first job of a task does that for the others. Plain
JSON in `Plan.state` under "kin", by task: the fitted model of the best measured job, and for jobs over parameter
servers the latest measurements themselves. A job that has no task is helped by no other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from elastic_core.domain import EXACT, JobView, ProfilePoint, ThroughputModel, from_json, to_json
from elastic_core.predict.speed.kept_exchange import exchange_of

T = TypeVar("T")

MOST_TASKS = 64
MOST_POINTS = 32  # of one task


@dataclass(frozen=True, slots=True)
class TaskProfiles:
    models: Mapping[str, ThroughputModel]  # by task and exchange (`_model_key`)
    points: Mapping[str, tuple[ProfilePoint, ...]]  # by task, of jobs over parameter servers

    @staticmethod
    def of(state: Mapping[str, Any], jobs: Sequence[JobView]) -> TaskProfiles:
        """What is remembered, and what the jobs have measured since. Odd or foreign memories are forgotten."""
        stored = _stored(state)
        models, points = dict(stored.models), dict(stored.points)
        for job in jobs:
            with_roles = tuple(point for point in job.profile if point.roles)
            if job.task and with_roles:
                points[job.task] = _merged(points.pop(job.task, ()), with_roles)
            elif job.task and job.throughput is not None:
                key = _model_key(job)
                known = models.get(key)
                if known is None or job.throughput.num_points >= known.num_points:
                    models.pop(key, None)
                    models[key] = job.throughput
        return TaskProfiles(_latest(models), _latest(points))

    def to_state(self) -> dict[str, Any]:
        return {
            "models": {task: to_json(model) for task, model in self.models.items()},
            "points": {task: [to_json(point) for point in points] for task, points in self.points.items()},
        }

    def fill_in(self, job: JobView) -> JobView:
        """The job as if it had measured what its task's jobs did; its own measurements come first."""
        if job.limits.servers is not None:
            return replace(job, profile=_merged(self.points.get(job.task, ()), job.profile))
        if job.throughput is None and _model_key(job) in self.models:
            return replace(job, throughput=self.models[_model_key(job)])
        return job


def _model_key(job: JobView) -> str:
    """Steps under one communication algorithm, and its options, say little of those under others."""
    exchange = exchange_of(job.limits)
    return job.task if not job.task or exchange == EXACT else f"{job.task} {exchange}"


def _stored(state: Mapping[str, Any]) -> TaskProfiles:
    try:
        stored = state["kin"]
        models = {task: from_json(ThroughputModel, model) for task, model in stored["models"].items()}
        points = {
            task: tuple(from_json(ProfilePoint, point) for point in points) for task, points in stored["points"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError):  # pydantic's errors are ValueErrors
        return TaskProfiles({}, {})
    return TaskProfiles(models, points)


def _merged(older: tuple[ProfilePoint, ...], newer: tuple[ProfilePoint, ...]) -> tuple[ProfilePoint, ...]:
    """One point for each configuration, the newer one; the latest `MOST_POINTS` configurations."""
    merged = {_configuration(point): point for point in older}
    for point in newer:
        merged.pop(_configuration(point), None)
        merged[_configuration(point)] = point
    return tuple(merged.values())[-MOST_POINTS:]


def _configuration(point: ProfilePoint) -> tuple[Any, ...]:
    return point.roles, point.num_slots, point.server_cores, point.global_batch


def _latest(by_task: dict[str, T]) -> dict[str, T]:
    return dict(list(by_task.items())[-MOST_TASKS:])
