"""The benchmark of the page opens all pages that there are, and judges each."""

from __future__ import annotations

from pathlib import Path

from benchmarks.page.__main__ import PAGES

UI = Path(__file__).parents[2] / "plugins" / "elastic_airflow" / "page" / "ui"


def test_every_page_is_opened() -> None:
    opened = {shown.path.partition("?")[0] or "index.html" for shown in PAGES}
    assert opened == {file.relative_to(UI).as_posix() for file in UI.rglob("*.html")}
    assert len(PAGES) == len(opened) == 6
