"""`genetic`: choices of types evolve: tournaments, one-point crossover along the layers, mutation, the best is kept.

A baseline of HeterPS (section 6), with constants of our own. A choice's cost is that with its best units.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from elastic_core.placement.planners.planner import BestOf, Found, Planner
from elastic_core.placement.planners.simple_plans import cheapest_alone
from elastic_core.placement.stage_costs import Tables

POPULATION = 32
GENERATIONS = 40
TOURNAMENT = 3

Genes = NDArray[np.intp]


class Genetic(Planner):
    name: ClassVar[str] = "genetic"
    summary: ClassVar[str] = "a genetic search over choices of types"

    def search(self, tables: Tables, rng: np.random.Generator) -> Found:
        problem, best = tables.problem, BestOf(tables)
        layers, types = len(problem.layers), len(problem.types)
        uniform = np.repeat(np.arange(types)[:, None], layers, axis=1)[:POPULATION]
        random = rng.integers(types, size=(max(0, POPULATION - len(uniform) - 1), layers))
        population: Genes = np.concatenate((uniform, [cheapest_alone(problem)], random)).astype(np.intp)
        for _ in range(GENERATIONS):
            costs = np.asarray([best.cost(genes) for genes in population])
            children = [population[int(costs.argmin())]]
            while len(children) < POPULATION:
                children.append(_child(population, costs, types, rng))
            population = np.stack(children)
        return best.found(self.name)


def _child(population: Genes, costs: NDArray[np.float64], types: int, rng: np.random.Generator) -> Genes:
    mother, father = (_winner(population, costs, rng) for _ in range(2))
    layers = len(mother)
    child = np.where(np.arange(layers) < rng.integers(layers + 1), mother, father)
    start, length = int(rng.integers(layers)), int(rng.geometric(0.5))  # neighbours change together: they form a stage
    if rng.random() < 0.7:
        child[start : start + length] = rng.integers(types)
    return child.astype(np.intp)


def _winner(population: Genes, costs: NDArray[np.float64], rng: np.random.Generator) -> Genes:
    drawn = rng.integers(len(population), size=TOURNAMENT)
    winner: Genes = population[drawn[costs[drawn].argmin()]]
    return winner
