"""What `horizon` remembers between decisions, as plain JSON in `Plan.state`: what jobs of the same task have shown.

Jobs of one task (one entry point) resemble each other, so a job that has just arrived need not start blind on one
slot: step times by configuration, gradient noise by progress, and the work of those that are no longer there. Another
model size under the same entry point shows as another scale: `scales_of` compares what a job measured itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from math import exp, inf, log
from statistics import median
from typing import Any

import numpy as np

from elastic_core.domain import JobView, Layout, Limits, ProfilePoint, to_json
from elastic_core.policy.corrected import Corrected
from elastic_core.predict.layouts import factor, is_plain, name_of
from elastic_core.predict.throughput import StepTime

MOST_POINTS = 48  # of one task
MOST_WORKS = 64
MOST_COUNT = 4096  # reports behind one point
_LEAST = 1e-9  # seconds
_POINT_FIELDS = tuple(one.name for one in fields(ProfilePoint))

Key = tuple[int, int, str, int, int, str]  # slots, nodes, type, local batch, accumulation, cut of the model


@dataclass(slots=True)
class Seen:
    """One configuration over all jobs that ran it. The means are told on at 1, 2, 4, ... jobs only, so that the models
    fitted to them stay the same in between."""

    point: ProfilePoint  # as told on
    jobs: int
    log_step: float  # sums over the jobs
    log_sync: float

    def add(self, point: ProfilePoint) -> None:
        self.jobs += 1
        self.log_step += log(point.step_seconds)
        self.log_sync += log(max(point.sync_seconds, _LEAST))
        if self.jobs & (self.jobs - 1) == 0:
            step, sync = exp(self.log_step / self.jobs), exp(self.log_sync / self.jobs)
            count = min(point.count * self.jobs, MOST_COUNT)
            self.point = replace(point, step_seconds=step, sync_seconds=sync, count=count)

    @staticmethod
    def first(point: ProfilePoint) -> Seen:
        return Seen(point, 1, log(point.step_seconds), log(max(point.sync_seconds, _LEAST)))


@dataclass(frozen=True, slots=True)
class Told:
    """What an active job has told already: its work done, and which of its configurations are in `seen`."""

    done: int
    names: tuple[str, ...]


@dataclass(slots=True)
class TaskMemory:
    seen: dict[Key, Seen] = field(default_factory=dict)
    noise: dict[int, float] = field(default_factory=dict)  # by the binary logarithm of the work done
    works: list[float] = field(default_factory=list)  # of jobs that are no longer there
    told: dict[str, Told] = field(default_factory=dict)  # by active job

    def points(self) -> tuple[ProfilePoint, ...]:
        return tuple(seen.point for seen in self.seen.values())


def recall(state: Mapping[str, Any]) -> dict[str, TaskMemory]:
    return {name: _from_json(raw) for name, raw in state.get("tasks", {}).items()}


def learn(memories: dict[str, TaskMemory], jobs: Sequence[JobView]) -> None:
    """Take over what the jobs of a snapshot have measured since the last one, and the work of those that have left.

    A job that was cancelled counts like one that finished: a snapshot does not tell.
    """
    before = {job_id: told for memory in memories.values() for job_id, told in memory.told.items()}
    here = {job.job_id for job in jobs}
    for memory in memories.values():
        memory.works += [float(told.done) for job_id, told in memory.told.items() if job_id not in here and told.done]
        memory.works = memory.works[-MOST_WORKS:]
        memory.told = {}
    for job in jobs:
        memory = memories.setdefault(job.task, TaskMemory())
        memory.told[job.job_id] = _learn_one(memory, job, before.get(job.job_id))


def _learn_one(memory: TaskMemory, job: JobView, before: Told | None) -> Told:
    known = before.names if before is not None else ()
    usable = [point for point in job.profile if point.step_seconds > 0]
    for point in usable:
        name = key(point)
        if _name(name) in known:
            continue
        if name in memory.seen:
            memory.seen[name].add(point)
        else:
            memory.seen[name] = Seen.first(point)
    while len(memory.seen) > MOST_POINTS:
        del memory.seen[next(iter(memory.seen))]
    if job.noise_scale is not None and 0 < job.noise_scale < inf:
        memory.noise[stage_of(job.done_samples)] = job.noise_scale
    return Told(job.done_samples, tuple(_name(key(point)) for point in usable))


def store(memories: Mapping[str, TaskMemory]) -> dict[str, Any]:
    return {
        name: {
            "seen": [[_plain(s.point), s.jobs, s.log_step, s.log_sync] for s in memory.seen.values()],
            "noise": [[stage, value] for stage, value in sorted(memory.noise.items())],
            "works": memory.works,
            "told": {job_id: [told.done, list(told.names)] for job_id, told in memory.told.items()},
        }
        for name, memory in memories.items()
    }


def _plain(point: ProfilePoint) -> dict[str, Any]:
    plain = {name: getattr(point, name) for name in _POINT_FIELDS if name not in ("roles", "layout")}
    return plain if point.layout is None else {**plain, "layout": to_json(point.layout)}


def _point(raw: Mapping[str, Any]) -> ProfilePoint:
    layout = raw.get("layout")
    return ProfilePoint(**{**raw, "layout": None if layout is None else Layout(**layout)})


def _from_json(raw: Mapping[str, Any]) -> TaskMemory:
    seen = [Seen(_point(point), jobs, step, sync) for point, jobs, step, sync in raw["seen"]]
    return TaskMemory(
        {key(one.point): one for one in seen},
        {int(stage): value for stage, value in raw["noise"]},
        list(raw["works"]),
        {job: Told(done, tuple(names)) for job, (done, names) in raw["told"].items()},
    )


def _name(parts: Key) -> str:
    return "/".join(map(str, parts)).removesuffix("/")


def key(point: ProfilePoint) -> Key:
    cut = "" if point.layout is None or is_plain(point.layout) else name_of(point.layout)
    return point.num_slots, point.num_nodes, point.type, point.local_batch, point.accumulation, cut


def noise_of(job: JobView, memory: TaskMemory) -> float | None:
    """The job's own gradient noise, else that of its task at the same stage, else None."""
    if job.noise_scale is not None:
        return job.noise_scale
    if not memory.noise:
        return None
    stage = stage_of(job.done_samples)
    return memory.noise[min(memory.noise, key=lambda known: (abs(known - stage), known))]


def scales_of(jobs: Sequence[JobView], model: StepTime | Corrected, limits: Limits) -> list[float]:
    """How much slower each job is than its task's model says: the median over what it measured itself."""
    ratios: list[list[float]] = [[] for _ in jobs]
    measured = [(row, point) for row, job in enumerate(jobs) for point in job.profile if point.step_seconds > 0]
    for kind in sorted({point.type for _, point in measured}):
        here = [(row, point) for row, point in measured if point.type == kind]
        slots, nodes, batches = np.asarray([(p.num_slots, p.num_nodes, p.global_batch) for _, p in here]).T
        predicted = model.seconds(slots, nodes, kind, batches, limits).tolist()
        for (row, point), expected in zip(here, predicted, strict=True):
            if expected > 0:
                cut = 1.0 if point.layout is None else factor(model.factors, point.layout)
                ratios[row].append(log(point.step_seconds / (expected * cut)))
    return [exp(median(own)) if own else 1.0 for own in ratios]


def stage_of(done: float) -> int:
    return int(np.log2(done + 1.0))
