"""Files that are frozen before a training."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elastic_airflow.retraining.data_snapshot import forget, freeze


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "source"
    folder.mkdir()
    for name in ("a.csv", "b.csv"):
        (folder / name).write_text(f"{name},1\n")
    return sorted(folder.iterdir())


def test_what_changes_later_does_not_change_the_copy(files: list[Path], tmp_path: Path) -> None:
    folder = freeze(files, tmp_path / "home")
    with files[0].open("a") as file:
        file.write("more\n")
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"a.csv": "a.csv,1\n", "b.csv": "b.csv,1\n"}


def test_the_same_files_make_the_same_snapshot_and_other_contents_another(files: list[Path], tmp_path: Path) -> None:
    home = tmp_path / "home"
    first = freeze(files, home)
    assert freeze(files, home) == first
    files[1].write_text("else")
    assert freeze(files, home) != first
    assert len(list(home.iterdir())) == 2


def test_a_copy_that_fails_leaves_nothing(files: list[Path], tmp_path: Path) -> None:
    home = tmp_path / "home"
    with pytest.raises(FileNotFoundError):
        freeze([*files, tmp_path / "gone.csv"], home)
    assert list(home.iterdir()) == []


def test_two_files_of_one_name_are_refused(files: list[Path], tmp_path: Path) -> None:
    other = tmp_path / "other" / "a.csv"
    other.parent.mkdir()
    other.write_text("x")
    with pytest.raises(ValueError, match=r"these names come from several: a\.csv"):
        freeze([*files, other], tmp_path / "home")


def test_the_newest_stay_and_what_was_being_made_goes(files: list[Path], tmp_path: Path) -> None:
    home, made = tmp_path / "home", []
    for number in range(4):
        files[0].write_text(str(number))
        made.append(freeze(files, home))
        os.utime(made[-1], (number, number))
    (home / ".17.making").mkdir()
    forget(home, 2, made[-1])
    assert set(home.iterdir()) == {made[2], made[3]}
