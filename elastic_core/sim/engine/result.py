"""What a simulation found, and the figures that schedulers are compared by. Times are seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Held:
    """A stretch of one job on the same slots at one batch."""

    job_id: str
    start: float
    end: float
    kind: str
    nodes: Mapping[str, int]  # slots by node
    batch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    job_id: str
    task: str
    submitted_at: float
    started_at: float | None
    finished_at: float | None  # None: not when the simulation ended
    turned_away: bool
    resizes: int  # changes of slots, and restarts, after the first start
    slot_seconds: Mapping[str, float]  # by type
    done: float  # share of its work
    busy_seconds: float = 0.0  # slot-seconds of its workers in which they computed

    @property
    def completion_seconds(self) -> float | None:
        return None if self.finished_at is None else self.finished_at - self.submitted_at


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    policy: str
    workload: str
    seed: int
    jobs: tuple[JobResult, ...]
    capacity: Mapping[str, int]  # slots by type
    ended_at: float
    complete: bool  # False: interrupted, or a time limit was reached
    interrupted: bool = False
    decisions: int
    decision_seconds: tuple[float, ...] = ()  # of each decision
    held: tuple[Held, ...] = ()
    queue: tuple[tuple[float, int, int], ...] = ()  # (instant, running, waiting) after each decision

    def completion_times(self) -> Sequence[float]:
        return [job.completion_seconds for job in self.jobs if job.completion_seconds is not None]

    def figures(self) -> dict[str, Any]:
        """Everything by name; times in seconds, NaN where no job was completed."""
        times = np.asarray(self.completion_times() or [np.nan])
        first = min((job.submitted_at for job in self.jobs), default=0.0)
        ends = [job.finished_at for job in self.jobs if job.finished_at is not None]
        last = max(ends) if ends and self.complete else self.ended_at
        used = sum(sum(job.slot_seconds.values()) for job in self.jobs)
        available = sum(self.capacity.values()) * max(last - first, 1e-9)
        decided = np.asarray(self.decision_seconds or [np.nan])
        started = [job for job in self.jobs if job.started_at is not None]
        return {
            "jobs": len(self.jobs),
            "completed": len(self.completion_times()),
            "turned_away": sum(job.turned_away for job in self.jobs),
            "mean_completion": float(times.mean()),
            "median_completion": float(np.median(times)),
            "p95_completion": float(np.percentile(times, 95)),
            "p99_completion": float(np.percentile(times, 99)),
            "makespan": last - first,
            "slot_hours": used / 3600,
            "slot_hours_per_job": used / 3600 / max(len(self.jobs), 1),
            "utilisation": used / available,
            "resizes_per_job": sum(job.resizes for job in started) / max(len(started), 1),
            "decisions": self.decisions,
            "decision_median": float(np.median(decided)),
            "decision_max": float(decided.max()),
        }

    def completed_by(self, instant: float) -> int:
        return sum(job.finished_at is not None and job.finished_at <= instant for job in self.jobs)


@dataclass(slots=True)
class Recorder:
    """Collects while a simulation runs; `timeline=False` keeps only what the figures need."""

    timeline: bool = True
    held: list[Held] = field(default_factory=list)
    queue: list[tuple[float, int, int]] = field(default_factory=list)
    decision_seconds: list[float] = field(default_factory=list)
