"""No starvation: who has waited for `PATIENCE` gets its smallest count, whatever the others are worth, for one `TURN`.

Waiting jobs that are overdue are served in the order of their waiting; none passes an older one. Turns together hold
at most `MOST` of a type's slots (always one job's), so that a pool with far too much to do does not only take turns.
Hence the bound: a job waits at most PATIENCE, and one TURN for each job that is overdue longer. In `Plan.state`: whose
turn it is, and since when it runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from elastic_core.domain import JobView, Snapshot
from elastic_core.policy.claims import Case
from elastic_core.policy.division import Division, Terms
from elastic_core.policy.knapsack import NOTHING
from elastic_core.policy.words import span
from elastic_core.predict.throughput import Ints

PATIENCE = 8 * 3600.0
TURN = 1800.0
MOST = 0.25  # of the slots of a type

Turns = dict[str, float | None]  # job -> since when it runs; None: not yet


def recall(snapshot: Snapshot) -> Turns:
    """The turns that still go on."""
    known: Mapping[str, Any] = snapshot.policy_state.get("turns", {})
    turns: Turns = {}
    for job in snapshot.jobs:
        if job.job_id in known:
            since = known[job.job_id]
            since = snapshot.now if since is None and job.allocation is not None else since
            if since is None or snapshot.now - since < TURN:
                turns[job.job_id] = since
    return turns


def waited(job: JobView, now: float) -> float:
    return now - job.waiting_since if job.allocation is None and job.waiting_since is not None else 0.0


def overdue(snapshot: Snapshot) -> bool:
    return any(waited(job, snapshot.now) >= PATIENCE for job in snapshot.jobs)


def take_turns(case: Case, division: Division, turns: Turns) -> None:
    """Keep those whose turn it is on their smallest count, then serve the overdue. New turns are added to `turns`."""
    held = np.zeros(len(case.options.kinds))
    for row, job in enumerate(case.jobs):
        if turns.get(job.job_id) is not None and case.held[row] != NOTHING:
            _serve(case, division, row, "its turn, after a long wait")
            held += _slots(division, row)
    for row in _overdue(case):
        job = case.jobs[row]
        before = division.chosen.copy()
        long = span(waited(job, case.now))
        fits = _serve(case, division, row, f"waited {long}: started whatever the others are worth")
        if not fits or (held.any() and (held + _slots(division, row) > MOST * case.options.capacity).any()):
            division.chosen = before
            division.floors[row] = 0
            return
        held += _slots(division, row)
        turns.setdefault(job.job_id, None)


def _overdue(case: Case) -> list[int]:
    """The longest wait first. Who needs more than the pool has (now that nodes are away) keeps nobody waiting."""
    could_run = case.starts().max(axis=1) > 0
    rows = [row for row, job in enumerate(case.jobs) if could_run[row] and waited(job, case.now) >= PATIENCE]
    return sorted(rows, key=lambda row: (case.jobs[row].waiting_since, row))


def _serve(case: Case, division: Division, row: int, note: str) -> bool:
    """At least the smallest count, from anybody that no rule has spoken for."""
    least = case.jobs[row].limits.min_slots
    if division.chosen[row] == NOTHING:
        keeps = np.minimum(division.floors, division.counts())
        anything = np.full((1, len(case.options.kinds)), np.inf)
        terms = Terms(keeps, np.zeros(len(keeps)), np.zeros(len(keeps), dtype=np.int64), anything)
        if not division.take(row, division.least(row, least), terms, note):
            return False
    division.floors[row] = least
    return True


def _slots(division: Division, row: int) -> Ints:
    slots = np.zeros(len(division.options.kinds), dtype=np.int64)
    if division.chosen[row] != NOTHING:
        slots[division.kinds()[row]] = division.floors[row]
    return slots
