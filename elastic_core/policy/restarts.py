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
from elastic_core.policy.knapsack import NOTHING
from elastic_core.predict.throughput import Floats, Ints

STAY = 1200.0  # seconds that an allocation is expected to last before anything is known
STAYS_KNOWN = 3.0  # allocations of the job itself that this counts for
LEAST_BACK = 60.0  # seconds: nobody has slots back sooner
LEAST_PAUSE = 0.1  # seconds: no resize is free, so that of equal plans the one in force stays
LEAST_KEEP = 0.05  # of an option's value that a start keeps, however long its restart: idle slots serve nobody


def pauses(jobs: Sequence[JobView]) -> Floats:
    """Seconds that a resize of each job takes."""
    return np.asarray([max(job.resize_seconds, LEAST_PAUSE) for job in jobs])


def stays(snapshot: Snapshot) -> Floats:
    """Seconds that an allocation of each job can be expected to last."""
    quiet = snapshot.now - max(job.submitted_at for job in snapshot.jobs)  # newcomers are what moves others
    found = []
    for job in snapshot.jobs:
        past = (STAYS_KNOWN * STAY + snapshot.now - job.submitted_at) / (STAYS_KNOWN + job.num_resizes)
        lasted = snapshot.now - job.allocated_since if job.allocation and job.allocated_since is not None else 0.0
        found.append(max(past, lasted, quiet))
    return np.asarray(found)


def slots_back(need: Floats, part: Floats) -> Floats:
    """Seconds after which each job can expect to have back what shorter ones take of it: when they are done.

    One after the other with all of the pool (`part`: of it, by option), or all at once, whichever takes longer.
    """
    shortest, uses = need.min(axis=1), part[need.argmin(axis=1)]
    order = np.argsort(shortest, kind="stable")
    known = np.where(np.isfinite(shortest), shortest, 0.0)[order]
    before = np.arange(len(order))
    in_turn = np.cumsum(known * uses[order]) - known * uses[order]
    at_once = (np.cumsum(known) - known) / np.maximum(before, 1)
    back = np.empty(len(order))
    back[order] = np.where(before > 0, np.clip(np.maximum(in_turn, at_once), LEAST_BACK, STAY), STAY)
    return back


def charged(
    price: Floats, goodput: Floats, need: Floats, held: Ints, pause: Floats, stay: Floats, back: Floats
) -> Floats:  # fmt: skip
    """Value of each option to each job: the rate at which completion times fall, less restarts. Above what it is worth
    to have nothing, which for a job that runs is another start (`pause`) when it has slots back."""
    rows, runs = np.arange(len(goodput)), held != NOTHING
    now_at = np.where(runs, goodput[rows, held], 0.0)
    grows = goodput > now_at[:, None]
    cost = pause[:, None] / np.maximum(np.minimum(need + pause[:, None], stay[:, None]), 1e-9)
    values = price[:, None] * goodput * np.maximum(1.0 - cost, np.where(runs, 0.0, LEAST_KEEP)[:, None])
    back = np.minimum(back, stay)
    again = (price * now_at * pause / back)[:, None]
    lasting = np.minimum(need / back[:, None], 1.0)  # who is done by then needs nothing back
    values = values - np.where(grows, 0.0, again * lasting)
    values[rows[runs], held[runs]] = (price * now_at)[runs]
    return np.where(goodput > 0, values + again, 0.0)
