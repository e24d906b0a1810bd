"""The operators of ONES and the search that they make (Bian et al., SC 2021, section 3.2.2).

Uniform crossover takes every slot from one of two parents. Uniform mutation stops some jobs, and gives some others
another local batch. Reorder puts the slots of each job beside each other, so that jobs are on few nodes. Every child is
refreshed (`genome.refresh`); the fittest survive, without duplicates. The number of generations falls with the slots of
the pool and with generations without progress, never with time: the same input gives the same schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from elastic_core.policy.ones.genome import IDLE, NOBODY, Gene, Genome, Search, refresh, slots_by_job

POPULATION = 32
GENERATIONS = 40
PATIENCE = 15  # generations without progress
MOST_GENES = 100_000  # that are written in a search: bounds a decision over a large pool
MUTATION = 0.2  # chance of a job to be stopped, and of one to get another local batch
_GREEDY = 0.5  # chance that idle slots are offered in the order of remaining utility, not at random


def evolve(search: Search, seeds: Sequence[Genome], rng: Random) -> list[Genome]:
    """The last population, fittest first. `seeds`: schedules to start from."""
    breed = _Breed(search, rng)
    population = breed.survivors([breed.refreshed(genome) for genome in (*seeds, *breed.random(POPULATION))])
    generations = min(GENERATIONS, max(MOST_GENES // (2 * POPULATION * max(len(search.type_of), 1)), 1))
    stale = 0
    for _ in range(generations):
        best = search.utility(population[0])
        children = [child for _ in range(POPULATION // 2) for child in breed.crossover(*breed.parents(population))]
        mutants = [breed.mutate(rng.choice(population)) for _ in range(POPULATION)]
        everybody = [breed.refreshed(breed.reorder(child) if rng.random() < MUTATION else child)
                     for child in (*children, *mutants)]  # fmt: skip
        population = breed.survivors([*population, *everybody])
        stale = 0 if search.utility(population[0]) < best else stale + 1
        if stale >= PATIENCE:
            break
    return population


class _Breed:
    """The operators, over one search and one generator."""

    def __init__(self, search: Search, rng: Random) -> None:
        self._search, self._rng = search, rng
        rows = range(len(search.contenders))
        self._greedy = sorted(rows, key=lambda row: (min(search.contenders[row].utilities.values()), row))

    def random(self, count: int) -> list[Genome]:
        """Some jobs on the whole pool alone, then genomes of a few jobs and of many.

        Operators hardly come to a schedule of a few jobs from schedules of many: whoever is stopped starts again.
        """
        rows = range(len(self._search.contenders))
        everywhere = [(row, times) for row in rows for times in range(len(self._search.contenders[row].ladders))]
        alone = self._rng.sample(everywhere, min(len(everywhere), count // 2))
        pool = self._search.type_of
        return [(gene,) * len(pool) for gene in alone] + [self._mixed() for _ in range(count - len(alone))]

    def _mixed(self) -> Genome:
        rows = [NOBODY, *range(len(self._search.contenders))]
        genes = [self._gene(row) for row in self._rng.sample(rows, self._rng.randint(1, len(rows)))]
        return tuple(self._rng.choice(genes) for _ in self._search.type_of)

    def _gene(self, row: int) -> Gene:
        return IDLE if row == NOBODY else (row, self._rng.randrange(len(self._search.contenders[row].ladders)))

    def refreshed(self, genome: Genome) -> Genome:
        order = self._greedy
        if self._rng.random() >= _GREEDY:
            order = self._rng.sample(order, len(order))
        return refresh(self._search, genome, order)

    def parents(self, population: Sequence[Genome]) -> tuple[Genome, Genome]:
        """Tournaments of two: the population is sorted, so the smaller index wins."""
        first, second = (min(self._rng.randrange(len(population)) for _ in range(2)) for _ in range(2))
        return population[first], population[second]

    def crossover(self, first: Genome, second: Genome) -> tuple[Genome, Genome]:
        swaps = [self._rng.random() < 0.5 for _ in first]
        first_child = tuple(b if swap else a for a, b, swap in zip(first, second, swaps, strict=True))
        other = tuple(a if swap else b for a, b, swap in zip(first, second, swaps, strict=True))
        return first_child, other

    def mutate(self, genome: Genome) -> Genome:
        changed: dict[int, Gene] = {}
        for row in slots_by_job(genome):
            if self._rng.random() < MUTATION:
                changed[row] = IDLE
            elif self._rng.random() < MUTATION:
                changed[row] = self._gene(row)
        return tuple(changed.get(gene[0], gene) for gene in genome)

    def reorder(self, genome: Genome) -> Genome:
        """Jobs in the order of their first slots, each with as many slots of its type as before."""
        genes = list(genome)
        for slots in self._search.slots_of_type:
            first_seen = {gene: place for place, gene in reversed(list(enumerate(genome[at] for at in slots)))}
            ordered = sorted((genome[at] for at in slots), key=lambda gene: first_seen[gene])
            for at, gene in zip(slots, ordered, strict=True):
                genes[at] = gene
        return tuple(genes)

    def survivors(self, genomes: Sequence[Genome]) -> list[Genome]:
        return sorted(dict.fromkeys(genomes), key=self._search.utility)[:POPULATION]
