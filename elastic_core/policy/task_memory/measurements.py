"""The measurements of a task's jobs, averaged: what `horizon` fits one model of the whole task to.

Jobs of one task (one entry point) resemble each other, so a job that has just arrived need not start blind on one
slot: step times by configuration, gradient noise by progress, and the work of those that are no longer there: all of
it, or what those had done that were cut off (cancelled, failed, ended at their limit). Steps are alike whatever a job
counts as its work, works are not: those in progress have an entry of their own (`JobView.kind_of_work`). Plain
JSON in `Plan.state` under "tasks". `policy.task_memory.task_profiles` keeps what single jobs measured instead of means
over all of them, and the processes by role, which a model over slots has no place for; so the two stay two records.

A job's first reports of a configuration come right after a restart and say little. So what they have added to a mean is
kept with the job until there are `ENOUGH` of them, and replaced by what twice as many say.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from math import exp, inf, log
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from elastic_core.domain import EXACT, EndedJob, JobView, Layout, ProfilePoint, kind_of_work, to_json
from elastic_core.predict.speed.kept_exchange import to_share
from elastic_core.predict.speed.layout_speeds import is_plain, name_of

MOST_POINTS = 48  # of one task
MOST_WORKS = 64
MOST_COUNT = 4096  # reports behind one point
ENOUGH = 64  # reports of a job's configuration: more say nothing new of it
MOVED = 0.05  # of a step: a mean that was corrected by less is told on as it was, so that its model stays the same
_LEAST = 1e-9  # seconds
_POINT_FIELDS = tuple(known.name for known in fields(ProfilePoint) if known.name not in ("roles", "layout"))
_values_of = attrgetter(*_POINT_FIELDS)


class Size(NamedTuple):
    """The work of a job that is over, in seconds of service at its standard rate; more, if it was cut off."""

    task: str
    seconds: float
    completed: bool = True


# slots, nodes, type, local batch, accumulation, cut of the model and communication algorithm
Configuration = tuple[int, int, str, int, int, str]


@dataclass(frozen=True, slots=True)
class Added:
    """What a job's reports of one configuration have added to its mean."""

    count: int  # of the reports
    global_batch: int  # under which: ranks with equal shares of several batches are one configuration
    log_step: float
    log_sync: float

    @staticmethod
    def of(point: ProfilePoint) -> Added:
        log_step, log_sync = log(point.step_seconds), log(max(point.sync_seconds, _LEAST))
        return Added(point.count, point.global_batch, round(log_step, 6), round(log_sync, 6))


@dataclass(slots=True)
class Mean:
    """One configuration over all jobs that ran it. `point` changes at 1, 2, 4, ... jobs and with corrections of more
    than `MOVED` only, so that the models fitted to it stay the same in between."""

    point: ProfilePoint
    jobs: int
    log_step: float  # sums over the jobs
    log_sync: float

    def add(self, point: ProfilePoint) -> None:
        self.jobs += 1
        self.log_step += log(point.step_seconds)
        self.log_sync += log(max(point.sync_seconds, _LEAST))
        if self.jobs & (self.jobs - 1) == 0:
            self.point = self._of_all(point)

    def correct(self, point: ProfilePoint, before: Added) -> None:
        """`before`: what fewer reports of the same job had added."""
        now = Added.of(point)
        if (now.log_step, now.log_sync) == (before.log_step, before.log_sync):
            return
        self.log_step += now.log_step - before.log_step
        self.log_sync += now.log_sync - before.log_sync
        told, better = self.point, self._of_all(point)
        off = max(abs(better.step_seconds - told.step_seconds), abs(better.sync_seconds - told.sync_seconds))
        if off > MOVED * told.step_seconds:
            self.point = better

    def _of_all(self, point: ProfilePoint) -> ProfilePoint:
        step, sync = exp(self.log_step / self.jobs), exp(self.log_sync / self.jobs)
        return replace(point, step_seconds=step, sync_seconds=sync, count=min(point.count * self.jobs, MOST_COUNT))

    @staticmethod
    def first(point: ProfilePoint) -> Mean:
        return Mean(point, 1, log(point.step_seconds), log(max(point.sync_seconds, _LEAST)))


@dataclass(frozen=True, slots=True)
class Reported:
    """What an active job has contributed already: its work done, and its configurations, so that none counts twice;
    `added` by those of which more reports would say more."""

    done: int
    names: tuple[str, ...]
    rate: float | None = None  # work in a standard second of service: what its work is in seconds is told by this
    added: Mapping[str, Added] = field(default_factory=dict)
    total: int | None = None  # all of its work, where that is declared
    scale_invariant: bool = False  # unit of its work

    def at_the_end(self, told: EndedJob | None) -> tuple[int, bool]:
        """The work of a job that is no longer there, and whether that was all of it.

        A decision saw it last some time before its end. `told`: what the snapshot says of it; of whom it says nothing
        is taken to have finished. What a job declares is less than done where it ended with the samples that it may
        read; the work that is told is rounded down.
        """
        completed = told is None or told.completed
        if completed and self.total is not None:
            work = self.total if told is None else told.work
            return (work if work + 1 < self.total else self.total), True
        return max(self.done, told.work if told is not None else 0), completed


@dataclass(slots=True)
class TaskMemory:
    means: dict[Configuration, Mean] = field(default_factory=dict)
    noise: dict[int, float] = field(default_factory=dict)  # by the binary logarithm of the work done
    works: list[float] = field(default_factory=list)  # of jobs that have finished, oldest first
    # What jobs had done that were cut off, with how many of `works` came before: so both are of the same time.
    cut_off: list[tuple[int, float]] = field(default_factory=list)
    reported: dict[str, Reported] = field(default_factory=dict)  # by active job

    def add_work(self, work: float, completed: bool) -> None:
        if completed:
            self.works.append(work)
        else:
            self.cut_off.append((len(self.works), work))

    def forget_old_works(self) -> None:
        gone = max(len(self.works) - MOST_WORKS, 0)
        self.works = self.works[gone:]
        self.cut_off = [(before - gone, work) for before, work in self.cut_off if before >= gone][-MOST_WORKS:]

    def points(self) -> tuple[ProfilePoint, ...]:
        return tuple(mean.point for mean in self.means.values())

    def noise_of(self, job: JobView) -> float | None:
        """The job's own gradient noise, else that of its task at the same stage, else None."""
        if job.noise_scale is not None:
            return job.noise_scale
        if not self.noise:
            return None
        stage = stage_of(job.done_samples)
        return self.noise[min(self.noise, key=lambda known: (abs(known - stage), known))]


def recall(state: Mapping[str, Any]) -> dict[str, TaskMemory]:
    return {task: _from_json(stored) for task, stored in state.get("tasks", {}).items()}


def learn(
    memories: dict[str, TaskMemory], jobs: Sequence[JobView], not_finished: Collection[str] = (),
    declared: Collection[str] = (), ended: Sequence[EndedJob] = (),
) -> list[Size]:  # fmt: skip
    """Take over what the jobs of a snapshot have measured since the last one, and the work of those that are over.

    `ended`: what is known of their ends (`Snapshot.ended`). Those that are away and may come back
    (`Snapshot.not_finished`) are kept as they were. `declared`: jobs that end with the work that they declare. Returns
    the sizes of those that are over, as far as their rates are known (`set_rates`).
    """
    sizes = []
    before = {job_id: reported for memory in memories.values() for job_id, reported in memory.reported.items()}
    ends = {job.job_id: job for job in ended}
    here, away = {job.job_id for job in jobs}, set(not_finished) - ends.keys()
    for task, memory in list(memories.items()):
        for job_id, reported in memory.reported.items():
            if job_id in here or job_id in away:
                continue
            work, completed = reported.at_the_end(ends.get(job_id))
            if work:
                kind = kind_of_work(task, scale_invariant=reported.scale_invariant)
                memories.setdefault(kind, TaskMemory()).add_work(float(work), completed)
            if work and reported.rate:
                sizes.append(Size(task, work / reported.rate, completed))
        memory.reported = {job_id: reported for job_id, reported in memory.reported.items() if job_id in away}
    for memory in memories.values():
        memory.forget_old_works()
    for job in jobs:
        memory = memories.setdefault(job.task, TaskMemory())
        reported = _learn_job(memory, job, before.get(job.job_id), _knows_works(memories, job))
        total = job.total_samples if job.job_id in declared else None
        memory.reported[job.job_id] = replace(reported, total=total, scale_invariant=job.scale_invariant)
    return sizes


def _knows_works(memories: Mapping[str, TaskMemory], job: JobView) -> bool:
    """Whether one of its like has finished."""
    return job.kind_of_work in memories and bool(memories[job.kind_of_work].works)


def rate_of(memories: Mapping[str, TaskMemory], job: JobView) -> float | None:
    """The job's rate as set last. None where it was not, or where the job has measured something since and none of
    its task has finished yet, so that much hangs on it."""
    reported = memories[job.task].reported.get(job.job_id) if job.task in memories else None
    return None if reported is None else reported.rate


def set_rates(memories: Mapping[str, TaskMemory], jobs: Sequence[JobView], rates: Sequence[float]) -> None:
    """`rates`: work that each active job does in a standard second, 0 for who may not run."""
    for job, rate in zip(jobs, rates, strict=True):
        reported = memories[job.task].reported
        reported[job.job_id] = replace(reported[job.job_id], rate=rate or None)


def _learn_job(memory: TaskMemory, job: JobView, before: Reported | None, knows_works: bool) -> Reported:
    known = before.names if before is not None else ()
    added = dict(before.added) if before is not None else {}
    usable = [point for point in to_share(job.profile, job.limits) if point.step_seconds > 0]
    for point in usable:
        configuration = configuration_of(point)
        name = _name(configuration)
        if name in known and not _says_more(point, added.get(name)):
            continue
        if name in known:
            if configuration in memory.means:
                memory.means[configuration].correct(point, added[name])
        elif configuration in memory.means:
            memory.means[configuration].add(point)
        else:
            memory.means[configuration] = Mean.first(point)
        added[name] = Added.of(point)
    while len(memory.means) > MOST_POINTS:
        del memory.means[next(iter(memory.means))]
    if job.noise_scale is not None and 0 < job.noise_scale < inf:
        memory.noise[stage_of(job.done_samples)] = job.noise_scale
    names = tuple(_name(configuration_of(point)) for point in usable)
    added = {name: added[name] for name in names if name in added and added[name].count < ENOUGH}
    if before is not None and (names == before.names or knows_works):
        return Reported(job.done_samples, names, before.rate, added)
    return Reported(job.done_samples, names, None, added)  # what it measured since makes it another rate


def _says_more(point: ProfilePoint, added: Added | None) -> bool:
    return added is not None and point.global_batch == added.global_batch and point.count >= 2 * added.count


def store(memories: Mapping[str, TaskMemory]) -> dict[str, Any]:
    return {task: _to_json(memory) for task, memory in memories.items()}


def _to_json(memory: TaskMemory) -> dict[str, Any]:
    kept = {_name(configuration) for configuration in memory.means}
    return {
        "seen": [[_plain(m.point), m.jobs, m.log_step, m.log_sync] for m in memory.means.values()],
        "noise": [[stage, value] for stage, value in sorted(memory.noise.items())],
        "works": memory.works,
        **({"cut_off": [list(one) for one in memory.cut_off]} if memory.cut_off else {}),
        "told": {job_id: _reported(reported, kept) for job_id, reported in memory.reported.items()},
    }


def _reported(reported: Reported, kept: Collection[str]) -> list[Any]:
    """`kept`: the configurations that there are means of. What was added to one that was forgotten is, too."""
    added = {
        name: [own.count, own.global_batch, own.log_step, own.log_sync]
        for name, own in reported.added.items()
        if name in kept
    }
    more = [reported.rate, added, reported.total, reported.scale_invariant]
    while more and not more[-1]:
        more.pop()
    return [reported.done, list(reported.names), *more]


def _reported_of(done: int, names: Sequence[str], rate: float | None = None, added: Any = None, *more: Any) -> Reported:
    """As it was stored; shorter where less was known of it."""
    return Reported(done, tuple(names), rate, {name: Added(*of) for name, of in (added or {}).items()}, *more)


def _plain(point: ProfilePoint) -> dict[str, Any]:
    plain = dict(zip(_POINT_FIELDS, _values_of(point), strict=True))
    return plain if point.layout is None else {**plain, "layout": to_json(point.layout)}


def _point(stored: Mapping[str, Any]) -> ProfilePoint:
    if stored.get("layout") is None:
        return ProfilePoint(**stored)
    return ProfilePoint(**{**stored, "layout": Layout(**stored["layout"])})


def _from_json(stored: Mapping[str, Any]) -> TaskMemory:
    means = [Mean(_point(point), jobs, step, sync) for point, jobs, step, sync in stored["seen"]]
    return TaskMemory(
        {configuration_of(mean.point): mean for mean in means},
        {int(stage): value for stage, value in stored["noise"]},
        list(stored["works"]),
        [(before, work) for before, work in stored.get("cut_off", ())],
        {job_id: _reported_of(*reported) for job_id, reported in stored["told"].items()},
    )


@lru_cache(maxsize=65536)
def _name(configuration: Configuration) -> str:
    return "/".join(map(str, configuration)).removesuffix("/")


def configuration_of(point: ProfilePoint) -> Configuration:
    partition = "" if point.layout is None or is_plain(point.layout) else name_of(point.layout)
    exchange = "" if point.comm == EXACT or point.num_slots == 1 else f"@{point.comm}"
    return point.num_slots, point.num_nodes, point.type, point.local_batch, point.accumulation, partition + exchange


def stage_of(done: float) -> int:
    """The octave of the work done."""
    return int(np.log2(done + 1.0))
