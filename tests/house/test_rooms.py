"""The house stays as it was laid out: folders of a dozen files, files with names of their own, packages that say what
lives in them."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROOMS = [ROOT / "elastic_core", ROOT / "plugins" / "elastic_airflow"]
PACKAGES = sorted({file.parent for room in ROOMS for file in room.rglob("*.py") if file.parent.name != "versions"})
MAX_FILES, MAX_LINES = 14, 400


def sources() -> list[Path]:
    return [file for package in PACKAGES for file in package.glob("*.py") if file.name != "__init__.py"]


@pytest.mark.parametrize("folder", [*PACKAGES, ROOT / "benchmarks"], ids=lambda path: str(path.relative_to(ROOT)))
def test_a_folder_holds_a_dozen_files_or_so(folder: Path) -> None:
    assert len([file for file in folder.glob("*.py") if file.name != "__init__.py"]) <= MAX_FILES


def test_files_have_names_of_their_own() -> None:
    counts = Counter(file.stem for file in sources() if "migrations" not in file.parts)
    assert [name for name, count in counts.items() if count > 1] == []


def test_no_file_is_longer_than_four_hundred_lines() -> None:
    lengths = {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in sources()}
    assert {name: length for name, length in lengths.items() if length > MAX_LINES} == {}


def test_half_of_the_files_are_shorter_than_one_hundred_and_fifty_lines() -> None:
    lengths = sorted(len(file.read_text().splitlines()) for file in sources())
    assert lengths[len(lengths) // 2] < 150


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_package_says_what_lives_in_it_and_what_may_come_in(package: Path) -> None:
    doc = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    assert len(doc.splitlines()) >= 2, f"{package.relative_to(ROOT)}/__init__.py: {doc!r}"


def test_a_file_says_what_it_is() -> None:
    assert [
        str(file.relative_to(ROOT)) for file in sources() if not ast.get_docstring(ast.parse(file.read_text()))
    ] == []


def test_tests_mirror_the_rooms() -> None:
    """A folder of tests is one of the code's: tests of a file lie where the file lies."""
    known = {package.relative_to(ROOT / "elastic_core") for package in PACKAGES if package.is_relative_to(ROOMS[0])}
    known |= {
        Path("airflow") / package.relative_to(ROOMS[1]) for package in PACKAGES if package.is_relative_to(ROOMS[1])
    }
    own = {
        Path(name)
        for name in (
            "e2e",
            "e2e/faults",
            "machines",
            "house",
            "docs",
            "examples",
            "benchmarks",
            "train/runs",
            "security",
            "security/odd_specs",
        )
    }
    own |= {path.parent.relative_to(ROOT) for path in (ROOT / "benchmarks").glob("*/__init__.py")}
    folders = {file.parent.relative_to(ROOT / "tests") for file in (ROOT / "tests").rglob("test_*.py")}
    assert {str(folder) for folder in folders - known - own} == set()


def test_tests_of_real_services_lie_where_make_e2e_looks_for_them() -> None:
    (listed,) = re.findall(r"^E2E := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    marked = {file.relative_to(ROOT).parts[1] for file in (ROOT / "tests").rglob("test_*.py")
              if re.search(r"\bmark\.e2e\b", file.read_text())}  # fmt: skip
    assert marked | {"e2e"} == {Path(folder).name for folder in listed.split()}
