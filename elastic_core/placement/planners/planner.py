"""What a planner is, what it answers, and what it says where no plan meets the floor."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from elastic_core.errors import UserError
from elastic_core.placement.placement_problem import PlacementProblem
from elastic_core.placement.stage_costs import Placement, Tables

PROVED = 1e-8  # relative gap up to which a placement counts as the optimum: rounding, and what solvers leave


class NoPlacement(UserError):
    """The planner found no placement within floor, units and memory; where that is proved the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a search came to. `bound`: cost that no placement is below, None where the planner proves nothing;
    `evaluated`: cycle times, or choices of types, that were looked at."""

    placement: Placement
    bound: float | None
    evaluated: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A planner's answer. `seconds`: that it took."""

    planner: str
    placement: Placement
    bound: float | None
    evaluated: int
    seconds: float

    @property
    def gap(self) -> float | None:
        """How far above the optimum the cost may be, as a part of it; None: not known."""
        return None if self.bound is None else max(0.0, self.placement.cost / self.bound - 1.0)

    @property
    def proved(self) -> bool:
        return self.gap is not None and self.gap <= 2.0 * PROVED


class Planner(ABC):
    """Plans are a function of problem and `rng` alone: no clock ends a search."""

    name: ClassVar[str]
    summary: ClassVar[str]

    @abstractmethod
    def search(self, tables: Tables, rng: np.random.Generator) -> Found:
        """Raises `NoPlacement`, or `UserError` for a problem that this planner is not for."""

    def plan(self, problem: PlacementProblem, seed: int = 0) -> Planned:
        started = time.perf_counter()
        found = self.search(Tables.of(problem), np.random.default_rng(seed))
        return Planned(planner=self.name, placement=found.placement, bound=found.bound, evaluated=found.evaluated,
                       seconds=time.perf_counter() - started)  # fmt: skip


class BestOf:
    """Remembers the cheapest of the choices of types that a search tries; each is provisioned once."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.best: Placement | None = None
        self._costs: dict[tuple[int, ...], float] = {}

    def cost(self, types: Sequence[int]) -> float:
        """Cost with the best units; inf where no units meet floor and limits."""
        key = tuple(int(kind) for kind in types)
        if key not in self._costs:
            placement = self.tables.provision(key)
            self._costs[key] = np.inf if placement is None else placement.cost
            if placement is not None and (self.best is None or placement.cost < self.best.cost):
                self.best = placement
        return self._costs[key]

    def found(self, planner: str, bound: float | None = None) -> Found:
        if self.best is None:
            raise NoPlacement(f"{planner} found no placement of {self.tables.problem.name!r} within floor, units and "
                              f"memory, in {len(self._costs)} tried; `exact` says whether there is one")  # fmt: skip
        return Found(placement=self.best, bound=bound, evaluated=len(self._costs))
