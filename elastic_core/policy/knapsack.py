"""One option a job, the largest sum of values, within the capacity of every type: a multiple-choice knapsack.

Exact by dynamic programming over the free slots of all types at once while that is small. Beyond, prices say which
type a job goes to: each type has a price a slot, every job takes the option worth most after paying, and prices move
until demand fits (Lagrangian relaxation, subgradient steps). Then each type is shared out exactly among its jobs.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from elastic_core.predict.throughput import Floats, Ints

NOTHING = -1
PRICE_STEPS = 60
FINISHED = 6  # of the prices tried, the best so many are carried through
EXACT_WORK = 3e7  # cells x jobs x options up to which the exact program is run


def best_choices(values: Floats, kind_index: Ints, counts: Ints, capacity: Ints) -> Ints:
    """Option of each job (row of `values`), `NOTHING` for none. Options of value <= 0 are never taken."""
    cells = float(np.prod(capacity + 1.0))
    if cells * np.count_nonzero(values > 0) <= EXACT_WORK:
        return _exact(values, kind_index, counts, capacity)
    return _by_prices(values, kind_index, counts, capacity)


def _exact(values: Floats, kind_index: Ints, counts: Ints, capacity: Ints) -> Ints:
    shape = tuple(int(c) + 1 for c in capacity)
    best = np.zeros(shape)  # best[free] over the jobs so far
    taken: list[NDArray[np.int16]] = []
    for row in values:
        better = best.copy()
        choice = np.full(shape, NOTHING, dtype=np.int16)
        for option in np.flatnonzero(row > 0):
            kind, count = int(kind_index[option]), int(counts[option])
            if count > capacity[kind]:
                continue
            to = tuple(slice(count, None) if axis == kind else slice(None) for axis in range(len(shape)))
            source = tuple(slice(0, -count) if axis == kind else slice(None) for axis in range(len(shape)))
            candidate = best[source] + row[option]
            wins = candidate > better[to]
            better[to][wins] = candidate[wins]
            choice[to][wins] = option
        best = better
        taken.append(choice)
    left = [int(c) for c in capacity]
    chosen = np.full(len(values), NOTHING, dtype=np.int64)
    for job in range(len(values) - 1, -1, -1):
        at = int(taken[job][tuple(left)])
        chosen[job] = at
        if at != NOTHING:
            left[int(kind_index[at])] -= int(counts[at])
    return chosen


def _by_prices(values: Floats, kind_index: Ints, counts: Ints, capacity: Ints) -> Ints:
    use = np.zeros((len(capacity), len(counts)))
    use[kind_index, np.arange(len(counts))] = counts
    per_slot = np.where(values > 0, values / counts, 0.0)
    price = np.full(len(capacity), float(np.median(per_slot[per_slot > 0])) if (per_slot > 0).any() else 0.0)
    tried: list[tuple[float, int, Ints, Floats]] = []
    for number in range(PRICE_STEPS):
        net = values - (price @ use)[None, :]
        option = np.argmax(net, axis=1)
        wanted = np.where(net[np.arange(len(values)), option] > 0, option, NOTHING)
        demand = _demand(wanted, kind_index, counts, len(capacity))
        kept = _shed(wanted, values, kind_index, counts, capacity)
        tried.append((_total(kept, values), number, kept, net))
        excess = np.clip((demand - capacity) / np.maximum(capacity, 1), -0.9, 2.0)
        price = np.maximum(price * (1.0 + 0.5 * 0.93**number * excess), 1e-12)
    tried.sort(key=lambda one: (-one[0], one[1]))
    finished = [_finish(kept, net, values, kind_index, counts, capacity) for _, _, kept, net in tried[:FINISHED]]
    return max(finished, key=lambda chosen: _total(chosen, values))


def _finish(kept: Ints, net: Floats, values: Floats, kind_index: Ints, counts: Ints, capacity: Ints) -> Ints:
    """Fill what is free, and share every type out among those that came to be on it, until that gains nothing."""
    best = _fill(kept, values, kind_index, counts, capacity)
    while True:
        shared = _share_out(_types(best, net, kind_index), values, kind_index, counts, capacity)
        shared = _fill(shared, values, kind_index, counts, capacity)
        if _total(shared, values) <= _total(best, values) * (1.0 + 1e-9):
            return best
        best = shared


def _types(chosen: Ints, net: Floats, kind_index: Ints) -> Ints:
    """The type that each job is on, or would be on at these prices."""
    return np.where(chosen != NOTHING, kind_index[chosen], kind_index[np.argmax(net, axis=1)])


def _share_out(kinds: Ints, values: Floats, kind_index: Ints, counts: Ints, capacity: Ints) -> Ints:
    """Every type among the jobs that are on it, exactly."""
    chosen = np.full(len(values), NOTHING, dtype=np.int64)
    for kind in range(len(capacity)):
        rows, columns = np.flatnonzero(kinds == kind), np.flatnonzero(kind_index == kind)
        if len(rows) and len(columns):
            inside = values[np.ix_(rows, columns)]
            found = _exact(inside, np.zeros(len(columns), dtype=np.int64), counts[columns], capacity[kind : kind + 1])
            chosen[rows] = np.where(found == NOTHING, NOTHING, columns[found])
    return chosen


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
        worth = values[rows, kept[rows]] / counts[kept[rows]]
        for row in rows[np.argsort(worth, kind="stable")]:
            if over[kind] <= 0:
                break
            over[kind] -= counts[kept[row]]
            kept[row] = NOTHING
    return kept


def _fill(chosen: Ints, values: Floats, kind_index: Ints, counts: Ints, capacity: Ints) -> Ints:
    """Give what is free to whoever gains most a slot, until nobody gains."""
    kept = chosen.copy()
    free = capacity - _demand(kept, kind_index, counts, len(capacity))
    rows = np.arange(len(values))
    while True:
        has = kept != NOTHING
        now = np.where(has, values[rows, kept], 0.0)
        freed = np.zeros((len(values), len(capacity)))
        freed[rows[has], kind_index[kept[has]]] = counts[kept[has]]
        room = free[None, :] + freed
        fits = counts[None, :] <= room[:, kind_index]
        gain = np.where(fits, values - now[:, None], -np.inf)
        extra = np.maximum(counts[None, :] - freed[:, kind_index], 0.5)
        worth = np.where(gain > 1e-12, gain / extra, -np.inf)
        at = int(np.argmax(worth))
        row, option = divmod(at, len(counts))
        if not np.isfinite(worth[row, option]):
            return kept
        if kept[row] != NOTHING:
            free[kind_index[kept[row]]] += counts[kept[row]]
        free[kind_index[option]] -= counts[option]
        kept[row] = option
