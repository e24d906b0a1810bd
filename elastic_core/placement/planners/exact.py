"""`exact`: the optimum, with its proof; `milp`: the same by the integer program alone. The search is `cycle_search`'s.

Promises the cheapest placement where the search ends by itself, and a bound where it ends at its number of looks.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from elastic_core.placement.planners import floor_reach
from elastic_core.placement.planners.cycle_search import CycleSearch
from elastic_core.placement.planners.planner import PROVED, Found, NoPlacement, Planner
from elastic_core.placement.stage_costs import Tables


class Exact(Planner):
    """`most_looks`: cycle times that are looked at; `gap`: relative, at which the search ends."""

    name: ClassVar[str] = "exact"
    summary: ClassVar[str] = (
        "the optimum, proved: shortest paths over cycle times, an integer program where units are short"
    )
    _shared_only: ClassVar[bool] = False

    def __init__(self, most_looks: int = 20_000, gap: float = PROVED) -> None:
        self._most_looks = most_looks
        self._gap = gap

    def search(self, tables: Tables, rng: np.random.Generator) -> Found:  # noqa: ARG002 - draws nothing
        search = CycleSearch(tables, shared_only=self._shared_only)
        found = search.run(self._most_looks, self._gap)
        if found is not None:
            return found
        if search.looked >= self._most_looks:
            raise NoPlacement(
                f"placement {tables.problem.name!r}: none was found at {search.looked} cycle times, and it is not "
                "proved that there is none; give the search more of them (most_looks)"
            )
        raise floor_reach.refusal(tables, shared_only=self._shared_only)


class Milp(Exact):
    name: ClassVar[str] = "milp"
    summary: ClassVar[str] = "the optimum by the integer program alone"
    _shared_only: ClassVar[bool] = True
