"""Guaranteed shares of queues, with borrowing: what a queue leaves unused, others use until it is reclaimed.

A waiting job starts while its queue, with it, is within its guarantee; and a queue whose jobs would be worth more on
its guarantee alone, as a pool of its own, gets what they would have there (sharing costs nobody anything). Both take
from queues that hold more than theirs: cheapest restart first, shrinking or stopping. Nobody else takes from what a
queue holds within its guarantee. Guarantees shrink in proportion while nodes are away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from elastic_core.domain import JobView, PutFirst, Queue
from elastic_core.policy.base.knapsack import NOTHING
from elastic_core.policy.base.options import Options
from elastic_core.policy.rules.claims import ClaimContext
from elastic_core.policy.rules.division import Division, PreemptionTerms
from elastic_core.predict.speed.throughput import Floats, Ints

OwnPool = Callable[[Floats, Ints], Ints]  # (values, capacity by type) -> choices: the objective on a pool of its own
_LEAST_GAIN = 1e-6  # relative


@dataclass(frozen=True)
class QueueQuotas:
    """Rows of `guaranteed` are queues, the last one all that have no share; columns are types."""

    queue_of: Ints  # of each job
    guaranteed: Ints

    @staticmethod
    def of(queues: Sequence[Queue], jobs: Sequence[JobView], options: Options) -> QueueQuotas:
        number = {queue.name: index for index, queue in enumerate(queues)}
        queue_of = np.asarray([number.get(job.queue, len(queues)) for job in jobs], dtype=np.int64)
        configured = np.zeros((len(queues) + 1, len(options.kinds)), dtype=np.int64)
        for row, queue in enumerate(queues):
            configured[row] = [queue.guaranteed.get(kind, 0) for kind in options.kinds]
        present_share = np.minimum(1.0, options.capacity / np.maximum(configured.sum(axis=0), 1))
        return QueueQuotas(queue_of, np.floor(configured * present_share + 1e-9).astype(np.int64))

    def used(self, division: Division) -> Ints:
        used = np.zeros_like(self.guaranteed)
        runs = division.chosen != NOTHING
        np.add.at(used, self.queue_of[runs], division.use()[runs])
        return used

    def reclaimable(self, division: Division, row: int) -> tuple[Ints, Floats]:
        """(queue of each job, what each may lose to this one): its own queue anything, others what they borrow."""
        lendable = np.maximum(self.used(division) - self.guaranteed, 0).astype(np.float64)
        lendable[self.queue_of[row]] = np.inf
        return self.queue_of, lendable


def reclaim_guarantees(context: ClaimContext, division: Division, quotas: QueueQuotas, own_pool: OwnPool) -> None:
    for queue in range(len(quotas.guaranteed) - 1):
        rows = np.flatnonzero(quotas.queue_of == queue)
        if len(rows):
            _start_waiting(context, division, quotas, rows)
            _grow_to_guarantee(
                context, division, quotas, rows, own_pool(context.values[rows], quotas.guaranteed[queue])
            )


def _start_waiting(context: ClaimContext, division: Division, quotas: QueueQuotas, rows: Ints) -> None:
    best, priorities = context.best_start_value(), context.priorities()
    waiting = rows[(division.chosen[rows] == NOTHING) & (best[rows] > 0)]
    for row in waiting[np.lexsort((waiting, -best[waiting], -priorities[waiting]))]:
        _claim_within_guarantee(context, division, quotas, int(row), context.start_options(division, int(row)))


def _grow_to_guarantee(
    context: ClaimContext, division: Division, quotas: QueueQuotas, rows: Ints, on_guarantee: Ints
) -> None:
    """`on_guarantee`: what each of the rows would have on the queue's guarantee alone."""
    own_value = np.where(on_guarantee != NOTHING, context.values[rows, on_guarantee], 0.0)
    value_now = np.asarray([division.value(int(row)) for row in rows])
    if value_now.sum() >= own_value.sum() * (1.0 - _LEAST_GAIN):
        return
    for index in np.argsort(value_now - own_value, kind="stable"):
        if own_value[index] > value_now[index]:
            _claim_within_guarantee(context, division, quotas, int(rows[index]), [int(on_guarantee[index])])


def _claim_within_guarantee(
    context: ClaimContext, division: Division, quotas: QueueQuotas, row: int, wanted: Sequence[int]
) -> None:
    queue = int(quotas.queue_of[row])
    unused = quotas.guaranteed[queue] - quotas.used(division)[queue]
    counts, own, use = division.counts(), division.use()[row], context.options.use
    within = [option for option in wanted if ((use[option] == 0) | (use[option] - own <= unused)).all()]
    _, lendable = quotas.reclaimable(division, row)
    lendable[queue] = 0.0
    restart = np.where(context.held != NOTHING, context.restart_seconds, 0.0)
    terms = PreemptionTerms(
        np.minimum(division.spoken_for, counts), restart, quotas.queue_of, lendable, may_exceed=True
    )
    division.claim(row, within, terms, PutFirst.GUARANTEE)
