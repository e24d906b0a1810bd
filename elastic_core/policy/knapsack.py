"""One option a job, the largest sum of values, within the capacity of every type: a multiple-choice knapsack.

Prices a slot of each type minimise the Lagrangian dual (`policy.prices`). What every job would buy at them is rounded
and made to fit, and free slots go to whoever gains most. An option that loses more at these prices than this choice is
below the bound is in no better choice: what is left goes to an exact dynamic program over the free slots of all types.
Where that is still too large, it runs over the options that lose least. Stops by sizes, never by time.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from elastic_core.policy.prices import Prices, minimise
from elastic_core.predict.throughput import Floats, Ints

NOTHING = -1
SMALL_WORK = 1e6  # cells x jobs x options up to which the exact program is run at once
EXACT_WORK = 3e7  # up to which it is run on what prices leave
GOLDEN = 0.6180339887498949  # multiples of it, modulo 1, spread evenly however many there are
CORE_WORK = 5e6  # up to which it is run on the options that lose least
CORE_ROUNDS = 3
CORE_SHARES = np.linspace(0.0, 1.0, 101)[1:] ** 2  # of all options, ascending
CLOSE = 1e-4  # to the bound, relative: near enough


def best_choices(values: Floats, kind_index: Ints, counts: Ints, capacity: Ints) -> Ints:
    """Option of each job (row of `values`), `NOTHING` for none. Options of value <= 0 are never taken."""
    usable = (values > 0) & (counts <= capacity[kind_index])
    if _work(usable, capacity) <= SMALL_WORK:
        return _exact(values, kind_index, counts, capacity)
    return _by_prices(np.where(usable, values, 0.0), kind_index, counts, capacity)


def _work(usable: NDArray[np.bool_], capacity: Ints) -> float:
    """Of the exact program: cells x jobs x options."""
    return float(np.prod(capacity + 1.0)) * int(np.count_nonzero(usable))


def _exact(values: Floats, kind_index: Ints, counts: Ints, capacity: Ints) -> Ints:
    shape = tuple(int(c) + 1 for c in capacity)
    possible = (values > 0) & (counts <= capacity[kind_index])
    best = np.zeros((len(values) + 1, *shape))  # best[jobs so far][free]
    moves = {int(at): _Move(int(kind_index[at]), int(counts[at]), shape) for at in np.flatnonzero(possible.any(axis=0))}
    order = np.lexsort((counts, kind_index))
    for job, row in enumerate(values):
        best[job + 1] = best[job]
        for option in _undominated(row, possible[job], kind_index, order):
            moves[option].relax(best[job], best[job + 1], row[option])
    left = [int(c) for c in capacity]
    chosen = np.full(len(values), NOTHING, dtype=np.int64)
    for job in range(len(values) - 1, -1, -1):
        here = best[job + 1][tuple(left)]
        if here == best[job][tuple(left)]:
            continue
        for option in np.flatnonzero(possible[job]).tolist():  # the first of equals
            kind, count = int(kind_index[option]), int(counts[option])
            before = [free - count if at == kind else free for at, free in enumerate(left)]
            if before[kind] >= 0 and best[job][tuple(before)] + values[job, option] == here:
                chosen[job], left = option, before
                break
    return chosen


class _Move:
    """Taking one option, from every number of free slots at once."""

    def __init__(self, kind: int, count: int, shape: tuple[int, ...]) -> None:
        axes = range(len(shape))
        self._to = tuple(slice(count, None) if axis == kind else slice(None) for axis in axes)
        self._source = tuple(slice(0, -count) if axis == kind else slice(None) for axis in axes)
        self._sums = np.empty([size - count if axis == kind else size for axis, size in enumerate(shape)])

    def relax(self, before: Floats, after: Floats, value: float) -> None:
        better = after[self._to]
        np.add(before[self._source], value, out=self._sums)
        np.maximum(better, self._sums, out=better)


def _undominated(row: Floats, possible: NDArray[np.bool_], kind_index: Ints, order: Ints) -> list[int]:
    """Options that are worth more than all smaller ones of their type; `order`: by type, then count."""
    found, kind, most = [], -1, 0.0
    for option in order[possible[order]].tolist():
        if kind_index[option] != kind:
            kind, most = int(kind_index[option]), 0.0
        if row[option] > most:
            most = float(row[option])
            found.append(option)
    return found


def _by_prices(values: Floats, kind_index: Ints, counts: Ints, capacity: Ints) -> Ints:
    """`values` are 0 where a job may not take an option."""
    rows, columns = np.flatnonzero((values > 0).any(axis=1)), np.flatnonzero((values > 0).any(axis=0))
    chosen = np.full(len(values), NOTHING, dtype=np.int64)
    if len(rows):
        found = _bounded(values[np.ix_(rows, columns)], kind_index[columns], counts[columns], capacity)
        chosen[rows] = np.where(found == NOTHING, NOTHING, columns[found])
    return chosen


def _bounded(values: Floats, kind_index: Ints, counts: Ints, capacity: Ints) -> Ints:
    prices = minimise(values, kind_index, counts, capacity)
    near = _shed(_rounded(prices.shares), values, kind_index, counts, capacity)
    near = fill(near, values, kind_index, counts, capacity)
    possible = prices.losses() <= prices.bound * (1.0 + 1e-9) - _total(near, values)
    if _work(possible & (values > 0), capacity) <= EXACT_WORK:
        return _exact(np.where(possible, values, 0.0), kind_index, counts, capacity)
    return _improved(near, prices, values, kind_index, counts, capacity)


def _improved(chosen: Ints, prices: Prices, values: Floats, kind_index: Ints, counts: Ints, capacity: Ints) -> Ints:
    best = chosen
    for _ in range(CORE_ROUNDS):
        if prices.bound - _total(best, values) <= CLOSE * prices.bound:
            break
        again = _again(best, prices, values, kind_index, counts, capacity)
        better = fill(again, values, kind_index, counts, capacity)
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


def _again(chosen: Ints, prices: Prices, values: Floats, kind_index: Ints, counts: Ints, capacity: Ints) -> Ints:
    """The same choice improved by the exact program over the options that lose little at these prices, as many as it
    may take, beside those chosen. A job for which that leaves one option only keeps its slots out of it."""
    loss = prices.losses()
    rows = np.flatnonzero(chosen != NOTHING)
    loss[rows, chosen[rows]] = 0.0
    free = capacity - _demand(chosen, kind_index, counts, len(capacity))
    held = np.zeros((len(values), len(capacity)))
    held[rows, kind_index[chosen[rows]]] = counts[chosen[rows]]
    nothing = np.where(chosen == NOTHING, 0.0, np.inf)  # the one option of a job that has none
    core, room = rows[:0], capacity
    for most in np.quantile(loss[np.isfinite(loss)], CORE_SHARES):
        allowed = loss <= most
        several = np.flatnonzero(allowed.sum(axis=1) + (nothing <= most) > 1)
        space = (free + held[several].sum(axis=0)).astype(np.int64)
        if np.prod(space + 1.0) * np.count_nonzero(allowed[several]) > CORE_WORK:
            break
        core, room, kept = several, space, allowed[several]
    again = chosen.copy()
    if len(core):
        again[core] = _exact(np.where(kept, values[core], 0.0), kind_index, counts, room)
    return again


def _demand(chosen: Ints, kind_index: Ints, counts: Ints, kinds: int) -> Floats:
    taken = chosen[chosen != NOTHING]
    return np.bincount(kind_index[taken], weights=counts[taken], minlength=kinds).astype(np.float64)


def _total(chosen: Ints, values: Floats) -> float:
    rows = np.flatnonzero(chosen != NOTHING)
    return float(values[rows, chosen[rows]].sum())


def _shed(chosen: Ints, values: Floats, kind_index: Ints, counts: Ints, capacity: Ints) -> Ints:
    """Take the least worth a slot away until every type fits."""
    kept = chosen.copy()
    over = _demand(kept, kind_index, counts, len(capacity)) - capacity
    for kind in np.flatnonzero(over > 0):
        rows = np.flatnonzero((kept != NOTHING) & (kind_index[kept] == kind))
        rows = rows[np.argsort(values[rows, kept[rows]] / counts[kept[rows]], kind="stable")]
        gone = int(np.searchsorted(np.cumsum(counts[kept[rows]]), over[kind])) + 1
        kept[rows[:gone]] = NOTHING
    return kept


def fill(chosen: Ints, values: Floats, kind_index: Ints, counts: Ints, capacity: Ints) -> Ints:
    """Give what is free to whoever gains most a slot, until nobody gains."""
    kept = chosen.copy()
    free = capacity - _demand(kept, kind_index, counts, len(capacity))
    rows = np.arange(len(values))
    while True:
        worth = _worth(kept[rows], values[rows], kind_index, counts, free)
        gains = np.isfinite(worth).any(axis=1)
        if not gains.any():
            return kept
        rows, worth = rows[gains], worth[gains]
        while len(rows):
            at, option = divmod(int(np.argmax(worth)), len(counts))
            if not np.isfinite(worth[at, option]):
                break
            before, kept[rows[at]] = int(kept[rows[at]]), option
            free[kind_index[option]] -= counts[option]
            if before != NOTHING:
                free[kind_index[before]] += counts[before]
                if kind_index[before] != kind_index[option]:
                    break  # others may gain by what it left
            worth[at] = _worth(kept[rows[at : at + 1]], values[rows[at : at + 1]], kind_index, counts, free)[0]
            short = kind_index == kind_index[option]
            worth[:, short] = _worth(kept[rows], values[rows], kind_index, counts, free)[:, short]
        rows = np.arange(len(values))


def _worth(kept: Ints, values: Floats, kind_index: Ints, counts: Ints, free: Floats) -> Floats:
    """What each option adds to what each job has, a slot that it takes in addition; -inf where it adds or fits not."""
    rows = np.arange(len(values))
    has = kept != NOTHING
    now = np.where(has, values[rows, kept], 0.0)
    freed = np.zeros((len(values), len(free)))
    freed[rows[has], kind_index[kept[has]]] = counts[kept[has]]
    there = freed[:, kind_index]
    gain = values - now[:, None]
    usable = (gain > 1e-12) & (counts <= free[kind_index] + there)
    worth: Floats = np.where(usable, gain / np.maximum(counts - there, 0.5), -np.inf)
    return worth
