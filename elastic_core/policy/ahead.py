"""The time that work to come takes, where the gradient noise changes on the way.

Noise grows as a model learns, and with it what a large batch, and so many slots, are worth. A job that has just begun
does not show it yet; the jobs of its task before it have (`TaskMemory.noise`, by octaves of the work done). Without
this a new job looks slow and content with few slots, and grows step by step, a restart each time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from elastic_core.policy.memory import stage_of
from elastic_core.predict.throughput import Floats

LEAST_SHARE = 0.02  # of the work left: what an octave must hold not to be counted with the next

Stretch = tuple[Floats, Floats]  # (work by job, goodput by job and option)


def stretches(now: Floats, done: Floats, left: Floats, later: Mapping[int, Floats]) -> list[Stretch]:
    """The work left in turn. `now`: goodput of each job (rows) at the noise that it has; `later`: at the noise of an
    octave, one row for all jobs. An octave that nobody has seen is like the one before it."""
    first = np.asarray([stage_of(one) for one in done])
    total = done + left
    found: list[Stretch] = []
    small = np.zeros_like(left)
    for stage in range(int(first.min()), int(stage_of(float(total.max()))) + 1):
        start, end = np.maximum(done, 2.0**stage - 1.0), np.minimum(total, 2.0 ** (stage + 1) - 1.0)
        small = small + np.maximum(end - start, 0.0)
        if (small > LEAST_SHARE * left).any():
            known = max((one for one in later if one <= stage), default=None)
            ahead = now if known is None else np.where((known > first)[:, None], later[known], now)
            found.append((small, ahead))
            small = np.zeros_like(left)
    return [*found[:-1], (found[-1][0] + small, found[-1][1])]


def seconds(parts: Sequence[Stretch]) -> Floats:
    """That all of it takes, by job and option; infinite where a job may not run."""
    with np.errstate(divide="ignore", invalid="ignore"):
        total: Floats = np.sum([np.where(rate > 0, work[:, None] / rate, np.inf) for work, rate in parts], axis=0)
    return total


def mean_goodput(parts: Sequence[Stretch], window: float) -> Floats:
    """Over the next `window` seconds, or until the job is done if that is sooner."""
    spent, done = np.zeros_like(parts[0][1]), np.zeros_like(parts[0][1])
    for work, rate in parts:
        with np.errstate(divide="ignore", invalid="ignore"):
            takes = np.where(rate > 0, np.minimum(work[:, None] / rate, window - spent), 0.0)
        spent, done = spent + takes, done + takes * rate
    return np.where(spent > 0, done / np.maximum(spent, 1e-9), 0.0)
