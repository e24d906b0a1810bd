"""Every solution of the search is valid, and on small problems the search finds the best there is."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elastic_core.policy.pollux.genetic import Problem, States, crossover, mutate, repair, search
from tests.policy.strategies import BUSY


@st.composite
def problems(draw: st.DrawFn, jobs: int = 4, nodes: int = 4) -> Problem:
    num_jobs, num_nodes = draw(st.integers(1, jobs)), draw(st.integers(1, nodes))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    sizes = rng.integers(1, 5, num_nodes)
    counts = [sorted({0, *rng.integers(1, 9, 3).tolist()}) for _ in range(num_jobs)]
    total = int(sizes.sum())
    base = np.zeros((num_jobs, num_nodes), dtype=np.int64)
    return Problem(
        sizes=sizes,
        type_of=rng.integers(0, 2, num_nodes),
        allowed=np.asarray([[max(c for c in mine if c <= n) for n in range(total + 1)] for mine in counts]),
        may_use=rng.random((num_jobs, num_nodes)) < 0.9,
        base=base,
    )


def wrong(problem: Problem, state: States) -> list[str]:
    found = []
    if (state < 0).any() or (state.sum(axis=0) > problem.sizes).any():
        found.append("a node over its size")
    if (state[~problem.may_use] > 0).any():
        found.append("a type that the job may not use")
    several = [row for row in state if np.count_nonzero(row) > 1]
    if several and (np.asarray([row > 0 for row in several]).sum(axis=0) > 1).any():
        found.append("two jobs of several nodes on one node")
    for job, row in enumerate(state):
        if row.sum() != problem.allowed[job, row.sum()]:
            found.append(f"job {job} has {row.sum()} slots")
        if len(set(problem.type_of[row > 0].tolist())) > 1:
            found.append(f"job {job} has two types")
    return found


@settings(BUSY, max_examples=60)
@given(problem=problems(), seed=st.integers(0, 10**6))
def test_repair_makes_anything_valid_and_leaves_what_is_valid(problem: Problem, seed: int) -> None:
    rng = np.random.default_rng(seed)
    states = rng.integers(0, 9, (30, *problem.base.shape))
    repaired = repair(problem, states, rng)
    assert [wrong(problem, state) for state in repaired] == [[]] * 30
    assert (repair(problem, repaired, rng) == repaired).all()


@settings(BUSY, max_examples=30)
@given(problem=problems(), seed=st.integers(0, 10**6))
def test_steps_keep_the_number_of_solutions_and_take_jobs_as_they_are(problem: Problem, seed: int) -> None:
    rng = np.random.default_rng(seed)
    parents = repair(problem, rng.integers(0, 5, (10, *problem.base.shape)), rng)
    crossed = crossover(parents, rng)
    assert crossed.shape == parents.shape
    rows = {(job, row.tobytes()) for state in parents for job, row in enumerate(state)}
    assert {(job, row.tobytes()) for state in crossed for job, row in enumerate(state)} <= rows
    assert mutate(problem, crossed, rng).shape == parents.shape


@pytest.mark.parametrize("seed", range(5))
def test_it_finds_the_best_of_a_small_problem(seed: int) -> None:
    """Two jobs of square-root speed and one that scales, on two nodes of four; against every combination."""
    sizes = np.asarray([4, 4])
    problem = Problem(
        sizes=sizes,
        type_of=np.zeros(2, dtype=np.int64),
        allowed=np.tile(np.arange(9), (3, 1)),
        may_use=np.ones((3, 2), dtype=bool),
        base=np.zeros((3, 2), dtype=np.int64),
    )

    def fitness(states: States) -> np.ndarray:
        counts = states.sum(axis=2).astype(float)
        speed = np.stack((counts[:, 0] ** 0.5, counts[:, 1] ** 0.5, counts[:, 2]), axis=1)
        return np.asarray(1.0 / (1.0 / (speed + 1e-3)).mean(axis=1))

    best, population = search(problem, np.zeros((0, 3, 2), dtype=np.int64), fitness, np.random.default_rng(seed))
    every = np.asarray([c for c in product(range(9), repeat=3) if sum(c) <= 8])
    states = np.zeros((len(every), 3, 2), dtype=np.int64)
    states[:, :, 0] = every
    assert fitness(best[None])[0] == pytest.approx(fitness(states).max())
    assert wrong(problem, best) == []
    assert len({state.tobytes() for state in population}) == len(population)
