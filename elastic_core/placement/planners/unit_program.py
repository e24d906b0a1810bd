"""The cheapest stages where types' units are shared between stages, or between chains: an integer program (HiGHS).

    minimise   sum over stretches of  cost x picked                       one binary a stretch and type
    such that  picked stretches cut every chain; where one ends, the next begins, on another type
               units of a type, over all picked stretches of all chains  <=  what there are

"On another type" is one row a border and type: beginning + ending there on the type <= beginning there at all. It ends
at a number of nodes of its tree, never by time, and then says what it has proved.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_array

from elastic_core.placement.planners.shortest_path import Cut
from elastic_core.placement.stretches import Floats

GAP = 1e-9
MOST_NODES = 20_000
Ints = NDArray[np.intp]
Entries = tuple[Ints, Ints, Floats]  # rows, columns, values of a sparse matrix


@dataclass(frozen=True, slots=True)
class Program:
    """`cuts`: of every chain, None where none was found; `value` of them; `bound`: no cuts cost less (inf: none are
    possible)."""

    cuts: list[Cut] | None
    value: float
    bound: float


def solve(costs: Sequence[Floats], units: Sequence[Floats], limits: Floats, most_nodes: int = MOST_NODES) -> Program:
    """`costs`, `units`: of every chain (n, n, types), inf for what may not be; `limits`: units (types,)."""
    columns = [np.argwhere(np.isfinite(cost)) for cost in costs]
    ends = np.cumsum([0, *(len(column) for column in columns)])
    width = int(ends[-1])
    price = np.concatenate([cost[tuple(column.T)] for cost, column in zip(costs, columns, strict=True)])
    if not price.any():  # nothing may be picked
        return Program(None, inf, inf)
    scale = float(price.max())
    held = np.concatenate([unit[tuple(column.T)] for unit, column in zip(units, columns, strict=True)])
    kinds = np.concatenate([column[:, 2] for column in columns])
    solution = milp(
        price / scale,
        constraints=(
            _paths(costs, columns, ends.tolist(), width),
            LinearConstraint(_matrix([(kinds, np.arange(width), held)], len(limits), width), -np.inf, limits),
        ),
        integrality=np.ones(width),
        bounds=Bounds(0.0, 1.0),
        options={"mip_rel_gap": GAP, "node_limit": most_nodes},
    )
    if solution.status == 2:  # infeasible
        return Program(None, inf, inf)
    bound = -inf if solution.mip_dual_bound is None else float(solution.mip_dual_bound) * scale
    if solution.x is None:
        return Program(None, inf, bound)
    picked = [column[solution.x[start : start + len(column)] > 0.5]
              for start, column in zip(ends[:-1], columns, strict=True)]  # fmt: skip
    cuts: list[Cut] = [sorted((int(i), int(j), int(t)) for i, j, t in column) for column in picked]
    value = sum(float(cost[stage]) for cost, cut in zip(costs, cuts, strict=True) for stage in cut)
    return Program(cuts, value, value if solution.status == 0 else bound)


def _paths(costs: Sequence[Floats], columns: Sequence[Ints], starts: Sequence[int], width: int) -> LinearConstraint:
    entries: list[Entries] = []
    low: list[Floats] = []
    high: list[Floats] = []
    for cost, column, start in zip(costs, columns, starts[:-1], strict=True):
        size, _, types = cost.shape
        for rows, at, values, least, most in _chain_rows(column, size, types):
            entries.append((rows + sum(map(len, low)), at + start, values))
            low, high = [*low, least], [*high, most]
    return LinearConstraint(_matrix(entries, sum(map(len, low)), width), np.concatenate(low), np.concatenate(high))


def _chain_rows(column: Ints, size: int, types: int) -> Iterator[tuple[Ints, Ints, Floats, Floats, Floats]]:
    """(rows, columns, values, least, most) of the two blocks of one chain."""
    first, last, kind = column.T
    at = np.arange(len(column))
    inside, begun = last + 1 < size, first > 0
    # As many begin at a layer as ended before it; one begins at the first.
    yield (
        np.concatenate((first, last[inside] + 1)), np.concatenate((at, at[inside])),
        np.concatenate((np.ones(len(at)), -np.ones(int(inside.sum())))),
        np.eye(1, size)[0], np.eye(1, size)[0],
    )  # fmt: skip
    # Where something begins at all, not where the same type ended: one row a border and type.
    others = np.tile(np.arange(types), int(begun.sum()))
    which = np.repeat(at[begun], types)
    yield (
        np.concatenate((first[begun] * types + kind[begun], (last[inside] + 1) * types + kind[inside],
                        first[which] * types + others)),
        np.concatenate((at[begun], at[inside], which)),
        np.concatenate((np.ones(int(begun.sum())), np.ones(int(inside.sum())), -np.ones(len(which)))),
        np.full(size * types, -np.inf), np.zeros(size * types),
    )  # fmt: skip


def _matrix(entries: Sequence[Entries], height: int, width: int) -> coo_array:
    rows, columns, values = (np.concatenate([entry[part] for entry in entries]) for part in range(3))
    return coo_array((values, (rows, columns)), shape=(height, width)).tocsr()
