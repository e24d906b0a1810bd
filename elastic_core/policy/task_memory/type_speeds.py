"""How fast the types are to each other for a task, where a job itself has seen only one of them.

Learnt from other jobs: a job that ran on two types has a ratio in its fitted model, and jobs of one task resemble each
other. What was learnt is kept in the plan's state. A pair that nobody has seen counts as equally fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import permutations
from math import isfinite
from statistics import median
from typing import Any, Protocol

from elastic_core.domain import JobView

_PREFIX = "slowness."
Ratios = Mapping[str, Mapping[str, float]]  # by task, by "type>type"


class Speeds(Protocol):
    def ratio(self, job: JobView, of: str, to: str, learnt: Ratios) -> float:
        """Speed of one slot of type `of` for this job, relative to one of type `to`."""


class LearntSpeeds:
    def ratio(self, job: JobView, of: str, to: str, learnt: Ratios) -> float:
        return learnt.get(job.task, {}).get(f"{of}>{to}", 1.0)


def learn(state: Mapping[str, Any], jobs: Iterable[JobView]) -> dict[str, dict[str, float]]:
    """What the last plan knew, brought up to date with the medians over the jobs of this snapshot."""
    measured: dict[str, dict[str, list[float]]] = {}
    for job in jobs:
        for pair, value in _own_ratios(job):
            measured.setdefault(job.task, {}).setdefault(pair, []).append(value)
    ratios = _stored(state)
    for task, pairs in measured.items():
        ratios.setdefault(task, {}).update({pair: median(values) for pair, values in pairs.items()})
    return ratios


def _own_ratios(job: JobView) -> Iterable[tuple[str, float]]:
    """Of the types that it was measured on; what its model says of others is itself a projection."""
    params = job.throughput.params if job.throughput is not None else {}
    slowness = {kind: params[_PREFIX + kind] for kind in {p.type for p in job.profile} if _PREFIX + kind in params}
    for of, to in permutations(sorted(slowness), 2):
        if slowness[of] > 0 and isfinite(slowness[to] / slowness[of]):
            yield f"{of}>{to}", slowness[to] / slowness[of]


def _stored(state: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """What another version of the platform wrote in another form is forgotten."""
    try:
        return {
            str(task): {str(pair): float(value) for pair, value in pairs.items()}
            for task, pairs in state["speeds"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        return {}
