"""No flapping: within `WINDOW` a running job is not moved back to what it just left, nor stopped when it just started.

Unless the set of jobs or the capacity changed meanwhile: then what was right before may be right again. New
measurements alone move a job on, not to and fro. Who was stopped may start again, on anything: idle slots serve
nobody. In `Plan.state`: what each job was last given, what it left within the window, and what crowd that was in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np

from elastic_core.domain import JobView, Snapshot, Target
from elastic_core.policy.claims import Case
from elastic_core.policy.division import Division, Terms
from elastic_core.policy.knapsack import NOTHING
from elastic_core.predict.throughput import Floats, Ints

WINDOW = 300.0

_Left = tuple[str, int, float]  # type, slots (0 for none), when


@dataclass
class Moves:
    crowd: str
    last: dict[str, tuple[str, int]] = field(default_factory=dict)
    left: dict[str, list[_Left]] = field(default_factory=dict)

    def store(self, targets: Mapping[str, Target], now: float) -> dict[str, Any]:
        last, left = {}, {}
        for job_id, target in targets.items():
            last[job_id] = next(iter(target.wanted.items()), ("", 0))
            gone = list(self.left.get(job_id, ()))
            if self.last[job_id] != last[job_id]:
                gone.append((*self.last[job_id], now))
            if gone:
                left[job_id] = [list(one) for one in gone]
        return {"crowd": self.crowd, "last": {job: list(one) for job, one in last.items()}, "left": left}


def recall(snapshot: Snapshot) -> Moves:
    known = snapshot.policy_state.get("moves", {})
    crowd = _crowd(snapshot)
    before = known.get("last", {})
    last = {job.job_id: before.get(job.job_id) or _held(job) for job in snapshot.jobs}
    moves = Moves(crowd, {job: (kind, count) for job, (kind, count) in last.items()})
    if known.get("crowd") == crowd:
        for job, gone in known["left"].items():
            recent = [(kind, count, at) for kind, count, at in gone if snapshot.now - at < WINDOW]
            if recent:
                moves.left[job] = recent
    return moves


def _held(job: JobView) -> tuple[str, int]:
    counts = job.allocation.counts() if job.allocation is not None else {}
    return next(iter(counts.items())) if len(counts) == 1 else ("", 0)


def _crowd(snapshot: Snapshot) -> str:
    names = sorted(job.job_id for job in snapshot.jobs)
    capacity = sorted(snapshot.capacity().items())
    return sha256(repr((names, capacity)).encode()).hexdigest()[:16]


def without_returns(moves: Moves, case: Case) -> Floats:
    """The values, with nothing for what a running job would only go back to."""
    values = case.values
    for row, option in _returns(moves, case):
        values = values.copy() if values is case.values else values
        values[row, option] = 0.0
    return values


def _returns(moves: Moves, case: Case) -> list[tuple[int, int]]:
    if not moves.left:
        return []
    found = []
    for row in np.flatnonzero(case.held != NOTHING).tolist():
        for kind, count, _ in moves.left.get(case.jobs[row].job_id, ()):
            option = case.options.index(kind, count) if count else None
            if option is not None and option != case.held[row]:
                found.append((row, option))
    return found


def started(moves: Moves, case: Case, now_held: Ints) -> list[int]:
    """Running jobs that had nothing before, or have nothing now where `case` looks ahead."""
    return [
        row
        for row in np.flatnonzero(case.held != NOTHING).tolist()
        if now_held[row] == NOTHING or any(not count for _, count, _ in moves.left.get(case.jobs[row].job_id, ()))
    ]


def keep_started(case: Case, division: Division, moves: Moves, now_held: Ints) -> None:
    """None of the jobs that just started is stopped. Where some were moved into each other's way, all stay as they are.

    Looking ahead (`policy.claims.settle`) as well: what this decision starts, the next one may not stop either.
    """
    rows = started(moves, case, now_held)
    if not all(_goes_on(case, division, rows, row) for row in rows):
        division.chosen[list(rows)] = NOTHING
        for row in rows:  # what they hold fits side by side
            division.take(row, [int(case.held[row])], _from_others(case, division, rows), "just started")
    for row in rows:
        if division.chosen[row] != NOTHING:
            division.floors[row] = case.jobs[row].limits.min_slots


def _goes_on(case: Case, division: Division, rows: Sequence[int], row: int) -> bool:
    if division.chosen[row] != NOTHING:
        return True
    least = division.least(row, case.jobs[row].limits.min_slots)
    return division.take(row, [*_own(case, row), *least], _from_others(case, division, rows), "just started")


def _own(case: Case, row: int) -> list[int]:
    return [int(case.held[row])] if case.held[row] != NOTHING else []


def _from_others(case: Case, division: Division, rows: Sequence[int]) -> Terms:
    keeps: Ints = np.zeros(len(division.chosen), dtype=np.int64)
    keeps[list(rows)] = np.minimum(division.counts(), case.minima())[list(rows)]
    anything = np.full((1, len(division.options.kinds)), np.inf)
    return Terms(keeps, np.zeros(len(keeps)), np.zeros(len(keeps), dtype=np.int64), anything)
