"""`brute_force`: every choice of types, each with its best units. For small problems: types to the power of layers."""

from __future__ import annotations

from itertools import product
from typing import ClassVar

import numpy as np

from elastic_core.errors import UserError
from elastic_core.placement.planners.planner import BestOf, Found, Planner
from elastic_core.placement.stage_costs import Tables

MOST_CHOICES = 200_000


class BruteForce(Planner):
    name: ClassVar[str] = "brute_force"
    summary: ClassVar[str] = "every choice of types; small problems only"

    def search(self, tables: Tables, rng: np.random.Generator) -> Found:  # noqa: ARG002 - draws nothing
        types, layers = len(tables.problem.types), len(tables.problem.layers)
        if types**layers > MOST_CHOICES:
            raise UserError(
                f"brute_force would try {types}^{layers} choices; it takes at most {MOST_CHOICES:,}: use exact"
            )
        best = BestOf(tables)
        for choice in product(range(types), repeat=layers):
            best.cost(choice)
        return best.found(self.name, bound=None if best.best is None else best.best.cost)
