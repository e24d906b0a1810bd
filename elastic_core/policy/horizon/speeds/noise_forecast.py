"""The time that work to come takes, where the gradient noise changes on the way.

Noise grows as a model learns, and with it what a large batch, and so many slots, are worth. A job that has just begun
does not show it yet; the jobs of its task before it have (`TaskMemory.noise`, by octaves of the work done). Without
this a new job looks slow and content with few slots, and grows step by step, a restart each time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from elastic_core.policy.task_memory.measurements import stage_of
from elastic_core.predict.speed.throughput import Floats

LEAST_SHARE = 0.02  # of the work left: what an octave must hold not to be counted with the next

Stretch = tuple[Floats, Floats]  # (work by job, work a second by job and option)


def stretches(now: Floats, done: Floats, remaining_work: Floats, later: Mapping[int, Floats]) -> list[Stretch]:
    """The remaining work in turn. `now`: work a second of each job (rows) at the noise that it has; `later`: at the
    noise of an octave, one row for all jobs or one for each. An octave that nobody has seen is like the one before."""
    own_stage = np.asarray([stage_of(work) for work in done])
    total = done + remaining_work
    ahead: list[Stretch] = []
    pending = np.zeros_like(remaining_work)
    for stage in range(int(own_stage.min()), int(stage_of(float(total.max()))) + 1):
        start, end = np.maximum(done, 2.0**stage - 1.0), np.minimum(total, 2.0 ** (stage + 1) - 1.0)
        pending = pending + np.maximum(end - start, 0.0)
        if (pending > LEAST_SHARE * remaining_work).any():
            latest_seen = max((octave for octave in later if octave <= stage), default=None)
            rate = now
            if latest_seen is not None:
                rate = np.where((latest_seen > own_stage)[:, None], later[latest_seen], now)
            ahead.append((pending, rate))
            pending = np.zeros_like(remaining_work)
    return [*ahead[:-1], (ahead[-1][0] + pending, ahead[-1][1])]


def total_seconds(work_ahead: Sequence[Stretch]) -> Floats:
    """That all of it takes, by job and option; infinite where a job may not run."""
    with np.errstate(divide="ignore", invalid="ignore"):
        total: Floats = np.sum([np.where(rate > 0, work[:, None] / rate, np.inf) for work, rate in work_ahead], axis=0)
    return total


def mean_rate(work_ahead: Sequence[Stretch], window: float) -> Floats:
    """Over the next `window` seconds, or until the job is done if that is sooner."""
    spent, done = np.zeros_like(work_ahead[0][1]), np.zeros_like(work_ahead[0][1])
    for work, rate in work_ahead:
        with np.errstate(divide="ignore", invalid="ignore"):
            seconds_here = np.where(rate > 0, np.minimum(work[:, None] / rate, window - spent), 0.0)
        spent, done = spent + seconds_here, done + seconds_here * rate
    return np.where(spent > 0, done / np.maximum(spent, 1e-9), 0.0)
