"""BFTrainer's integer program (Liu et al. 2021, section 3): slots to jobs, over the time that a decision looks ahead.

    maximise  sum over jobs of   T x O(N)  -  R x O(C)          N slots in the plan, C held now, O: objective a second
    R = the seconds that a resize up (N > C) or down (N < C, also to nothing) stops the job; 0 where N = C

O is piecewise linear in N. The paper's SOS2 weights are written as one binary a piece, which picks it, and one integer,
the slots above its lower end: the same set without SOS2, which HiGHS does not have, and without a big constant. The
count held is a piece of its own, so that the cost of a resize hangs on the binaries alone.

HiGHS stops by gap or by the number of nodes of its tree, never by time, so that a decision can be replayed. The answer
at the limit is the best allocation found so far, or what is held where that is worth no less: the paper's answer to a
solver that runs out of time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

GAP = 1e-6  # relative
MOST_NODES = 2_000

Grant = tuple[str, int] | None  # (type, slots)


@dataclass(frozen=True, slots=True)
class Piece:
    """All counts from `low` to `high` on one type. `at_low`, `at_high`: objective a second there, linear between;
    `lost`: objective that a resize to here costs."""

    kind: str
    low: int
    high: int
    at_low: float
    at_high: float
    lost: float

    def at(self, count: int) -> float:
        if self.high == self.low:
            return self.at_low
        return self.at_low + (self.at_high - self.at_low) * (count - self.low) / (self.high - self.low)


@dataclass(frozen=True, slots=True)
class Request:
    """What one job may get; `lost_by_stopping`: objective that is lost where it gets nothing."""

    pieces: tuple[Piece, ...]
    held: Grant
    lost_by_stopping: float

    def value(self, grant: Grant, forward: float) -> float:
        """Its part of the program's objective, in objective units (a second x seconds); -inf for no choice of it."""
        if grant is None:
            return -self.lost_by_stopping
        kind, count = grant
        fitting = [piece for piece in self.pieces if piece.kind == kind and piece.low <= count <= piece.high]
        return max((forward * piece.at(count) - piece.lost for piece in fitting), default=-np.inf)


@dataclass(frozen=True, slots=True)
class Answer:
    grants: tuple[Grant, ...]
    value: float
    proven: bool  # no allocation is better by more than the gap


def solve(requests: Sequence[Request], capacity: Mapping[str, int], forward: float,
          most_nodes: int = MOST_NODES) -> Answer:  # fmt: skip
    """The allocation of most value. `forward`: T, seconds that it looks ahead."""
    unchanged = _what_is_held(requests)
    keeping = _value(requests, unchanged, forward)
    pieces = [(row, piece) for row, request in enumerate(requests) for piece in request.pieces
              if piece.low <= capacity.get(piece.kind, 0)]  # fmt: skip
    if not pieces:
        return Answer(unchanged, keeping, proven=True)
    solved, proven = _highs(requests, pieces, capacity, forward, most_nodes)
    if solved is not None and (better := _value(requests, solved, forward)) > keeping + GAP * abs(keeping):
        return Answer(solved, better, proven)
    return Answer(unchanged, keeping, proven)


def _what_is_held(requests: Sequence[Request]) -> tuple[Grant, ...]:
    """What every job holds, where it still may."""
    return tuple(request.held if np.isfinite(request.value(request.held, 1.0)) else None for request in requests)


def _value(requests: Sequence[Request], grants: Sequence[Grant], forward: float) -> float:
    return float(sum(request.value(grant, forward) for request, grant in zip(requests, grants, strict=True)))


def _highs(
    requests: Sequence[Request], pieces: Sequence[tuple[int, Piece]], capacity: Mapping[str, int], forward: float,
    most_nodes: int,
) -> tuple[tuple[Grant, ...] | None, bool]:  # fmt: skip
    """Columns: first the binary of every piece, then the slots above its lower end. Rows: one a job, one a type, and
    one a piece, which has slots above its lower end only where it is picked."""
    number, jobs, kinds = len(pieces), len(requests), sorted(capacity)
    rows = np.asarray([row for row, _ in pieces])
    kind_of = np.asarray([kinds.index(piece.kind) for _, piece in pieces])
    low = np.asarray([piece.low for _, piece in pieces], dtype=np.float64)
    width = np.asarray([piece.high - piece.low for _, piece in pieces], dtype=np.float64)
    slope = np.asarray([(piece.at_high - piece.at_low) / max(piece.high - piece.low, 1) for _, piece in pieces])
    picked = np.asarray([forward * piece.at_low - piece.lost + requests[row].lost_by_stopping for row, piece in pieces])
    at, own = np.arange(number), jobs + len(kinds) + np.arange(number)
    matrix = csr_array(
        (
            np.concatenate((np.ones(number), low, np.ones(number), -width, np.ones(number))),
            (
                np.concatenate((rows, jobs + kind_of, jobs + kind_of, own, own)),
                np.concatenate((at, at, number + at, at, number + at)),
            ),
        ),
        shape=(jobs + len(kinds) + number, 2 * number),
    )
    most = np.concatenate((np.ones(jobs), [capacity[kind] for kind in kinds], np.zeros(number)))
    solution = milp(
        -np.concatenate((picked, forward * slope)),
        constraints=LinearConstraint(matrix, -np.inf, most),
        integrality=np.ones(2 * number),
        bounds=Bounds(0.0, np.concatenate((np.ones(number), width))),
        options={"mip_rel_gap": GAP, "node_limit": most_nodes},
    )
    if solution.x is None:
        return None, False
    grants: list[Grant] = [None] * jobs
    for place in np.flatnonzero(solution.x[:number] > 0.5).tolist():
        row, piece = pieces[place]
        grants[row] = (piece.kind, piece.low + round(solution.x[number + place]))
    return tuple(grants), bool(solution.status == 0)
