"""Guaranteed shares of queues, with borrowing: what a queue leaves unused, others use until it asks.

A waiting job starts while its queue, with it, is within its guarantee; and a queue whose jobs would be worth more on
its guarantee alone, as a pool of its own, gets what they would have there (sharing costs nobody anything). Both take
from queues that hold more than theirs: cheapest restart first, shrinking or stopping. Nobody else takes from what a
queue holds within its guarantee. Guarantees shrink in proportion while nodes are away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from elastic_core.domain import JobView, Queue
from elastic_core.policy.claims import Case
from elastic_core.policy.division import Division, Terms
from elastic_core.policy.knapsack import NOTHING
from elastic_core.policy.outlook import Options
from elastic_core.predict.throughput import Floats, Ints

OwnPool = Callable[[Floats, Ints], Ints]  # (values, capacity by type) -> choices: the objective on a pool of its own
_LEAST_GAIN = 1e-6  # relative


@dataclass(frozen=True)
class Shares:
    """Rows of `guaranteed` are queues, the last one all that have no share; columns are types."""

    group: Ints  # of each job
    guaranteed: Ints

    @staticmethod
    def of(queues: Sequence[Queue], jobs: Sequence[JobView], options: Options) -> Shares:
        number = {queue.name: index for index, queue in enumerate(queues)}
        group = np.asarray([number.get(job.queue, len(queues)) for job in jobs], dtype=np.int64)
        promised = np.zeros((len(queues) + 1, len(options.kinds)), dtype=np.int64)
        for row, queue in enumerate(queues):
            promised[row] = [queue.guaranteed.get(kind, 0) for kind in options.kinds]
        there = np.minimum(1.0, options.capacity / np.maximum(promised.sum(axis=0), 1))
        return Shares(group, np.floor(promised * there + 1e-9).astype(np.int64))

    def used(self, division: Division) -> Ints:
        used = np.zeros_like(self.guaranteed)
        runs = division.chosen != NOTHING
        np.add.at(used, (self.group[runs], division.kinds()[runs]), division.counts()[runs])
        return used

    def lends(self, division: Division, row: int) -> tuple[Ints, Floats]:
        """(queue of each job, what each may lose to this one): its own queue anything, others what they borrow."""
        lent = np.maximum(self.used(division) - self.guaranteed, 0).astype(np.float64)
        lent[self.group[row]] = np.inf
        return self.group, lent


def give_back(case: Case, division: Division, shares: Shares, own_pool: OwnPool) -> None:
    for queue in range(len(shares.guaranteed) - 1):
        rows = np.flatnonzero(shares.group == queue)
        if len(rows):
            _start(case, division, shares, rows)
            _grow(case, division, shares, rows, own_pool(case.values[rows], shares.guaranteed[queue]))


def _start(case: Case, division: Division, shares: Shares, rows: Ints) -> None:
    best, priorities = case.best_start(), case.priorities()
    waiting = rows[(division.chosen[rows] == NOTHING) & (best[rows] > 0)]
    for row in waiting[np.lexsort((waiting, -best[waiting], -priorities[waiting]))]:
        _claim(case, division, shares, int(row), division.least(int(row), case.jobs[row].limits.min_slots))


def _grow(case: Case, division: Division, shares: Shares, rows: Ints, alone: Ints) -> None:
    """`alone`: what each of the rows would have on the queue's guarantee alone."""
    worth = np.where(alone != NOTHING, case.values[rows, alone], 0.0)
    has = np.asarray([division.value(int(row)) for row in rows])
    if has.sum() >= worth.sum() * (1.0 - _LEAST_GAIN):
        return
    for index in np.argsort(has - worth, kind="stable"):
        if worth[index] > has[index]:
            _claim(case, division, shares, int(rows[index]), [int(alone[index])])


def _claim(case: Case, division: Division, shares: Shares, row: int, wanted: Sequence[int]) -> None:
    queue = int(shares.group[row])
    room = shares.guaranteed[queue] - shares.used(division)[queue]
    counts, kinds = division.counts(), division.kinds()
    options = case.options
    within = [
        option
        for option in wanted
        if options.counts[option] - (counts[row] if kinds[row] == options.kind_index[option] else 0)
        <= room[options.kind_index[option]]
    ]
    _, lent = shares.lends(division, row)
    lent[queue] = 0.0
    restart = np.where(case.held != NOTHING, case.pause, 0.0)
    terms = Terms(np.minimum(division.floors, counts), restart, shares.group, lent, excess=True)
    division.take(row, within, terms, f"within the guaranteed share of queue {case.jobs[row].queue}")
