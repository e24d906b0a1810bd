"""At most one option a job within the capacity of each type, at the least cost: an integer program, solved by HiGHS.

Options that cost no less and take no less than another one of the same job and type are left out before. The solver
stops by gap or by the number of nodes of its tree, never by time, so that a decision can be replayed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from elastic_core.predict.speed.throughput import Floats, Ints

_GAP = 1e-4  # relative
_MOST_NODES = 20_000


def pick_one(
    costs: Sequence[Floats],
    kinds: Sequence[Sequence[str]],
    counts: Sequence[Ints],
    capacity: Mapping[str, int],
    fallback: Sequence[int | None],
) -> list[int | None]:
    """The option of each job; None costs nothing. `fallback` (which fits the capacity) stands in for no solution."""
    types = sorted(capacity)
    owner, option, cost, size, type_of = [], [], [], [], []
    for job, (job_costs, job_kinds, job_counts) in enumerate(zip(costs, kinds, counts, strict=True)):
        for at in undominated(job_costs, job_kinds, job_counts, capacity):
            owner.append(job)
            option.append(at)
            cost.append(job_costs[at])
            size.append(int(job_counts[at]))
            type_of.append(types.index(job_kinds[at]))
    if not owner:
        return [None] * len(costs)
    number = np.arange(len(owner))
    rows = np.concatenate((np.asarray(owner), len(costs) + np.asarray(type_of)))
    entries = np.concatenate((np.ones(len(owner)), np.asarray(size, dtype=np.float64)))
    matrix = csr_array((entries, (rows, np.concatenate((number, number)))), shape=(len(costs) + len(types), len(owner)))
    limits = np.concatenate((np.ones(len(costs)), np.asarray([capacity[kind] for kind in types], dtype=np.float64)))
    solution = milp(
        np.asarray(cost),
        constraints=LinearConstraint(matrix, -np.inf, limits),
        integrality=np.ones(len(owner)),
        bounds=Bounds(0.0, 1.0),
        options={"mip_rel_gap": _GAP, "node_limit": _MOST_NODES, "presolve": False},  # costs more than it saves
    )
    if solution.x is None:
        return list(fallback)
    picked: list[int | None] = [None] * len(costs)
    for at in np.flatnonzero(solution.x > 0.5).tolist():
        picked[owner[at]] = option[at]
    return picked


def undominated(costs: Floats, kinds: Sequence[str], counts: Ints, capacity: Mapping[str, int]) -> list[int]:
    """Options that fit, cost less than nothing (0), and less than every smaller one of their type."""
    best: dict[str, float] = {}
    undominated_options = []
    for at in np.argsort(counts, kind="stable").tolist():
        kind = kinds[at]
        if counts[at] <= capacity[kind] and costs[at] < best.get(kind, 0.0):
            best[kind] = float(costs[at])
            undominated_options.append(at)
    return undominated_options
