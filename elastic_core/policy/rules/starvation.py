"""No starvation: who has waited for `PATIENCE` gets its smallest count, whatever the others are worth, for one `TURN`.

Waiting jobs that are overdue are served in the order of their waiting; none passes an older one. Turns together hold
at most `MOST` of a type's slots (always one job's), so that a pool with far too much to do does not only take turns.
Hence the bound: a job waits at most PATIENCE, and one TURN for each job that is overdue longer. In `Plan.state`: whose
turn it is, and since when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from elastic_core.domain import JobView, PutFirst, Snapshot
from elastic_core.policy.base.knapsack import NOTHING
from elastic_core.policy.rules.claims import ClaimContext
from elastic_core.policy.rules.division import Division, PreemptionTerms
from elastic_core.predict.speed.throughput import Floats, Ints

PATIENCE = 8 * 3600.0
TURN = 1800.0
MOST = 0.25  # of the slots of a type

Turns = dict[str, float | None]  # job -> since when it runs; None: not yet


def recall(snapshot: Snapshot) -> Turns:
    """The turns that still go on."""
    stored: Mapping[str, Any] = snapshot.policy_state.get("turns", {})
    turns: Turns = {}
    for job in snapshot.jobs:
        if job.job_id in stored:
            since = stored[job.job_id]
            since = snapshot.now if since is None and job.allocation is not None else since
            if since is None or snapshot.now - since < TURN:
                turns[job.job_id] = since
    return turns


def waited(job: JobView, now: float) -> float:
    return now - job.waiting_since if job.allocation is None and job.waiting_since is not None else 0.0


def overdue(snapshot: Snapshot) -> bool:
    return any(waited(job, snapshot.now) >= PATIENCE for job in snapshot.jobs)


def take_turns(context: ClaimContext, division: Division, turns: Turns) -> None:
    """Keep those whose turn it is on their smallest count, then serve the overdue. New turns are added to `turns`."""
    held: Floats = np.zeros(len(context.options.kinds))
    for row, job in enumerate(context.jobs):
        if turns.get(job.job_id) is not None and context.held[row] != NOTHING and _serve(context, division, row):
            held += _slots(context, row, int(division.chosen[row]))
    for row in _overdue(context):
        if not _serve(context, division, row, partial(_is_left, context, held, row)):
            return
        held += _slots(context, row, int(division.chosen[row]))
        turns.setdefault(context.jobs[row].job_id, None)


def _overdue(context: ClaimContext) -> list[int]:
    """The longest wait first. Who needs more than the pool has (now that nodes are away) keeps nobody waiting."""
    could_run = context.start_values().max(axis=1) > 0
    rows = [row for row, job in enumerate(context.jobs) if could_run[row] and waited(job, context.now) >= PATIENCE]
    return sorted(rows, key=lambda row: (context.jobs[row].waiting_since, row))


def _serve(context: ClaimContext, division: Division, row: int, is_left: Callable[[int], bool] | None = None) -> bool:
    """At least the smallest count, from anybody that no rule has spoken for; nothing where the option that it has or
    could have is not left to turns."""
    min_slots, has = context.jobs[row].limits.min_slots, int(division.chosen[row])
    if has != NOTHING:
        served = is_left is None or is_left(has)
    else:
        protected = np.minimum(division.spoken_for, division.counts())
        terms = PreemptionTerms.from_anybody(protected, len(context.options.kinds))
        served = division.claim(row, division.options_of(row, min_slots), terms, PutFirst.TURN, is_left)
    if served:
        division.spoken_for[row] = min_slots
    return served


def _is_left(context: ClaimContext, held: Floats, row: int, option: int) -> bool:
    """Whether turns, which hold so many slots of each type, hold no more than they may with this one too."""
    return not held.any() or bool((held + _slots(context, row, option) <= MOST * context.options.capacity).all())


def _slots(context: ClaimContext, row: int, option: int) -> Ints:
    """What a turn holds of each type on this option: its smallest count; of several types all that the option has."""
    use: Ints = context.options.use[option]
    if np.count_nonzero(use) > 1:
        return use
    return np.where(use > 0, context.jobs[row].limits.min_slots, 0)
