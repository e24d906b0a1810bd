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
from elastic_core.predict.speed.throughput import Floats

_SUM_WEIGHT = 1e-3  # weight of the sum behind the least one: what is left over after max-min is not left idle
_ROUNDING = 5  # decimals of a share


@dataclass(frozen=True, slots=True)
class Request:
    """What one job would run, and steps a second by type (none: it cannot run there)."""

    job: JobView
    count: int
    batch: int
    rates: Mapping[str, float]


Utility = Callable[[Request], Mapping[str, float]]


def _max_sum(requests: Sequence[Request], types: Sequence[str], capacity: Mapping[str, int]) -> Floats:
    return _shares(requests, types, capacity, lambda request: request.rates, max_min=False)


def _max_min(requests: Sequence[Request], types: Sequence[str], capacity: Mapping[str, int]) -> Floats:
    """Throughput is relative to an equal share of every type's slots among all jobs, and to the slots asked for."""

    def normalised(request: Request) -> dict[str, float]:
        equal_share_rate = sum(
            rate * min(1.0, capacity[kind] / request.count / len(requests)) for kind, rate in request.rates.items()
        )
        return {kind: rate / equal_share_rate for kind, rate in request.rates.items()} if equal_share_rate > 0 else {}

    return _shares(requests, types, capacity, normalised, max_min=True)


def _shares(
    requests: Sequence[Request], types: Sequence[str], capacity: Mapping[str, int], utility: Utility, *, max_min: bool
) -> Floats:
    """Shares by job and type. Jobs that are worth the same share equally: the program knows them as one class."""
    shares = np.zeros((len(requests), len(types)))
    classes: dict[tuple[int, tuple[float, ...]], list[int]] = {}
    for rank, request in enumerate(requests):
        values = utility(request)
        if values:
            classes.setdefault((request.count, tuple(values.get(kind, 0.0) for kind in types)), []).append(rank)
    if not classes:
        return shares
    class_shares = _solve(
        list(classes), [len(members) for members in classes.values()], [capacity[k] for k in types], max_min
    )
    for row, members in zip(class_shares, classes.values(), strict=True):
        shares[members] = np.round(row / len(members), _ROUNDING).clip(0.0, 1.0)
    return shares


def _solve(
    classes: Sequence[tuple[int, tuple[float, ...]]], sizes: Sequence[int], capacity: Sequence[int], max_min: bool
) -> Floats:
    """Time on each type by class, in jobs. The last variable is the least worth of any class, where that is asked."""
    rows, columns = len(classes), len(capacity)
    utility = np.asarray([values for _, values in classes])
    objective = np.append(-(_SUM_WEIGHT / sum(sizes) if max_min else 1.0) * utility.ravel(), -1.0 if max_min else 0.0)
    time_rows = np.kron(np.eye(rows), np.ones(columns))
    slot_rows = np.kron(np.asarray([count for count, _ in classes], dtype=np.float64), np.eye(columns))
    constraints, limits = (
        [np.hstack((part, np.zeros((len(part), 1)))) for part in (time_rows, slot_rows)],
        [*sizes, *capacity],
    )
    if max_min:
        class_rows = np.zeros((rows, rows * columns))
        for row in range(rows):
            class_rows[row, row * columns : (row + 1) * columns] = -utility[row] / sizes[row]
        constraints.append(np.hstack((class_rows, np.ones((rows, 1)))))
        limits += [0] * rows
    bounds = [(0.0, None if utility.flat[at] > 0 else 0.0) for at in range(rows * columns)] + [(0.0, None)]
    solution = linprog(objective, A_ub=np.vstack(constraints), b_ub=limits, bounds=bounds, method="highs")
    return np.asarray(solution.x[:-1]).reshape(rows, columns) if solution.x is not None else np.zeros((rows, columns))


PROGRAMS = {"max_min": _max_min, "max_sum": _max_sum}
