"""The catalogue of mutants fits the code as it is, and what plants them puts the code back."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.mutants.__main__ import Tree
from benchmarks.mutants.catalogue import MUTANTS, by_name
from benchmarks.mutants.mutant import RULE, Mutant

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_edit_is_of_a_text_that_is_there_once(mutant: Mutant) -> None:
    for file, old, new in mutant.edits:
        assert (ROOT / file).read_text().count(old) == 1, f"{file}: {old!r}"
        assert old != new


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_named_test_is_there(mutant: Mutant) -> None:
    assert mutant.simulated or mutant.tests, "nothing could catch it"
    for test in mutant.tests:
        file, *names = test.split("::")
        text = (ROOT / file).read_text()
        assert [name for name in names if f"def {name}(" not in text and f"class {name}:" not in text] == []


def test_every_invariant_has_a_mutant() -> None:
    assert {mutant.invariant for mutant in MUTANTS} == {RULE, *range(1, 10)}
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


def test_a_mutant_is_planted_in_a_copy_and_taken_out_again(tmp_path: Path) -> None:
    mutant = by_name("fencing frees the slots")
    ((file, old, new),) = mutant.edits
    tree = Tree(tmp_path, seeds=1)
    sound = (ROOT / file).read_text()
    with tree.planted(mutant):
        assert (tmp_path / file).read_text() == sound.replace(old, new)
    assert (tmp_path / file).read_text() == sound == (ROOT / file).read_text()


def test_a_mutant_whose_text_is_gone_is_told(tmp_path: Path) -> None:
    gone = Mutant("gone", 1, (("elastic_core/errors.py", "no such line", ""),))
    tree = Tree(tmp_path, seeds=1)
    with (
        pytest.raises(SystemExit, match=r"elastic_core/errors\.py has 'no such line' 0 times, not once"),
        tree.planted(gone),
    ):
        pass
