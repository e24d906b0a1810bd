"""What a job may name is read from the project's source, and none of it is run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from elastic_core.spec.catalogue.entry_catalogue import EntryListed, ParamListed, find_entries

ROOT = Path(__file__).parents[3]
MODEL = '''"""Cats and dogs."""
raise SystemExit("nobody reads a DAG file to run this")

class CatParams(BaseModel):
    width: int = 8
    depth: int = Field(ge=1, description="blocks")
    rate: float = Field(default=1e-3, gt=0)

class Cats(Task):
    """Pictures of cats.

    More of it."""
    Params = CatParams

class Dogs(Cats): ...
class _Base(Task): ...
class Helper: ...

def train(session: Session) -> None: ...
def split(rows): ...
'''


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pets").mkdir()
    (tmp_path / "pets" / "__init__.py").write_text("")
    (tmp_path / "pets" / "models.py").write_text(MODEL)
    (tmp_path / "pets" / "broken.py").write_text("def (")
    (tmp_path / "pets" / "others.py").write_text(
        "class Cats(Module): ...\nclass Birds(models.Dogs):\n    class Params(Base):\n        wings: int = 2\n"
    )
    (tmp_path / "secret.py").write_text("class Hidden(Task): ...")
    return tmp_path


def test_tasks_and_loops_of_allowed_modules_are_found_with_words_and_parameters(project: Path) -> None:
    cats = (
        ParamListed(name="width", kind="int", default="8", about="", schema={"type": "integer"}),
        ParamListed(name="depth", kind="int", default=None, about="blocks", schema={"type": "integer", "minimum": 1}),
        ParamListed(
            name="rate", kind="float", default="0.001", about="", schema={"type": "number", "exclusiveMinimum": 0}
        ),
    )
    wings = (ParamListed(name="wings", kind="int", default="2", about="", schema={"type": "integer"}),)
    assert find_entries(project, "pets.*") == (
        EntryListed(entry_point="pets.models:Cats", about="Pictures of cats.", params=cats),
        EntryListed(entry_point="pets.models:Dogs", about="Cats and dogs.", params=cats),
        EntryListed(entry_point="pets.models:train", about="Cats and dogs.", params=()),
        EntryListed(entry_point="pets.others:Birds", about="", params=wings),
    )


@pytest.mark.parametrize(
    ("patterns", "found"),
    [
        ("secret", ["secret:Hidden"]),
        ("pets.oth*, secret", ["pets.others:Birds", "secret:Hidden"]),
        ("", []),
        ("nothing.*", []),
    ],
)
def test_only_what_the_operator_allows_is_told(project: Path, patterns: str, found: list[str]) -> None:
    assert [entry.entry_point for entry in find_entries(project, patterns)] == found


def test_an_editors_lock_and_what_cannot_be_read_are_passed_over(project: Path) -> None:
    told = find_entries(project, "*")
    (project / "pets" / ".#models.py").symlink_to("ann@host.4711:1700000000")  # as Emacs does
    (project / "pets" / "gone.py").symlink_to("nowhere.py")
    (project / ".#mine.py").symlink_to("ann@host.4711:1700000000")
    os.mkfifo(project / "pets" / "waits.py")
    assert find_entries(project, "*") == told


@pytest.mark.parametrize("place", [".venv", "venv", "pets/env", ".cache", "pets/__pycache__", "pets/node_modules"])
def test_installed_packages_hidden_folders_and_caches_do_not_use_up_the_files_that_are_read(
    project: Path, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = find_entries(project, "*")
    assert "secret:Hidden" in {entry.entry_point for entry in told}
    monkeypatch.setattr("elastic_core.spec.catalogue.entry_catalogue.MOST_FILES", 5)
    packages = project / place / "lib" / "packages"
    packages.mkdir(parents=True)
    if "env" in place:
        (project / place / "pyvenv.cfg").write_text("home = /usr/bin\n")
    for number in range(5):
        (packages / f"a{number}.py").write_text("class Installed(Task): ...")
    assert find_entries(project, "*") == told


def test_a_project_that_is_not_there_offers_nothing(tmp_path: Path) -> None:
    assert find_entries(tmp_path / "gone", "pets.*") == ()


def test_a_class_that_inherits_from_itself_is_no_trouble(tmp_path: Path) -> None:
    (tmp_path / "odd.py").write_text("class A(B): ...\nclass B(A): ...\nclass Task(Task): ...\n")
    assert find_entries(tmp_path, "odd") == (EntryListed(entry_point="odd:Task", about="", params=()),)


def test_the_examples_are_all_there() -> None:
    told = {entry.entry_point: entry for entry in find_entries(ROOT, "examples.*")}
    assert {"examples.digits:Digits", "examples.bytes_lm:BytesLM", "examples.plain_loop:train"} <= told.keys()
    assert [param.name for param in told["examples.digits:Digits"].params] == ["width", "learning_rate"]
