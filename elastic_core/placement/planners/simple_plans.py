"""What needs no search: all on CPUs, all on accelerators, the first layers on CPUs, and a greedy choice by layer.

The rules that HeterPS compares itself with (section 6): "CPU", "GPU", the heuristic of AIBox and BytePS that puts the
wide input on CPUs and the rest on accelerators, and "Greedy". Each takes the best of the types that its rule leaves
open, and the best units.
"""

from __future__ import annotations

from itertools import product
from typing import ClassVar

import numpy as np

from elastic_core.errors import UserError
from elastic_core.placement.placement_problem import PlacementProblem
from elastic_core.placement.planners.planner import BestOf, Found, Planner
from elastic_core.placement.stage_costs import Tables


class _OneType(Planner):
    _cpu: ClassVar[bool]

    def search(self, tables: Tables, rng: np.random.Generator) -> Found:  # noqa: ARG002 - draws nothing
        best = BestOf(tables)
        for kind in types_of(tables.problem, cpu=self._cpu):
            best.cost([kind] * len(tables.problem.layers))
        return best.found(self.name)


class CpuOnly(_OneType):
    name: ClassVar[str] = "cpu_only"
    summary: ClassVar[str] = "all layers on the best type of CPU"
    _cpu: ClassVar[bool] = True


class GpuOnly(_OneType):
    name: ClassVar[str] = "gpu_only"
    summary: ClassVar[str] = "all layers on the best type of accelerator"
    _cpu: ClassVar[bool] = False


class FirstOnCpu(Planner):
    """First: up to the last layer of kind "embedding"; the first layer alone where there is none."""

    name: ClassVar[str] = "first_on_cpu"
    summary: ClassVar[str] = "the input layers on CPUs, the rest on accelerators"

    def search(self, tables: Tables, rng: np.random.Generator) -> Found:  # noqa: ARG002 - draws nothing
        problem, best = tables.problem, BestOf(tables)
        order = [layer for chain in problem.chains for layer in chain]
        wide = [place for place, layer in enumerate(order) if problem.layers[layer].kind == "embedding"]
        first = set(order[: max(wide, default=0) + 1])
        for cpu, gpu in product(types_of(problem, cpu=True), types_of(problem, cpu=False)):
            best.cost([cpu if layer in first else gpu for layer in range(len(problem.layers))])
        return best.found(self.name)


class Greedy(Planner):
    """Layer by layer, the type on which the layer alone costs least; stages are not looked at."""

    name: ClassVar[str] = "greedy"
    summary: ClassVar[str] = "every layer where it alone costs least"

    def search(self, tables: Tables, rng: np.random.Generator) -> Found:  # noqa: ARG002 - draws nothing
        best = BestOf(tables)
        best.cost(cheapest_alone(tables.problem))
        return best.found(self.name)


def cheapest_alone(problem: PlacementProblem) -> list[int]:
    return [
        min(
            range(len(problem.types)),
            key=lambda t: problem.types[t].price * layer.on[problem.types[t].name].compute_seconds,
        )
        for layer in problem.layers
    ]


def types_of(problem: PlacementProblem, *, cpu: bool) -> list[int]:
    """By index. Raises `UserError` where there are none."""
    found = [index for index, kind in enumerate(problem.types) if kind.is_cpu == cpu]
    if not found:
        wanted, have = ("CPU", "accelerators") if cpu else ("accelerator", "CPUs")
        raise UserError(
            f"placement {problem.name!r} has no type of {wanted}, only {have} (is_cpu of a type says which)"
        )
    return found
