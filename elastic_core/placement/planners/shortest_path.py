"""The cheapest way to cut a chain into stages, given what every stretch costs: a shortest path over (layer, last type).

Two stages that follow each other are of different types, else they were one stage; the path therefore keeps, at each
layer, the cheapest and the second type. Many tables of costs are solved at once: cycle times are tried in batches.
"""

from __future__ import annotations

from math import inf

import numpy as np
from numpy.typing import NDArray

from elastic_core.placement.stretches import Floats

Cut = list[tuple[int, int, int]]  # (first, last, type) of every stage of a chain


class Paths:
    """`costs`: (batch, n, n, types), [.., first, last, type]; inf for what may not be. `value`: (batch,)."""

    def __init__(self, costs: Floats) -> None:
        batch, size, _, types = costs.shape
        self._first: NDArray[np.intp] = np.zeros((batch, size, types), dtype=np.intp)
        self._upto = np.full((batch, size + 1, types), inf)  # ending before a layer, the last stage of a type
        self._other = np.zeros((batch, size + 1, types))  # the least of the other types; nothing before the first layer
        for last in range(size):
            sums = self._other[:, : last + 1, :] + costs[:, : last + 1, last, :]
            self._first[:, last, :] = sums.argmin(axis=1)
            self._upto[:, last + 1, :] = sums.min(axis=1)
            self._other[:, last + 1, :] = _least_of_others(self._upto[:, last + 1, :])
        self.value: Floats = self._upto[:, size, :].min(axis=1)

    def cut(self, row: int) -> Cut:
        """The stages of one table's cheapest path, from the first layer on; only where its value is finite."""
        backwards: Cut = []
        end, not_type = self._first.shape[1], -1
        while end > 0:
            ending = self._upto[row, end].copy()
            if not_type >= 0:
                ending[not_type] = inf
            kind = int(ending.argmin())
            first = int(self._first[row, end - 1, kind])
            backwards.append((first, end - 1, kind))
            end, not_type = first, kind
        return backwards[::-1]


def _least_of_others(ending: Floats) -> Floats:
    """(batch, types): for every type the least of all others; inf where there is no other."""
    if ending.shape[1] == 1:
        return np.full_like(ending, inf)
    least = ending.argmin(axis=1)
    rows = np.arange(len(ending))
    without = ending.copy()
    without[rows, least] = inf
    result: Floats = np.repeat(ending[rows, least][:, None], ending.shape[1], axis=1)
    result[rows, least] = without.min(axis=1)
    return result
