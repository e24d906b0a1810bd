"""What makes a genome a schedule: one type, an admitted count, one local batch a job, and no slot that idles."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from elastic_core.policy.ones.evolution import POPULATION, evolve
from elastic_core.policy.ones.genome import IDLE, NOBODY, Contender, Genome, Search, refresh, slots_by_job
from tests.effort import EFFORT
from tests.policy.ones.searches import every_schedule, searches
from tests.policy.strategies import BUSY

FEW = settings(BUSY, max_examples=40)


def contender(*ladder: int, halved: tuple[int, ...] = (), types: tuple[int, ...] = (0,)) -> Contender:
    ladders = (ladder, halved) if halved else (ladder,)
    utilities = {
        (kind, several, count, times): float(count)
        for kind in types
        for several in (False, True)
        for times, of_times in enumerate(ladders)
        for count in of_times
    }
    return Contender(frozenset(types), ladders, utilities)


def wrong(search: Search, genome: Genome) -> list[str]:
    found = []
    for row, slots in slots_by_job(genome).items():
        job = search.contenders[row]
        if len({search.type_of[at] for at in slots}) != 1 or search.type_of[slots[0]] not in job.types:
            found.append(f"job {row} has types that it may not have")
        if len({genome[at][1] for at in slots}) != 1:
            found.append(f"job {row} has local batches that differ")
        elif len(slots) not in job.ladders[genome[slots[0]][1]]:
            found.append(f"job {row} has {len(slots)} slots")
    return found


def idle_by_type(search: Search, genome: Genome) -> dict[int, int]:
    idle = [search.type_of[at] for at, gene in enumerate(genome) if gene == IDLE]
    return {kind: idle.count(kind) for kind in set(search.type_of)}


def genomes(draw: st.DrawFn, search: Search) -> Genome:
    rng = Random(draw(st.integers(0, 10**6)))
    rows = [NOBODY, *range(len(search.contenders))]
    return tuple((row, rng.randrange(2) if row != NOBODY else 0) for row in rng.choices(rows, k=len(search.type_of)))


@FEW
@given(data=st.data())
def test_refreshing_makes_any_genome_a_schedule_and_leaves_a_schedule(data: st.DataObject) -> None:
    search = data.draw(searches())
    order = data.draw(st.permutations(range(len(search.contenders))))
    refreshed = refresh(search, genomes(data.draw, search), order)
    assert wrong(search, refreshed) == []
    assert refresh(search, refreshed, order) == refreshed


@FEW
@given(data=st.data())
def test_no_slot_idles_that_a_waiting_job_could_start_on(data: st.DataObject) -> None:
    search = data.draw(searches())
    refreshed = refresh(search, genomes(data.draw, search), range(len(search.contenders)))
    idle = idle_by_type(search, refreshed)
    for row, job in enumerate(search.contenders):
        if row not in slots_by_job(refreshed):
            assert all(idle.get(kind, 0) < job.smallest for kind in job.types)


def test_a_job_of_two_local_batches_gets_the_mean_of_them() -> None:
    search = Search((contender(1, 2, 4, halved=(1, 2, 4)),), (0,) * 4, (0,) * 4)
    assert refresh(search, ((0, 1), (0, 1), (0, 1), (0, 0)), [0]) == ((0, 1),) * 4
    assert refresh(search, ((0, 0), (0, 0), (0, 0), (0, 1)), [0]) == ((0, 0),) * 4


def test_a_batch_limit_holds_a_job_to_its_ladder() -> None:
    """Two slots of whole local batches, or four of half ones."""
    search = Search((contender(1, 2, halved=(1, 2, 4)),), (0,) * 4, (0,) * 4)
    assert refresh(search, ((0, 0),) * 4, [0]).count(IDLE) == 2
    assert refresh(search, ((0, 1),) * 4, [0]).count(IDLE) == 0


def test_slots_on_the_nodes_where_it_has_most_are_kept_and_those_beside_them_taken() -> None:
    search = Search((contender(2, 4),), (0,) * 6, (0, 0, 1, 1, 1, 1))
    assert refresh(search, ((0, 0), IDLE, (0, 0), (0, 0), IDLE, IDLE), [0]) == (IDLE, IDLE, *((0, 0),) * 4)


@FEW
@given(search=searches(), seed=st.integers(0, 100))
def test_the_search_keeps_schedules_only_none_twice_and_the_fittest_first(search: Search, seed: int) -> None:
    population = evolve(search, [], Random(seed))
    assert [wrong(search, genome) for genome in population] == [[]] * len(population)
    assert 1 <= len(population) == len(set(population)) <= POPULATION
    assert [search.utility(genome) for genome in population] == sorted(map(search.utility, population))
    assert evolve(search, [], Random(seed)) == population


@pytest.mark.nightly
def test_on_a_small_pool_the_search_nearly_always_finds_the_fittest_of_all_schedules() -> None:
    """A genetic search promises no optimum: 2 of 3,000 ended above it, by at most 30 %."""
    found = []

    @settings(BUSY, max_examples=150 * EFFORT, derandomize=True, phases=[Phase.generate])
    @given(search=searches(), seed=st.integers(0, 100))
    def compare(search: Search, seed: int) -> None:
        best = min(search.utility(genome) for genome in every_schedule(search))
        found.append(search.utility(evolve(search, [], Random(seed))[0]) <= best * (1 + 1e-9))

    compare()
    assert found.count(False) <= len(found) / 100
