"""Priorities: a job of lower priority holds no slots that would start a waiting one of higher priority.

Slots are taken only where that starts the job on its smallest count: growth of a higher priority stops nobody. Above
the smallest counts a priority weighs in the objective, twice as much for every `DOUBLING` points; among equals the
objective decides as if there were none. A deadline claims inside its priority (`policy.urgency`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from elastic_core.domain import JobView
from elastic_core.policy.claims import Case
from elastic_core.policy.division import Division, Terms
from elastic_core.policy.knapsack import NOTHING
from elastic_core.predict.throughput import Floats, Ints

DOUBLING = 10.0  # points of priority that double the weight of a job's work

Lends = Callable[[Division, int], tuple[Ints, Floats]]  # to a row: what queues may lose (`policy.quotas`)


def weights(jobs: Sequence[JobView]) -> Floats | None:
    """Of each job's values; None where all are alike."""
    priorities = np.asarray([job.priority for job in jobs])
    if len(jobs) == 0 or (priorities == priorities[0]).all():
        return None
    weight: Floats = 2.0 ** ((priorities - priorities.max()) / DOUBLING)
    return weight


def start_waiting(case: Case, division: Division, level: int, lends: Lends) -> None:
    """Start the waiting jobs of one priority on what lower ones hold."""
    priorities = case.priorities()
    lower = priorities < level
    if not lower.any():
        return
    best = case.best_start()
    rows = np.flatnonzero((priorities == level) & (division.chosen == NOTHING) & (best > 0))
    for row in rows[np.lexsort((rows, -best[rows]))]:
        counts = division.counts()
        group, lent = lends(division, int(row))
        terms = Terms(
            np.where(lower, np.minimum(division.floors, counts), counts), priorities.astype(np.float64), group, lent
        )
        note = f"started on what lower priorities held (priority {level})"
        division.take(int(row), division.least(int(row), case.jobs[row].limits.min_slots), terms, note)
