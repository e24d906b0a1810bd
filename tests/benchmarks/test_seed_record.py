"""Seeds that ran on several days add up, and it stays known on what code each of them ran."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.simulated_faults import seed_record
from benchmarks.simulated_faults.seed_record import next_seed, of_outcomes, runs, stretches, total
from benchmarks.simulated_faults.world import Outcome
from tests.benchmarks.test_simulated_faults import THAT_ONCE_BROKE


def an_outcome(seed: int, *violations: str) -> Outcome:
    return Outcome(
        seed, "horizon", changes=100, faults=Counter(crash=5), history=f"h{seed}", violations=list(violations)
    )


@given(st.sets(st.integers(0, 60)))
def test_stretches_are_the_seeds_and_no_others(seeds: set[int]) -> None:
    found = stretches(sorted(seeds))
    assert {seed for first, last in found for seed in range(first, last + 1)} == seeds
    assert all(following[0] > before[1] + 1 for before, following in pairwise(found))


def test_runs_are_read_as_they_were_added_and_add_up_by_seed_not_by_run(tmp_path: Path) -> None:
    record = tmp_path / "seeds.jsonl"
    first = of_outcomes([an_outcome(seed) for seed in (1, 0, 2)], "tree-a", "abc")
    second = of_outcomes([an_outcome(2), an_outcome(4, "at 3 s: invariant 1")], "tree-b", "def+")
    for run in (first, second):
        seed_record.add(run, record)
    known = runs(record)
    assert known == [first, second]
    assert (first.seeds, second.seeds, second.broken) == (((0, 2),), ((2, 2), (4, 4)), (4,))
    assert (first.changes, first.faults) == (300, 15)
    assert total(known) == (4, 2, 1, 1)
    assert next_seed(known) == 5
    assert first.histories != of_outcomes([an_outcome(seed) for seed in (0, 1, 3)], "tree-a", "abc").histories


def test_a_seed_is_broken_until_it_passes_and_stays_on_record_as_one_that_was() -> None:
    broke = of_outcomes([an_outcome(1, "at 3 s: invariant 1"), an_outcome(2, "at 3 s: invariant 1")], "a", "abc")
    passed = of_outcomes([an_outcome(1), an_outcome(3)], "b", "def")
    broke_again = of_outcomes([an_outcome(1, "at 3 s: invariant 4")], "c", "fed")
    assert seed_record.broken([broke]) == {1, 2}
    assert seed_record.broken([broke, passed]) == {2}
    assert seed_record.broken([broke, passed, broke_again]) == {1, 2}
    assert total([broke, passed]) == (3, 2, 2, 1)


def test_nothing_is_known_before_the_first_run(tmp_path: Path) -> None:
    assert runs(tmp_path / "none") == []
    assert next_seed([]) == 0


def test_each_seed_that_broke_something_is_tried_again_by_the_tests() -> None:
    assert {seed for run in runs() for seed in run.broken} <= THAT_ONCE_BROKE.keys()
