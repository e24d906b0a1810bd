"""A pool shared out among jobs, one option each, and whom it preempts to give one of them more.

Promises that an option is taken from others only where that suffices to place it: at the least loss of value a slot,
never below what each of them keeps. What was taken in excess is free afterwards; `fill` gives it away again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from elastic_core.domain import PutFirst
from elastic_core.policy.base.knapsack import NOTHING, fill
from elastic_core.policy.base.options import Options
from elastic_core.predict.speed.throughput import Floats, Ints

_Fallback = tuple[int, int]  # row of a job, the option that it falls back to


@dataclass(frozen=True)
class PreemptionTerms:
    """What a claim may preempt: never the `protected` slots of each job, those of the lowest `victim_rank` first.

    `reclaimable`: slots of each type (column) that each queue (row) may lose in all; where `may_exceed` is set, the
    preemption that goes beyond that is allowed, too.
    """

    protected: Ints
    victim_rank: Floats
    queue_of: Ints
    reclaimable: Floats
    may_exceed: bool = False

    @staticmethod
    def from_anybody(protected: Ints, num_kinds: int) -> PreemptionTerms:
        """Whatever is not protected, from all alike."""
        none = np.zeros(len(protected), dtype=np.int64)
        return PreemptionTerms(protected, np.zeros(len(protected)), none, np.full((1, num_kinds), np.inf))


@dataclass
class Division:
    """Starts as `chosen`; arrays by job."""

    values: Floats  # of each option (column) to each job (row)
    options: Options
    chosen: Ints
    spoken_for: Ints = field(init=False)  # slots of each job that a rule has spoken for
    put_first: dict[int, PutFirst] = field(default_factory=dict)  # jobs that a rule gave slots to, and which
    preempted: dict[int, dict[int, PutFirst]] = field(default_factory=dict)  # who fell back, for whom and by which rule
    num_claims: int = 0

    def __post_init__(self) -> None:
        self.chosen = self.chosen.copy()
        self.spoken_for = np.zeros(len(self.chosen), dtype=np.int64)

    def counts(self) -> Ints:
        """Slots of each job."""
        return np.where(self.chosen != NOTHING, self.options.counts[self.chosen], 0)

    def kinds(self) -> Ints:
        """Type of each job, NOTHING for those without slots; of several types the one that its option counts for."""
        return np.where(self.chosen != NOTHING, self.options.kind_index[self.chosen], NOTHING)

    def use(self) -> Ints:
        """(jobs, types): slots."""
        return np.where((self.chosen != NOTHING)[:, None], self.options.use[self.chosen], 0)

    def value(self, row: int) -> float:
        option = self.chosen[row]
        return float(self.values[row, option]) if option != NOTHING else 0.0

    def options_of(self, row: int, count: int) -> list[int]:
        """The options of exactly so many slots, the most valuable first."""
        fitting = np.flatnonzero((self.options.counts == count) & (self.values[row] > 0))
        return [int(option) for option in fitting[np.argsort(-self.values[row, fitting], kind="stable")]]

    def claim(
        self, row: int, options: Sequence[int], terms: PreemptionTerms, rule: PutFirst,
        allowed: Callable[[int], bool] | None = None,
    ) -> bool:  # fmt: skip
        """The first of the options that can be had by preempting others, and true; else nothing changes.

        `allowed`: whether the rule lets the job have that option; where not, nothing changes either.
        """
        for option in options:
            fallbacks = self._preemptions(row, option, terms)
            if fallbacks is None:
                continue
            if allowed is not None and not allowed(option):
                return False
            for victim, fallback in fallbacks:
                self.chosen[victim] = fallback
                self.preempted.setdefault(victim, {})[row] = rule
            self.chosen[row] = option
            self.put_first[row] = rule
            self.num_claims += 1
            return True
        return False

    def fill(self) -> None:
        self.chosen = fill(self.chosen, self.values, self.options.use, self.options.capacity)

    def _preemptions(self, row: int, option: int, terms: PreemptionTerms) -> list[_Fallback] | None:
        """Type by type: what a victim gives up of the first may be enough of the next one, too."""
        before, fallbacks = self.chosen, dict[int, int]()
        self.chosen = before.copy()
        try:
            for kind in np.flatnonzero(self.options.use[option]).tolist():
                of_kind = self._preemptions_of(row, option, kind, terms)
                if of_kind is None:
                    return None
                for victim, fallback in of_kind:
                    self.chosen[victim] = fallbacks[victim] = fallback
        finally:
            self.chosen = before
        return list(fallbacks.items())

    def _preemptions_of(self, row: int, option: int, kind: int, terms: PreemptionTerms) -> list[_Fallback] | None:
        held = self.use()[:, kind]
        free = int(self.options.capacity[kind] - held.sum())
        missing = int(self.options.use[option, kind]) - int(held[row]) - free
        if missing <= 0:
            return []
        counts = self.counts()
        victims = np.flatnonzero((held > 0) & (counts > terms.protected))
        victims = victims[victims != row]
        if int(np.minimum(held, counts - terms.protected)[victims].sum()) < missing:
            return None
        return _Preemption(self, victims, kind, terms).free_up(missing)


class _Preemption:
    """Of the jobs `rows`, which all hold slots of one type: who falls back to what until enough of that is free.

    A job falls back to an option that takes no more of any type than it holds.
    """

    def __init__(self, division: Division, rows: Ints, kind: int, terms: PreemptionTerms) -> None:
        options = division.options
        self.rows, self.terms = rows, terms
        self.held_use = division.use()[rows]
        several = (self.held_use > 0).sum(axis=1).max(initial=0) > 1
        self.columns = np.arange(len(options.counts)) if several else np.flatnonzero(options.use[:, kind] > 0)
        self.use = np.append(options.use[self.columns], np.zeros((1, len(options.kinds)), dtype=np.int64), axis=0)
        self.sizes, self.held = self.use[:, kind], self.held_use[:, kind]  # the last column: nothing
        self.values = np.append(division.values[np.ix_(rows, self.columns)], np.zeros((len(rows), 1)), axis=1)
        self.usable = np.append(self.values[:, :-1] > 0, np.ones((len(rows), 1), dtype=bool), axis=1)
        self.usable &= self.use.sum(axis=1)[None, :] >= terms.protected[rows][:, None]
        self.usable &= (self.use[None, :, :] <= self.held_use[:, None, :]).all(axis=2)
        self.current_value = division.values[rows, division.chosen[rows]]
        self.reclaimable = terms.reclaimable[:, kind].copy()

    def free_up(self, missing: int) -> list[_Fallback] | None:
        fallbacks: dict[int, int] = {}
        while missing > 0:
            candidate = self._cheapest_victim(missing)
            if candidate is None:
                return None
            index, column = candidate
            freed = int(self.held[index] - self.sizes[column])
            self.reclaimable[self.terms.queue_of[self.rows[index]]] -= freed
            self.held[index], self.current_value[index] = self.sizes[column], self.values[index, column]
            self.usable[index] &= (self.use <= self.use[column]).all(axis=1)
            fallbacks[int(self.rows[index])] = NOTHING if column == len(self.columns) else int(self.columns[column])
            missing -= freed
        return list(fallbacks.items())

    def _cheapest_victim(self, missing: int) -> tuple[int, int] | None:
        freed = self.held[:, None] - self.sizes[None, :]
        allowance = self.reclaimable[self.terms.queue_of[self.rows]][:, None]
        beyond_allowance = freed > allowance
        allowed = self.usable & (freed > 0) & ((allowance > 0) if self.terms.may_exceed else ~beyond_allowance)
        if not allowed.any():
            return None
        loss = (self.current_value[:, None] - self.values) / np.maximum(np.minimum(freed, missing), 1)
        index, column = np.nonzero(allowed)
        order = np.lexsort((loss[allowed], self.terms.victim_rank[self.rows[index]], beyond_allowance[allowed]))
        return int(index[order[0]]), int(column[order[0]])
