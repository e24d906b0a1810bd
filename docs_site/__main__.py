"""`python -m docs_site`: writes the pages that MkDocs builds the site of into build/site-pages.

The pages of docs/ and those of the repository's root (the README is the first page), their links made to hold there: a
link to a file that is no page becomes the file's name. Then the reference (`docs_site.reference`).
"""

from __future__ import annotations

import re
import shutil
from os.path import relpath
from pathlib import Path

from docs_site.reference import pages

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "build" / "site-pages"
ROOT_PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "LICENSE")
COPIED = (".md", ".png", ".json")
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"(^```.*?^```)", re.M | re.S)


def main() -> None:
    shutil.rmtree(TARGET, ignore_errors=True)
    placed = {
        ROOT / name: TARGET / ("index.md" if name == "README.md" else f"{name.removesuffix('.md')}.md")
        for name in ROOT_PAGES
    }
    placed |= {
        path: TARGET / path.relative_to(ROOT / "docs")
        for path in sorted((ROOT / "docs").rglob("*"))
        if path.suffix in COPIED
    }
    for source, target in placed.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        if target.suffix == ".md":
            target.write_text(_with_links(source, target, placed))
        else:
            shutil.copyfile(source, target)
    for name, text in pages().items():
        page = TARGET / "reference" / name
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(text)


def _with_links(source: Path, target: Path, placed: dict[Path, Path]) -> str:
    def moved(found: re.Match[str]) -> str:
        image, words, link = found.groups()
        path, hash_, anchor = link.partition("#")
        if not path or "://" in path or path.startswith("mailto:"):
            return found[0]
        there = (source.parent / path).resolve()
        if there.is_dir() and there / "README.md" in placed:
            there /= "README.md"
        if there not in placed:
            name = there.relative_to(ROOT).as_posix()
            return f"{words} (`{name}`)" if name.rpartition("/")[2] not in words else f"`{name}`"
        return f"{image}[{words}]({relpath(placed[there], target.parent)}{hash_}{anchor})"

    text = source.read_text()
    if source.name == "LICENSE":
        return f"# Licence\n\n```text\n{text}\n```\n"
    return "".join(part if part.startswith("```") else _LINK.sub(moved, part) for part in _FENCE.split(text))


if __name__ == "__main__":
    main()
