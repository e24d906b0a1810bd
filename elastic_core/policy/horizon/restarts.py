"""What a change of slots costs a job of `horizon`: its restart, set against the time that the new allocation will last.

A start or a growth pays its restart out of the time until the job ends or is expected to be moved again. Who gives up
slots for a shorter job wants them back when that one is done: it is charged the way back over that (short) time too,
so that a job with a long restart is not moved for a moment's gain. How long allocations last is learnt from the job
itself: what was moved often will be moved soon, what has lasted long will last as long again (Lindy's law).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from elastic_core.domain import JobView, Snapshot
from elastic_core.policy.base.knapsack import NOTHING
from elastic_core.policy.base.remaining_distribution import RemainingWork
from elastic_core.predict.speed.throughput import Floats, Ints

STAY = 1200.0  # seconds that an allocation is expected to last before anything is known
STAYS_KNOWN = 3.0  # allocations of the job itself that this counts for
MIN_UNTIL_BACK = 60.0  # seconds: nobody has slots back sooner
MIN_RESTART = 0.1  # seconds: no resize is free, so that of equal plans the one in force stays
MIN_KEPT = 0.05  # of an option's value that a start keeps, however long its restart: idle slots serve nobody


def restart_seconds_of(jobs: Sequence[JobView]) -> Floats:
    """Seconds that a resize of each job takes."""
    return np.asarray([max(job.resize_seconds, MIN_RESTART) for job in jobs])


def expected_stays(snapshot: Snapshot) -> Floats:
    """Seconds that an allocation of each job can be expected to last."""
    since_last_arrival = snapshot.now - max(job.submitted_at for job in snapshot.jobs)  # newcomers move others
    expected = []
    for job in snapshot.jobs:
        past = (STAYS_KNOWN * STAY + snapshot.now - job.submitted_at) / (STAYS_KNOWN + job.num_resizes)
        lasted = snapshot.now - job.allocated_since if job.allocation and job.allocated_since is not None else 0.0
        expected.append(max(past, lasted, since_last_arrival))
    return np.asarray(expected)


def seconds_to_pay_over(
    left: RemainingWork, remaining_seconds: Floats, restart_seconds: Floats, stay: Floats
) -> Floats:
    """Seconds that a new allocation is expected to last, the restart in it, by job and option: until the job ends or
    is moved. A job that may end at any moment is expected to hold it for less than until it ends on average."""
    restart = restart_seconds[:, None]
    lasting = np.minimum(remaining_seconds + restart, stay[:, None])
    for row in np.flatnonzero(left.quantiles[:, 0] < left.quantiles[:, -1]):
        per_second = left.mean[row] / remaining_seconds[row]
        usable = np.isfinite(remaining_seconds[row]) & (per_second > 0)
        until_moved = np.maximum(stay[row] - restart[row], 0.0)
        trained = left.within(int(row), until_moved * per_second[usable]) / per_second[usable]
        lasting[row, usable] = np.minimum(trained + restart[row], stay[row])
    return lasting


def seconds_until_back(remaining_seconds: Floats, shares: Floats) -> Floats:
    """Seconds after which each job can expect to have back what shorter ones take of it: when they are done.

    One after the other with all of the pool (`shares`: of it, by option), or all at once, whichever takes longer.
    """
    shortest, share_used = remaining_seconds.min(axis=1), shares[remaining_seconds.argmin(axis=1)]
    order = np.argsort(shortest, kind="stable")
    finite = np.where(np.isfinite(shortest), shortest, 0.0)[order]
    num_shorter = np.arange(len(order))
    in_turn = np.cumsum(finite * share_used[order]) - finite * share_used[order]
    at_once = (np.cumsum(finite) - finite) / np.maximum(num_shorter, 1)
    until_back = np.empty(len(order))
    until_back[order] = np.where(num_shorter > 0, np.clip(np.maximum(in_turn, at_once), MIN_UNTIL_BACK, STAY), STAY)
    return until_back


def values_less_restarts(
    price: Floats, goodput: Floats, remaining_seconds: Floats, held: Ints,
    restart_seconds: Floats, stay: Floats, until_back: Floats, lasting: Floats,
) -> Floats:  # fmt: skip
    """Value of each option to each job: the rate at which completion times fall, less restarts. Above what it is worth
    to have nothing, which for a job that runs is another start (`restart_seconds`) when it has slots back.

    `lasting`: of `seconds_to_pay_over`."""
    rows, runs = np.arange(len(goodput)), held != NOTHING
    now_at = np.where(runs, goodput[rows, held], 0.0)
    grows = goodput > now_at[:, None]
    cost = restart_seconds[:, None] / np.maximum(lasting, 1e-9)
    values = price[:, None] * goodput * np.maximum(1.0 - cost, np.where(runs, 0.0, MIN_KEPT)[:, None])
    until_back = np.minimum(until_back, stay)
    value_of_restart = (price * now_at * restart_seconds / until_back)[:, None]
    needed_back = np.minimum(remaining_seconds / until_back[:, None], 1.0)  # who is done by then needs nothing back
    values = values - np.where(grows, 0.0, value_of_restart * needed_back)
    values[rows[runs], held[runs]] = (price * now_at)[runs]
    return np.where(goodput > 0, values + value_of_restart, 0.0)
