"""The page's files as the browser asks for them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from elastic_airflow.page.page_files import FOLDER

IMPORTED = re.compile(r'^(?:import|export)\b.*?from "(\.[^"]+)"', re.MULTILINE)
PAGES = sorted(FOLDER.rglob("*.html"))


def imported(module: Path, seen: set[Path]) -> set[Path]:
    """All modules that it loads, and those that they load."""
    for name in IMPORTED.findall(module.read_text()):
        path = (module.parent / name).resolve()
        if path not in seen:
            seen = imported(path, seen | {path})
    return seen


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_asks_for_all_its_modules_at_once(page: Path) -> None:
    """Else a browser learns of each only once it has read the one that imports it."""
    text = page.read_text()
    (script,) = re.findall(r'<script type="module" src="([^"]+)">', text)
    preloaded = {(page.parent / href).resolve() for href in re.findall(r'rel="modulepreload" href="([^"]+)"', text)}
    assert preloaded == imported((page.parent / script).resolve(), set())
