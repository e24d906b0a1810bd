"""One option a job, the largest sum of values, within the capacity of every type: a multiple-choice knapsack.

Prices a slot of each type minimise the Lagrangian dual (`policy.base.prices`). What every job would buy at them is
rounded and made to fit, and free slots go to whoever gains most. An option that loses more at these prices than this
choice is below the bound is in no better choice: what is left goes to an exact dynamic program over the free slots of
all types. Where that is still too large, it runs over the options that lose least. Stops by sizes, never by time.

An option takes slots of one type, or of several at once: `use` (options, types) are its slots.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from elastic_core.policy.base.prices import Prices, minimise
from elastic_core.predict.speed.throughput import Floats, Ints

NOTHING = -1
SMALL_WORK = 1e6  # cells x jobs x options up to which the exact program is run at once
EXACT_WORK = 3e7  # up to which it is run on what prices leave
GOLDEN = 0.6180339887498949  # multiples of it, modulo 1, spread evenly however many there are
CORE_WORK = 5e6  # up to which it is run on the options that lose least
CORE_ROUNDS = 3
CORE_SHARES = np.linspace(0.0, 1.0, 101)[1:] ** 2  # of all options, ascending
CLOSE = 1e-4  # to the bound, relative: near enough


def best_choices(values: Floats, use: Ints, capacity: Ints) -> Ints:
    """Option of each job (row of `values`), `NOTHING` for none. Options of value <= 0 are never taken."""
    usable = (values > 0) & (use <= capacity).all(axis=1)
    if _work(usable, capacity) <= SMALL_WORK:
        return _exact(values, use, capacity)
    return _by_prices(np.where(usable, values, 0.0), use, capacity)


def _work(usable: NDArray[np.bool_], capacity: Ints) -> float:
    """Of the exact program: cells x jobs x options."""
    return float(np.prod(capacity + 1.0)) * int(np.count_nonzero(usable))


def _exact(values: Floats, use: Ints, capacity: Ints) -> Ints:
    shape = tuple(int(c) + 1 for c in capacity)
    possible = (values > 0) & (use <= capacity).all(axis=1)
    best = np.zeros((len(values) + 1, *shape))  # best[jobs so far][free]
    moves = {int(at): _Move(use[at].tolist(), shape) for at in np.flatnonzero(possible.any(axis=0))}
    several = (use > 0).sum(axis=1) > 1
    kind_index = use.argmax(axis=1)
    order = np.lexsort((use.sum(axis=1), kind_index))
    of_one, of_several = order[~several[order]], order[several[order]]
    for job, row in enumerate(values):
        best[job + 1] = best[job]
        undominated = _undominated(row, possible[job], kind_index, of_one)
        for option in [*undominated, *of_several[possible[job, of_several]].tolist()]:
            moves[option].relax(best[job], best[job + 1], row[option])
    free_slots = [int(c) for c in capacity]
    chosen = np.full(len(values), NOTHING, dtype=np.int64)
    for job in range(len(values) - 1, -1, -1):
        value_here = best[job + 1][tuple(free_slots)]
        if value_here == best[job][tuple(free_slots)]:
            continue
        for option in np.flatnonzero(possible[job]).tolist():  # the first of equals
            free_without = [free - taken for free, taken in zip(free_slots, use[option].tolist(), strict=True)]
            if min(free_without) >= 0 and best[job][tuple(free_without)] + values[job, option] == value_here:
                chosen[job], free_slots = option, free_without
                break
    return chosen


class _Move:
    """Taking one option, from every number of free slots at once."""

    def __init__(self, taken: list[int], shape: tuple[int, ...]) -> None:
        self._to = tuple(slice(count, None) if count else slice(None) for count in taken)
        self._source = tuple(slice(0, -count) if count else slice(None) for count in taken)
        self._sums = np.empty([size - count for size, count in zip(shape, taken, strict=True)])

    def relax(self, before: Floats, after: Floats, value: float) -> None:
        better = after[self._to]
        np.add(before[self._source], value, out=self._sums)
        np.maximum(better, self._sums, out=better)


def _undominated(row: Floats, possible: NDArray[np.bool_], kind_index: Ints, order: Ints) -> list[int]:
    """Options that are worth more than all smaller ones of their type; `order`: by type, then count."""
    kept_options, kind, best_value = [], -1, 0.0
    for option in order[possible[order]].tolist():
        if kind_index[option] != kind:
            kind, best_value = int(kind_index[option]), 0.0
        if row[option] > best_value:
            best_value = float(row[option])
            kept_options.append(option)
    return kept_options


def _by_prices(values: Floats, use: Ints, capacity: Ints) -> Ints:
    """`values` are 0 where a job may not take an option."""
    rows, columns = np.flatnonzero((values > 0).any(axis=1)), np.flatnonzero((values > 0).any(axis=0))
    chosen = np.full(len(values), NOTHING, dtype=np.int64)
    if len(rows):
        chosen_columns = _bounded(values[np.ix_(rows, columns)], use[columns], capacity)
        chosen[rows] = np.where(chosen_columns == NOTHING, NOTHING, columns[chosen_columns])
    return chosen


def _bounded(values: Floats, use: Ints, capacity: Ints) -> Ints:
    prices = minimise(values, use, capacity)
    rounded = _shed(_rounded(prices.shares), values, use, capacity)
    rounded = fill(rounded, values, use, capacity)
    possible = prices.losses() <= prices.bound * (1.0 + 1e-9) - _total(rounded, values)
    if _work(possible & (values > 0), capacity) <= EXACT_WORK:
        return _exact(np.where(possible, values, 0.0), use, capacity)
    return _improved(rounded, prices, values, use, capacity)


def _improved(chosen: Ints, prices: Prices, values: Floats, use: Ints, capacity: Ints) -> Ints:
    best = chosen
    for _ in range(CORE_ROUNDS):
        if prices.bound - _total(best, values) <= CLOSE * prices.bound:
            break
        resolved = _resolve_core(best, prices, values, use, capacity)
        better = fill(resolved, values, use, capacity)
        if _total(better, values) <= _total(best, values):
            break
        best = better
    return best


def _rounded(shares: Floats) -> Ints:
    """An option for each job, as often as its share says: equal jobs are split in proportion, and few are unsure."""
    reach = np.cumsum(shares, axis=1)
    draw = (np.arange(1, len(shares) + 1) * GOLDEN) % 1.0
    taken = (reach < draw[:, None]).sum(axis=1)
    return np.where(taken < shares.shape[1], taken, NOTHING)


def _resolve_core(chosen: Ints, prices: Prices, values: Floats, use: Ints, capacity: Ints) -> Ints:
    """The same choice improved by the exact program over the options that lose little at these prices, as many as it
    may take, beside those chosen. A job for which that leaves one option only keeps its slots out of it."""
    loss = prices.losses()
    rows = np.flatnonzero(chosen != NOTHING)
    loss[rows, chosen[rows]] = 0.0
    free = capacity - _demand(chosen, use)
    held = np.zeros((len(values), len(capacity)))
    held[rows] = use[chosen[rows]]
    nothing = np.where(chosen == NOTHING, 0.0, np.inf)  # the one option of a job that has none
    core_rows, core_capacity = rows[:0], capacity
    for max_loss in np.quantile(loss[np.isfinite(loss)], CORE_SHARES):
        allowed = loss <= max_loss
        undecided = np.flatnonzero(allowed.sum(axis=1) + (nothing <= max_loss) > 1)
        their_slots = (free + held[undecided].sum(axis=0)).astype(np.int64)
        if np.prod(their_slots + 1.0) * np.count_nonzero(allowed[undecided]) > CORE_WORK:
            break
        core_rows, core_capacity, core_allowed = undecided, their_slots, allowed[undecided]
    resolved = chosen.copy()
    if len(core_rows):
        resolved[core_rows] = _exact(np.where(core_allowed, values[core_rows], 0.0), use, core_capacity)
    return resolved


def _demand(chosen: Ints, use: Ints) -> Floats:
    demand: Floats = use[chosen[chosen != NOTHING]].sum(axis=0).astype(np.float64)
    return demand


def _total(chosen: Ints, values: Floats) -> float:
    rows = np.flatnonzero(chosen != NOTHING)
    return float(values[rows, chosen[rows]].sum())


def _shed(chosen: Ints, values: Floats, use: Ints, capacity: Ints) -> Ints:
    """Take the least worth a slot away until every type fits."""
    fitting = chosen.copy()
    for kind in range(len(capacity)):
        excess = float((_demand(fitting, use) - capacity)[kind])
        if excess <= 0:
            continue
        rows = np.flatnonzero((fitting != NOTHING) & (use[fitting, kind] > 0))
        of_rows = use[fitting[rows]].sum(axis=1)
        rows = rows[np.argsort(values[rows, fitting[rows]] / of_rows, kind="stable")]
        num_dropped = int(np.searchsorted(np.cumsum(use[fitting[rows], kind]), excess)) + 1
        fitting[rows[:num_dropped]] = NOTHING
    return fitting


def fill(chosen: Ints, values: Floats, use: Ints, capacity: Ints) -> Ints:
    """Give what is free to whoever gains most a slot, until nobody gains."""
    filled = chosen.copy()
    free = capacity - _demand(filled, use)
    rows = np.arange(len(values))
    gains = _Gains(use)
    while True:
        gain_per_slot = gains.per_slot(filled[rows], values[rows], free)
        has_gain = np.isfinite(gain_per_slot).any(axis=1)
        if not has_gain.any():
            return filled
        rows, gain_per_slot = rows[has_gain], gain_per_slot[has_gain]
        while len(rows):
            at, option = divmod(int(np.argmax(gain_per_slot)), len(use))
            if not np.isfinite(gain_per_slot[at, option]):
                break
            before, filled[rows[at]] = int(filled[rows[at]]), option
            free -= use[option]
            if before != NOTHING:
                free += use[before]
                if ((use[before] > 0) & (use[option] == 0)).any():
                    break  # others may gain by what it left
            gain_per_slot[at] = gains.per_slot(filled[rows[at : at + 1]], values[rows[at : at + 1]], free)[0]
            of_these = (use[:, use[option] > 0] > 0).any(axis=1)
            gain_per_slot[:, of_these] = gains.per_slot(filled[rows], values[rows], free)[:, of_these]
        rows = np.arange(len(values))


class _Gains:
    """What each option adds to what each job has, a slot that it takes in addition; -inf where it adds or fits not."""

    def __init__(self, use: Ints) -> None:
        self._use, self._counts, self._kind_index = use, use.sum(axis=1), use.argmax(axis=1)
        self._several = np.flatnonzero((use > 0).sum(axis=1) > 1)

    def per_slot(self, chosen: Ints, values: Floats, free: Floats) -> Floats:
        rows, holds = np.arange(len(values)), chosen != NOTHING
        gain = values - np.where(holds, values[rows, chosen], 0.0)[:, None]
        own = np.where(holds[:, None], self._use[chosen], 0).astype(np.float64)
        fits, more = self._of_one(own, free)
        for option in self._several.tolist():
            taken = self._use[option][None, :]
            fits[:, option] = (taken <= free + own).all(axis=1)
            more[:, option] = np.maximum(taken - own, 0.0).sum(axis=1)
        gains: Floats = np.where((gain > 1e-12) & fits, gain / np.maximum(more, 0.5), -np.inf)
        return gains

    def _of_one(self, own: Floats, free: Floats) -> tuple[NDArray[np.bool_], Floats]:
        own_slots = own[:, self._kind_index]
        return self._counts <= free[self._kind_index] + own_slots, self._counts - own_slots
