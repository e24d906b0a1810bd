"""What is known of a job when it is submitted, as numbers that a classifier can learn from.

Never an outcome: final loss and accuracy, running time and throughput are the answer in disguise. Beside the plain
figures there are the ratios that mean the same for jobs of every size (samples of a run, batch a worker, memory a
GPU), in logarithms, so that what is learnt of one combination of figures carries over to one never seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """Everything but the task may be unknown: NaN."""

    task: str  # job type, entry point: a category
    workers: float = np.nan
    servers: float = np.nan
    epochs: float = np.nan
    steps: float = np.nan  # of an epoch
    batch: float = np.nan
    learning_rate: float = np.nan
    gpus: float = np.nan
    memory_gb: float = np.nan
    cpus: float = np.nan
    resubmitted: float = np.nan  # 1 where the same job was submitted before, else 0
    has_target: float = np.nan  # 1 where a loss ends it, else 0
    patience: float = np.nan  # evaluations without a better metric that end it; 0 where none do


PLAIN = (
    "workers", "servers", "epochs", "steps", "batch", "learning_rate", "gpus", "memory_gb", "cpus", "resubmitted",
    "has_target", "patience",
)  # fmt: skip
LOGGED = ("epochs", "steps", "batch", "learning_rate", "memory_gb", "cpus")
NAMES = (
    "task",
    *PLAIN,
    *(f"log_{name}" for name in LOGGED),
    "log_total_steps",
    "log_total_samples",
    "log_samples_an_epoch",
    "log_batch_a_worker",
    "log_learning_rate_times_batch",
    "log_learning_rate_over_batch",
    "memory_a_gpu",
    "cpus_a_gpu",
    "workers_a_server",
    "all_gpus",
)


def tasks_of(submissions: Sequence[Submission], most: int = 250) -> tuple[str, ...]:
    """The categories of `task`, the most frequent first."""
    counts: dict[str, int] = {}
    for submission in submissions:
        counts[submission.task] = counts.get(submission.task, 0) + 1
    return tuple(sorted(counts, key=lambda task: (-counts[task], task))[:most])


def table(submissions: Sequence[Submission], tasks: Sequence[str]) -> Floats:
    """One row a submission, one column a name of `NAMES`; a task that is none of `tasks` is NaN."""
    code = {task: float(i) for i, task in enumerate(tasks)}
    task = np.asarray([code.get(s.task, np.nan) for s in submissions])
    raw = {name: np.asarray([getattr(s, name) for s in submissions], dtype=np.float64) for name in PLAIN}
    with np.errstate(divide="ignore", invalid="ignore"):
        log = {name: _finite(np.log(raw[name])) for name in LOGGED}
        columns = [
            task,
            *raw.values(),
            *log.values(),
            log["epochs"] + log["steps"],
            log["epochs"] + log["steps"] + log["batch"],
            log["steps"] + log["batch"],
            log["batch"] - _finite(np.log(raw["workers"])),
            log["learning_rate"] + log["batch"],
            log["learning_rate"] - log["batch"],
            raw["memory_gb"] / (raw["gpus"] + 0.5),  # half a GPU: jobs that use none are a case of their own
            raw["cpus"] / (raw["gpus"] + 0.5),
            raw["workers"] / (raw["servers"] + 0.5),
            raw["gpus"] * raw["workers"],
        ]
    return _finite(np.column_stack(columns))


def _finite(values: Floats) -> Floats:
    return np.where(np.isfinite(values), values, np.nan)
