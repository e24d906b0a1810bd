"""A genetic search over allocations: whole numbers by job and node, repaired after every step (Pollux, OSDI 2021, 4.2).

Crossover is one cut in the list of jobs. Mutation sets jobs back to what they hold, empties places, and fills free
ones, above all those beside slots that the job has already. Repair keeps every solution valid: one type and an allowed
count for each job, no node over its size, and at most one job of several nodes on a node, since two would share its
network. The best survive, without duplicates. It ends after so many generations, or so many without any progress.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

States = NDArray[np.int64]  # solutions x jobs x nodes
Fitness = Callable[[States], NDArray[np.float64]]

POPULATION = 100
GENERATIONS = 100
PATIENCE = 25  # generations without progress
_TOUCHED = 0.1  # share of the jobs that a mutation sets back, and of those in which it empties places


@dataclass(frozen=True)
class Problem:
    """`allowed[j, n]`: the largest count of job j up to n. `may_use[j, node]`: whether the job may use its type."""

    sizes: States  # by node
    type_of: States  # by node
    allowed: States
    may_use: NDArray[np.bool_]
    base: States  # jobs x nodes: what is held now


def search(problem: Problem, seeds: States, fitness: Fitness, rng: np.random.Generator) -> tuple[States, States]:
    """(the best solution, the population, best first). `seeds`: solutions to start from."""
    population = repair(problem, np.concatenate((problem.base[None], seeds)), rng)
    missing = POPULATION - len(population)
    if missing > 0:
        again = np.repeat(population, -(-missing // len(population)), axis=0)[:missing]
        population = np.concatenate((population, repair(problem, mutate(problem, again, rng), rng)))
    population, scores = _survivors(population, fitness(population))
    stale = 0
    for _ in range(GENERATIONS):
        best = scores[0]
        children = repair(problem, mutate(problem, crossover(_parents(population, rng), rng), rng), rng)
        everybody = np.concatenate((population, children))
        population, scores = _survivors(everybody, np.concatenate((scores, fitness(children))))
        stale = 0 if scores[0] > best else stale + 1
        if stale >= PATIENCE:
            break
    return population[0], population


def _parents(population: States, rng: np.random.Generator) -> States:
    """Tournaments of two: the population is sorted, so the smaller index wins."""
    chosen: States = population[rng.integers(len(population), size=(POPULATION, 2)).min(axis=1)]
    return chosen


def _survivors(states: States, scores: NDArray[np.float64]) -> tuple[States, NDArray[np.float64]]:
    seen: set[bytes] = set()
    survivors = []
    for at in np.argsort(-scores, kind="stable").tolist():
        key = states[at].tobytes()
        if key not in seen:
            seen.add(key)
            survivors.append(at)
        if len(survivors) == POPULATION:
            break
    return states[survivors], scores[survivors]


def crossover(states: States, rng: np.random.Generator) -> States:
    """Neighbours in the list exchange all jobs up to a random one."""
    half, num_jobs = len(states) // 2, states.shape[1]
    first, second = states[:half].copy(), states[half : 2 * half].copy()
    swap = (np.arange(num_jobs) < rng.integers(num_jobs, size=(half, 1)))[:, :, None]
    return np.concatenate((np.where(swap, second, first), np.where(swap, first, second)))


def mutate(problem: Problem, states: States, rng: np.random.Generator) -> States:
    back = rng.random(states.shape[:2]) < _TOUCHED
    states = np.where(back[:, :, None], problem.base, states)
    empties = np.where(rng.random(states.shape[:2]) < _TOUCHED, _TOUCHED, 0.0)
    states = np.where(rng.random(states.shape) < empties[:, :, None], 0, states)
    open_node = (problem.sizes - states.sum(axis=1) > 0)[:, None, :] & problem.may_use
    anywhere = _one_of(open_node)
    beside = _one_of(open_node & (states > 0))
    grows = rng.random(states.shape) < anywhere + beside - anywhere * beside
    return np.where(grows, rng.integers(states, problem.sizes + 1), states)


def _one_of(mask: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Chances that pick one job a node on average among those of the mask."""
    chances: NDArray[np.float64] = mask / np.maximum(mask.sum(axis=1, keepdims=True), 1)
    return chances


def repair(problem: Problem, states: States, rng: np.random.Generator) -> States:
    states = _one_type(problem, np.where(problem.may_use, np.minimum(states, problem.sizes), 0))
    spread = np.count_nonzero(states, axis=2) > 1
    shared = ((states > 0) & spread[:, :, None]).cumsum(axis=1) > 1
    states = np.where(shared & (states > 0) & spread[:, :, None], 0, states)
    states = np.diff(np.minimum(states.cumsum(axis=1), problem.sizes), axis=1, prepend=0)
    return _allowed(problem, states, rng)


def _one_type(problem: Problem, states: States) -> States:
    """Each job keeps the type that it has most of."""
    num_types = int(problem.type_of.max(initial=0)) + 1
    if num_types == 1:
        return states
    by_type = np.stack([states[:, :, problem.type_of == kind].sum(axis=2) for kind in range(num_types)], axis=2)
    return np.where(by_type.argmax(axis=2)[:, :, None] == problem.type_of, states, 0)


def _allowed(problem: Problem, states: States, rng: np.random.Generator) -> States:
    """Down to the next allowed count, from random nodes."""
    rows = np.arange(states.shape[1])
    most = problem.allowed[rows, np.minimum(states.sum(axis=2), problem.allowed.shape[1] - 1)]
    order = np.argsort(rng.random(states.shape), axis=2)
    mixed = np.take_along_axis(states, order, axis=2)
    kept_slots = np.diff(np.minimum(mixed.cumsum(axis=2), most[:, :, None]), axis=2, prepend=0)
    result = np.empty_like(states)
    np.put_along_axis(result, order, kept_slots, axis=2)
    return result
