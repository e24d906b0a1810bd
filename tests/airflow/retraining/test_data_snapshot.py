"""Files that are frozen before a training."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elastic_airflow.retraining.data_snapshot import Snapshot, SnapshotOperator, forget, freeze, readers
from elastic_core.control.plane import LedgerControl
from tests.airflow.doubles import FakeSupervisor, FakeTask, a_context
from tests.builders import FACTS, a_spec


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
    of_a_dead_run, of_a_parallel_run = home / ".17.making", home / ".18.making"
    for folder in (of_a_dead_run, of_a_parallel_run):
        folder.mkdir()
    os.utime(of_a_dead_run, (1e9, 1e9))
    forget(home, 2, made[-1])
    assert set(home.iterdir()) == {made[2], made[3], of_a_parallel_run}


def run_of(number: int, airflow: FakeSupervisor, source: Path) -> Path:
    """One of a backfill, up to its training: it freezes data of its own."""
    (source / "a.csv").write_text(f"day {number}")
    airflow.runs["again", f"run-{number}"] = "running"
    snapshot = SnapshotOperator(
        task_id="snapshot", data=Snapshot(files="", param="folder", keep=2), files=f"{source}/*.csv"
    )  # fmt: skip
    frozen = snapshot.execute(a_context(FakeTask("again", f"run-{number}", "snapshot")))
    os.utime(frozen["folder"], (1e9 + number, 1e9 + number))
    return Path(frozen["folder"])


@pytest.mark.usefixtures("api")
def test_runs_at_once_keep_the_data_of_each_until_it_is_over(
    files: list[Path], tmp_path: Path, airflow: FakeSupervisor, plane: LedgerControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ELASTIC_HOME", str(tmp_path))
    made = [run_of(number, airflow, files[0].parent) for number in range(5)]
    assert all(folder.is_dir() for folder in made)
    for number, state in enumerate(["success", "failed", "running", "success", "running"]):
        airflow.runs["again", f"run-{number}"] = state
    plane.submit("by-hand", a_spec(params={"path": f"{made[0]}/a.csv"}), FACTS)  # it reads the data of a run of before
    made.append(run_of(5, airflow, files[0].parent))
    assert [number for number, folder in enumerate(made) if folder.is_dir()] == [0, 2, 4, 5]
    assert readers(made[1]) == []
    plane.cancel("by-hand", "enough")
    airflow.runs["again", "run-2"] = "success"
    run_of(5, airflow, files[0].parent)
    assert [number for number, folder in enumerate(made) if folder.is_dir()] == [4, 5]
