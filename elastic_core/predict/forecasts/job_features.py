"""Jobs as rows of numbers: what is known of them when they are submitted, in a vocabulary that is learnt.

Parameters of tasks have any names. Those that many jobs have become columns: numbers as they are, words by the place
of their frequency. What is absent or unknown is NaN, which the estimators take for a value of its own. Amounts are
logarithms. How a loss compares to others is said relative to where runs of the task began.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, log, nan
from statistics import median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elastic_core.domain import kind_of_work
from elastic_core.protocol.records import FinishedRun, JobDescription

Floats = NDArray[np.float64]

SUBMITTED_NAMES = (
    "task",
    "log_most_samples",
    "log_most_steps",
    "log_most_passes",
    "log_dataset_samples",
    "log_batch",
    "log_slots",
    "log_num_parameters",
    "accelerated",
    "has_target",
    "log_target_loss",
    "log_target_over_first_loss",
    "patience",
)
_MOST_TASKS = 250
_MOST_PARAMS = 24
_MOST_WORDS = 32
_LEAST_SHARE = 0.02  # of the jobs that must have a parameter


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What the columns mean. Plain data: it is stored beside the estimators."""

    tasks: tuple[str, ...]
    numbers: tuple[str, ...]  # names of parameters
    words: Mapping[str, tuple[str, ...]]  # names of parameters, and their values by frequency
    first_losses: Mapping[str, float]  # by task

    @property
    def names(self) -> tuple[str, ...]:
        return (*SUBMITTED_NAMES, *(f"params.{name}" for name in (*self.numbers, *self.words)))


def task_of(job: JobDescription) -> str:
    """What jobs resemble each other by: those of one entry point that count their work in one unit."""
    return kind_of_work(job.entry_point, scale_invariant=job.measure == "progress")


def learn_vocabulary(runs: Sequence[FinishedRun]) -> Vocabulary:
    jobs = [run.description for run in runs]
    kinds: dict[str, Counter[str]] = {}
    for job in jobs:
        for name, value in job.params.items():
            if isinstance(value, bool | int | float | str):
                kinds.setdefault(name, Counter())[value if isinstance(value, str) else ""] += 1
    least = max(_LEAST_SHARE * len(jobs), 2.0)
    often = sorted((name for name, seen in kinds.items() if seen.total() >= least), key=lambda n: -kinds[n].total())
    chosen = sorted(often[:_MOST_PARAMS])
    first: dict[str, list[float]] = {}
    for run in runs:
        if run.losses and isfinite(run.losses[0][1]):
            first.setdefault(task_of(run.description), []).append(run.losses[0][1])
    return Vocabulary(
        tasks=_by_frequency(Counter(task_of(job) for job in jobs), _MOST_TASKS),
        numbers=tuple(name for name in chosen if set(kinds[name]) == {""}),
        words={name: _by_frequency(kinds[name], _MOST_WORDS) for name in chosen if set(kinds[name]) != {""}},
        first_losses={task: median(losses) for task, losses in first.items()},
    )


def _by_frequency(counts: Counter[str], most: int) -> tuple[str, ...]:
    return tuple(sorted(counts, key=lambda value: (-counts[value], value))[:most])


def submitted_table(jobs: Sequence[JobDescription], known: Vocabulary) -> Floats:
    """One row a job, one column a name of `known.names`."""
    tasks = {task: float(place) for place, task in enumerate(known.tasks)}
    words = {name: {word: float(i) for i, word in enumerate(values)} for name, values in known.words.items()}
    rows = [
        [
            tasks.get(task_of(job), nan),
            *_amounts(job, known.first_losses.get(task_of(job))),
            *(_number(job.params.get(name)) for name in known.numbers),
            *(codes.get(str(job.params[name]), nan) if name in job.params else nan for name, codes in words.items()),
        ]
        for job in jobs
    ]
    return np.asarray(rows, dtype=np.float64).reshape(-1, len(known.names))


def _amounts(job: JobDescription, first_loss: float | None) -> list[float]:
    target = job.target_loss
    return [
        safe_log(job.most_samples),
        safe_log(job.most_samples / job.requested_batch),
        safe_log(job.most_samples / max(job.dataset_samples, 1)),
        safe_log(job.dataset_samples),
        safe_log(job.requested_batch),
        safe_log(job.requested_slots),
        safe_log(job.num_parameters),
        nan if job.accelerated is None else float(job.accelerated),
        float(target is not None),
        safe_log(target) if target is not None else nan,
        safe_log(target / first_loss) if target is not None and first_loss is not None and first_loss > 0 else nan,
        nan if job.patience is None else float(job.patience),
    ]


def safe_log(value: float) -> float:
    return log(value) if value > 0 and isfinite(value) else nan


def _number(value: Any) -> float:
    return float(value) if isinstance(value, bool | int | float) else nan
