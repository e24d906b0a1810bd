"""The pieces of a job's objective over its counts of slots: what the integer program chooses from.

Breakpoints are the powers of two among the admitted counts and the ends of every run of admitted counts without a gap;
between them the objective is taken to be linear, whatever is held, so that a plan in force is not seen with other eyes
than when it was made. The count that is held is a piece of its own. Counts in a gap belong to no piece, so that they
cannot be chosen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

import numpy as np

from elastic_core.policy.bftrainer.forward_program import Piece


def pieces_of(
    kind: str, objective: Mapping[int, float], held: int | None, lost_up: float, lost_down: float
) -> tuple[Piece, ...]:
    """`objective`: a second, by admitted count. `held`: slots held of this type; None where the job holds others, which
    makes every count here a move that loses the larger of the two."""
    elsewhere = max(lost_up, lost_down)
    objective = _linear_between_breakpoints(objective)
    pieces = []
    for run in _runs(sorted(objective), held):
        for low, high in _spans(run):
            lost = elsewhere if held is None else _lost(low, held, lost_up, lost_down)
            pieces.append(Piece(kind, low, high, objective[low], objective[high], lost))
    return tuple(pieces)


def _linear_between_breakpoints(objective: Mapping[int, float]) -> dict[int, float]:
    linear: dict[int, float] = {}
    for run in _runs(sorted(objective), None):
        points = _breakpoints(run)
        linear |= zip(run, np.interp(run, points, [objective[count] for count in points]).tolist(), strict=True)
    return linear


def _lost(low: int, held: int, lost_up: float, lost_down: float) -> float:
    if low == held:
        return 0.0
    return lost_up if low > held else lost_down


def _runs(counts: Sequence[int], held: int | None) -> Iterator[list[int]]:
    """Counts that follow each other without a gap; the one that is held stands alone."""
    run: list[int] = []
    for count in counts:
        if run and (count != run[-1] + 1 or held in (count, run[-1])):
            yield run
            run = []
        run.append(count)
    if run:
        yield run


def _spans(run: Sequence[int]) -> list[tuple[int, int]]:
    return list(pairwise(_breakpoints(run))) or [(run[0], run[0])]


def _breakpoints(run: Sequence[int]) -> list[int]:
    return [count for count in run if count in (run[0], run[-1]) or count & (count - 1) == 0]
