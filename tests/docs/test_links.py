"""What the docs point at exists: files, headings, make targets, `elastic` commands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer.main

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.M | re.S)


def anchors(page: Path) -> set[str]:
    """Headings as GitHub names them in links."""
    headings = re.findall(r"^#+\s+(.*)$", FENCE.sub("", page.read_text()), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_of_a_page_leads_somewhere(page: Path) -> None:
    missing = []
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        target, _, anchor = link.partition("#")
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or (anchor and file.suffix == ".md" and anchor not in anchors(file)):
            missing.append(link)
    assert missing == []


def test_every_make_target_that_the_docs_name_exists() -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.M))
    named = {word for page in PAGES for word in re.findall(r"`make ([a-z0-9-]+)", page.read_text())}
    assert named
    assert named <= targets


def commands(command: object, path: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    found = {path}
    for name, sub in getattr(command, "commands", {}).items():
        found |= commands(sub, (*path, name))
    return found


def test_every_elastic_command_that_the_docs_name_exists() -> None:
    from elastic_core.cli import build

    known = commands(typer.main.get_command(build()))
    groups = {path[0] for path in known if len(path) > 1}
    for page in PAGES:
        for words in re.findall(r"`elastic ([a-z-]+(?: [a-z-]+)?)", page.read_text()):
            path = tuple(words.split())
            path = path if path[0] in groups else path[:1]
            assert path in known, f"{page.relative_to(ROOT)} names `elastic {words}`"
