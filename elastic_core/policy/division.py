"""A pool shared out among jobs, one option each, and what it takes to give one of them more.

Promises that an option is taken from others only where that suffices to place it: at the least loss of value a slot,
never below what each of them keeps. What was taken in excess is free afterwards; `fill` gives it away again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from elastic_core.policy.knapsack import NOTHING, fill
from elastic_core.policy.outlook import Options
from elastic_core.predict.throughput import Floats, Ints

_Move = tuple[int, int]  # row of a job, the option that it falls back to


@dataclass(frozen=True)
class Terms:
    """What others have to give up: `keeps` slots each at least, those of the lowest `rank` first.

    `lends`: slots of each type (column) that each `group` of them may lose in all; where `excess` is set, the move that
    goes beyond that is allowed, too.
    """

    keeps: Ints
    rank: Floats
    group: Ints
    lends: Floats
    excess: bool = False


@dataclass
class Division:
    """Starts as `chosen`; arrays by job."""

    values: Floats  # of each option (column) to each job (row)
    options: Options
    chosen: Ints
    floors: Ints = field(init=False)  # slots of each job that a rule has spoken for
    notes: dict[int, str] = field(default_factory=dict)  # why a job got what it got
    takes: int = 0

    def __post_init__(self) -> None:
        self.chosen = self.chosen.copy()
        self.floors = np.zeros(len(self.chosen), dtype=np.int64)

    def counts(self) -> Ints:
        """Slots of each job."""
        return np.where(self.chosen != NOTHING, self.options.counts[self.chosen], 0)

    def kinds(self) -> Ints:
        """Type of each job, NOTHING for those without slots."""
        return np.where(self.chosen != NOTHING, self.options.kind_index[self.chosen], NOTHING)

    def free(self, kind: int) -> int:
        return int(self.options.capacity[kind] - self.counts()[self.kinds() == kind].sum())

    def value(self, row: int) -> float:
        option = self.chosen[row]
        return float(self.values[row, option]) if option != NOTHING else 0.0

    def least(self, row: int, fewest: int) -> list[int]:
        """The options of exactly so many slots, the most valuable first."""
        fitting = np.flatnonzero((self.options.counts == fewest) & (self.values[row] > 0))
        return [int(option) for option in fitting[np.argsort(-self.values[row, fitting], kind="stable")]]

    def take(self, row: int, wanted: Sequence[int], terms: Terms, note: str) -> bool:
        """The first of the options that can be had, and true; else nothing changes."""
        for option in wanted:
            moves = self._moves(row, option, terms)
            if moves is None:
                continue
            for other, fallback in moves:
                self.chosen[other] = fallback
            self.chosen[row] = option
            self.notes[row] = note
            self.takes += 1
            return True
        return False

    def fill(self) -> None:
        self.chosen = fill(
            self.chosen, self.values, self.options.kind_index, self.options.counts, self.options.capacity
        )

    def _moves(self, row: int, option: int, terms: Terms) -> list[_Move] | None:
        kind = int(self.options.kind_index[option])
        counts, kinds = self.counts(), self.kinds()
        own = counts[row] if kinds[row] == kind else 0
        short = int(self.options.counts[option]) - int(own) - self.free(kind)
        if short <= 0:
            return []
        others = np.flatnonzero((kinds == kind) & (counts > terms.keeps))
        others = others[others != row]
        if int((counts[others] - terms.keeps[others]).sum()) < short:
            return None
        return _Giving(self, others, kind, terms).give(short)


class _Giving:
    """Of the jobs `rows`, all on one type: who falls back to what until enough is free."""

    def __init__(self, division: Division, rows: Ints, kind: int, terms: Terms) -> None:
        self.rows, self.terms = rows, terms
        self.columns = np.flatnonzero(division.options.kind_index == kind)
        self.sizes = np.append(division.options.counts[self.columns], 0)  # the last column: nothing
        self.values = np.append(division.values[np.ix_(rows, self.columns)], np.zeros((len(rows), 1)), axis=1)
        self.usable = np.append(self.values[:, :-1] > 0, np.ones((len(rows), 1), dtype=bool), axis=1)
        self.usable &= self.sizes[None, :] >= terms.keeps[rows][:, None]
        self.has = division.counts()[rows]
        self.worth = division.values[rows, division.chosen[rows]]
        self.lends = terms.lends[:, kind].copy()

    def give(self, short: int) -> list[_Move] | None:
        moves: dict[int, int] = {}
        while short > 0:
            at = self._cheapest(short)
            if at is None:
                return None
            index, column = at
            freed = int(self.has[index] - self.sizes[column])
            self.lends[self.terms.group[self.rows[index]]] -= freed
            self.has[index], self.worth[index] = self.sizes[column], self.values[index, column]
            moves[int(self.rows[index])] = NOTHING if column == len(self.columns) else int(self.columns[column])
            short -= freed
        return list(moves.items())

    def _cheapest(self, short: int) -> tuple[int, int] | None:
        freed = self.has[:, None] - self.sizes[None, :]
        left = self.lends[self.terms.group[self.rows]][:, None]
        beyond = freed > left
        allowed = self.usable & (freed > 0) & ((left > 0) if self.terms.excess else ~beyond)
        if not allowed.any():
            return None
        loss = (self.worth[:, None] - self.values) / np.maximum(np.minimum(freed, short), 1)
        index, column = np.nonzero(allowed)
        order = np.lexsort((loss[allowed], self.terms.rank[self.rows[index]], beyond[allowed]))
        return int(index[order[0]]), int(column[order[0]])
