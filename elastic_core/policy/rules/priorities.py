"""Priorities: a job of lower priority holds no slots that would start a waiting one of higher priority.

Slots are taken only where that starts the job on its smallest count: growth of a higher priority stops nobody. Above
the smallest counts a priority weighs in the objective, twice as much for every `DOUBLING` points; among equals the
objective decides as if there were none. A deadline claims inside its priority (`policy.rules.urgency`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from elastic_core.domain import JobView, PutFirst
from elastic_core.policy.base.knapsack import NOTHING
from elastic_core.policy.rules.claims import ClaimContext
from elastic_core.policy.rules.division import Division, PreemptionTerms
from elastic_core.predict.speed.throughput import Floats, Ints

DOUBLING = 10.0  # points of priority that double the weight of a job's work

Reclaimable = Callable[[Division, int], tuple[Ints, Floats]]  # to a row: what queues may lose (`policy.rules.quotas`)


def weights(jobs: Sequence[JobView]) -> Floats | None:
    """Of each job's values; None where all are alike."""
    priorities = np.asarray([job.priority for job in jobs])
    if len(jobs) == 0 or (priorities == priorities[0]).all():
        return None
    weight: Floats = 2.0 ** ((priorities - priorities.max()) / DOUBLING)
    return weight


def start_waiting(context: ClaimContext, division: Division, level: int, reclaimable: Reclaimable) -> None:
    """Start the waiting jobs of one priority on what lower ones hold."""
    priorities = context.priorities()
    lower = priorities < level
    if not lower.any():
        return
    start_value = context.best_start_value()
    rows = np.flatnonzero((priorities == level) & (division.chosen == NOTHING) & (start_value > 0))
    for row in rows[np.lexsort((rows, -start_value[rows]))]:
        counts = division.counts()
        queue_of, lendable = reclaimable(division, int(row))
        terms = PreemptionTerms(
            np.where(lower, np.minimum(division.spoken_for, counts), counts),
            priorities.astype(np.float64),
            queue_of,
            lendable,
        )
        division.claim(int(row), context.start_options(division, int(row)), terms, PutFirst.PRIORITY)
