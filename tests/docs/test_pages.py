"""The docs as a whole: every page can be reached from the README, and every file that a page names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.test_links import FENCE, LINK, PAGES, ROOT

# Files as pages name them: from the top, or from elastic_core.
FILE = re.compile(r"`((?:[\w.-]+/)+[\w-]+\.py)`")
HISTORY = {"CHANGELOG.md"}  # may name what is gone


def linked(page: Path) -> set[Path]:
    targets = (link.partition("#")[0] for link in LINK.findall(FENCE.sub("", page.read_text())) if "://" not in link)
    return {(page.parent / target).resolve() for target in targets if target}


def test_every_page_can_be_reached_from_the_readme_by_links() -> None:
    reached: set[Path] = set()
    waiting = [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page not in reached:
            reached.add(page)
            waiting += [target for target in linked(page) if target.suffix == ".md" and target.exists()]
    assert {str(page.relative_to(ROOT)) for page in PAGES if page not in reached} == set()


def test_every_image_is_shown_somewhere() -> None:
    shown = set().union(*(linked(page) for page in PAGES))
    assert [image.name for image in (ROOT / "docs" / "images").iterdir() if image not in shown] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    if page.name in HISTORY:
        return
    named = FILE.findall(FENCE.sub("", page.read_text()))
    assert [name for name in named if not (ROOT / name).exists() and not (ROOT / "elastic_core" / name).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_row_stands_in_a_table_that_has_a_head(page: Path) -> None:
    tables = re.findall(r"(?:^\|.*\n)+", FENCE.sub("", page.read_text()), re.M)
    assert [table for table in tables if not re.match(r"\|.*\n\|[-:| ]+\|\n", table)] == []


def test_every_setting_that_the_docs_name_exists() -> None:
    from elastic_core.settings import Settings

    known = {f"ELASTIC_{name.upper()}" for name in Settings.model_fields} | {"ELASTIC_DATA", "ELASTIC_REQUIRE"}
    for page in PAGES:
        named = set(re.findall(r"ELASTIC_[A-Z0-9_]*[A-Z0-9]", page.read_text()))
        assert named <= known, f"{page.relative_to(ROOT)} names {sorted(named - known)}"
