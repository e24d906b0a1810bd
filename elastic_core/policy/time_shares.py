"""Gavel's linear programs (Narayanan et al., OSDI 2020, section 4): shares of time of every job on every type.

Each job's shares add up to at most 1, and each type's slots times shares to at most its capacity. Jobs that are worth
the same get the same shares: the program knows them as one class, which also keeps it small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linprog

from elastic_core.domain import JobView
from elastic_core.predict.throughput import Floats

_SECOND_AIM = 1e-3  # weight of the sum behind the least one: what is left over after max-min is not left idle
_ROUNDING = 5  # decimals of a share


@dataclass(frozen=True, slots=True)
class Asked:
    """What one job would run, and steps a second by type (none: it cannot run there)."""

    job: JobView
    count: int
    batch: int
    rates: Mapping[str, float]


Worth = Callable[[Asked], Mapping[str, float]]


def _max_sum(asked: Sequence[Asked], types: Sequence[str], capacity: Mapping[str, int]) -> Floats:
    return _shares(asked, types, capacity, lambda one: one.rates, least=False)


def _max_min(asked: Sequence[Asked], types: Sequence[str], capacity: Mapping[str, int]) -> Floats:
    """Throughput is relative to an equal share of every type's slots among all jobs, and to the slots asked for."""

    def normalised(one: Asked) -> dict[str, float]:
        even = sum(rate * min(1.0, capacity[kind] / one.count / len(asked)) for kind, rate in one.rates.items())
        return {kind: rate / even for kind, rate in one.rates.items()} if even > 0 else {}

    return _shares(asked, types, capacity, normalised, least=True)


def _shares(
    asked: Sequence[Asked], types: Sequence[str], capacity: Mapping[str, int], worth: Worth, *, least: bool
) -> Floats:
    """Shares by job and type. Jobs that are worth the same share equally: the program knows them as one class."""
    shares = np.zeros((len(asked), len(types)))
    classes: dict[tuple[int, tuple[float, ...]], list[int]] = {}
    for rank, one in enumerate(asked):
        values = worth(one)
        if values:
            classes.setdefault((one.count, tuple(values.get(kind, 0.0) for kind in types)), []).append(rank)
    if not classes:
        return shares
    solved = _solve(list(classes), [len(members) for members in classes.values()], [capacity[k] for k in types], least)
    for row, members in zip(solved, classes.values(), strict=True):
        shares[members] = np.round(row / len(members), _ROUNDING).clip(0.0, 1.0)
    return shares


def _solve(
    classes: Sequence[tuple[int, tuple[float, ...]]], sizes: Sequence[int], capacity: Sequence[int], least: bool
) -> Floats:
    """Time on each type by class, in jobs. The last variable is the least worth of any class, where that is asked."""
    rows, columns = len(classes), len(capacity)
    worth = np.asarray([values for _, values in classes])
    objective = np.append(-(_SECOND_AIM / sum(sizes) if least else 1.0) * worth.ravel(), -1.0 if least else 0.0)
    each = np.kron(np.eye(rows), np.ones(columns))
    used = np.kron(np.asarray([count for count, _ in classes], dtype=np.float64), np.eye(columns))
    above, limits = [np.hstack((part, np.zeros((len(part), 1)))) for part in (each, used)], [*sizes, *capacity]
    if least:
        mine = np.zeros((rows, rows * columns))
        for row in range(rows):
            mine[row, row * columns : (row + 1) * columns] = -worth[row] / sizes[row]
        above.append(np.hstack((mine, np.ones((rows, 1)))))
        limits += [0] * rows
    bounds = [(0.0, None if worth.flat[at] > 0 else 0.0) for at in range(rows * columns)] + [(0.0, None)]
    found = linprog(objective, A_ub=np.vstack(above), b_ub=limits, bounds=bounds, method="highs")
    return np.asarray(found.x[:-1]).reshape(rows, columns) if found.x is not None else np.zeros((rows, columns))


PROGRAMS = {"max_min": _max_min, "max_sum": _max_sum}
