"""No flapping: within `WINDOW` a running job is not moved back to what it just left, nor stopped when it just started.

Unless the set of jobs or the capacity changed meanwhile, or it may no longer have what it holds: then what was right
before may be right again. New measurements alone move a job on, not to and fro. Who was stopped may start again, on
anything: idle slots serve nobody. In `Plan.state`: what each job was last given, what it left within the window, and
what crowd that was in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

import numpy as np

from elastic_core.domain import JobView, PutFirst, Snapshot, Target
from elastic_core.policy.base.knapsack import NOTHING
from elastic_core.policy.base.options import Options
from elastic_core.policy.rules.claims import ClaimContext
from elastic_core.policy.rules.division import Division, PreemptionTerms
from elastic_core.predict.speed.throughput import Floats, Ints

WINDOW = 300.0
SEVERAL = " + "  # between the types of a bundle

_Departure = tuple[str, int, float]  # types, slots (0 for none), when


@dataclass
class RecentMoves:
    crowd: str
    last: dict[str, tuple[str, int]] = field(default_factory=dict)
    left: dict[str, list[_Departure]] = field(default_factory=dict)
    held: dict[str, tuple[str, int]] = field(default_factory=dict)  # what each job still has, whatever was decided

    def store(self, targets: Mapping[str, Target], now: float) -> dict[str, Any]:
        last, left = {}, {}
        for job_id, target in targets.items():
            last[job_id] = _types_and_slots(target.wanted)
            departed = list(self.left.get(job_id, ()))
            if self.last[job_id] != last[job_id]:
                departed.append((*self.last[job_id], now))
            if departed:
                left[job_id] = [list(entry) for entry in departed]
        return {"crowd": self.crowd, "last": {job: list(entry) for job, entry in last.items()}, "left": left}


def recall(snapshot: Snapshot) -> RecentMoves:
    stored = snapshot.policy_state.get("moves", {})
    crowd = _crowd(snapshot)
    last_stored = stored.get("last", {})
    last = {job.job_id: last_stored.get(job.job_id) or _held(job) for job in snapshot.jobs}
    held = {job.job_id: _held(job) for job in snapshot.jobs}
    moves = RecentMoves(crowd, {job: (kind, count) for job, (kind, count) in last.items()}, held=held)
    if stored.get("crowd") == crowd:
        for job, departed in stored["left"].items():
            recent = [(kind, count, at) for kind, count, at in departed if snapshot.now - at < WINDOW]
            if recent:
                moves.left[job] = recent
    return moves


def _held(job: JobView) -> tuple[str, int]:
    return _types_and_slots(job.allocation.counts() if job.allocation is not None else {})


def _types_and_slots(counts: Mapping[str, int]) -> tuple[str, int]:
    """One type as it is; several with the slots of each, so that they name one bundle."""
    if len(counts) > 1:
        return SEVERAL.join(f"{count} {kind}" for kind, count in sorted(counts.items())), sum(counts.values())
    return next(iter(counts.items()), ("", 0))


def _option(options: Options, kinds: str, count: int) -> int | None:
    if SEVERAL not in kinds:
        return options.at({kinds: count})
    parts = (part.partition(" ") for part in kinds.split(SEVERAL))
    return options.at({kind: int(slots) for slots, _, kind in parts})


def _crowd(snapshot: Snapshot) -> str:
    names = sorted(job.job_id for job in snapshot.jobs)
    capacity = sorted(snapshot.capacity().items())
    return sha256(repr((names, capacity)).encode()).hexdigest()[:16]


def without_returns(moves: RecentMoves, context: ClaimContext) -> Floats:
    """The values, with nothing for what a running job would only go back to."""
    values = context.values
    for row, option in _returns(moves, context):
        values = values.copy() if values is context.values else values
        values[row, option] = 0.0
    return values


def _returns(moves: RecentMoves, context: ClaimContext) -> list[tuple[int, int]]:
    if not moves.left:
        return []
    returns = []
    for row in np.flatnonzero(context.held != NOTHING).tolist():
        job_id = context.jobs[row].job_id
        if not context.held_option(row):
            continue
        for kind, count, _ in moves.left.get(job_id, ()):
            option = _option(context.options, kind, count) if count and (kind, count) != moves.held[job_id] else None
            if option is not None and option != context.held[row]:
                returns.append((row, option))
    return returns


def started(moves: RecentMoves, context: ClaimContext, now_held: Ints) -> list[int]:
    """Running jobs that had nothing before, or have nothing now where `context` looks ahead."""
    return [
        row
        for row in np.flatnonzero(context.held != NOTHING).tolist()
        if now_held[row] == NOTHING or any(not count for _, count, _ in moves.left.get(context.jobs[row].job_id, ()))
    ]


def with_started_first(context: ClaimContext, rows: Sequence[int]) -> Floats:
    """The values, with so much more for each option of these rows that one outweighs all other jobs together."""
    values = context.values.copy()
    usable = values[rows] > 0
    values[rows] += np.where(usable, values.max(axis=1, initial=0.0).sum(), 0.0)
    return values


def keep_started(context: ClaimContext, division: Division, moves: RecentMoves, now_held: Ints) -> None:
    """None of the jobs that just started is stopped. Where some were moved into each other's way, all stay as they are.

    Looking ahead (`policy.rules.claims.resolve`) as well: what this decision starts, the next one may not stop either.
    """
    rows = started(moves, context, now_held)
    if not all(_keep_running(context, division, rows, row) for row in rows):
        division.chosen[list(rows)] = NOTHING
        for row in rows:  # what they hold fits side by side
            _claim_held(context, division, rows, row)
    for row in rows:
        if division.chosen[row] != NOTHING:
            division.spoken_for[row] = context.jobs[row].limits.min_slots


def _keep_running(context: ClaimContext, division: Division, rows: Sequence[int], row: int) -> bool:
    return division.chosen[row] != NOTHING or _claim_held(context, division, rows, row)


def _claim_held(context: ClaimContext, division: Division, rows: Sequence[int], row: int) -> bool:
    """What it holds, else the least that it may have."""
    smallest = division.options_of(row, context.jobs[row].limits.min_slots)
    terms = _terms_against_others(context, division, rows)
    return division.claim(row, [*context.held_option(row), *smallest], terms, PutFirst.STARTED)


def _terms_against_others(context: ClaimContext, division: Division, rows: Sequence[int]) -> PreemptionTerms:
    protected: Ints = np.zeros(len(division.chosen), dtype=np.int64)
    protected[list(rows)] = np.minimum(division.counts(), context.min_slots_of_all())[list(rows)]
    return PreemptionTerms.from_anybody(protected, len(division.options.kinds))
