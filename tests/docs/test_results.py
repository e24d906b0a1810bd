"""The pages of results are what their JSON renders to: a figure that is typed by hand is noticed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.common import results
from benchmarks.common.report import Report

KEPT = sorted(path.stem for path in results.RESULTS.glob("*.json"))


@pytest.mark.parametrize("page", [*(f"{name}.md" for name in KEPT), results.LIST])
def test_a_page_is_what_its_json_renders_to(page: str) -> None:
    assert (results.RESULTS / page).read_text() == results.pages()[page]


def test_no_page_is_without_its_json() -> None:
    assert {path.name for path in results.RESULTS.glob("*.md")} == set(results.pages())


def test_a_run_is_kept_without_its_raw_figures_and_shows_every_bar_and_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.common.report.OUT", tmp_path)
    report = Report("sums", quick=True)
    report.figure("seconds", [0.1, 0.2])
    report.bar("a sum is quick", want="< 1 s", got="0.15 s", ok=True)
    report.bar("a sum | of many", want="< 2 s", got=3, ok=False)
    report.table("Sums", ("count", "seconds"), [(10, 0.123456), ("all", "1")])
    assert report.finish() == 1
    results.keep("sums", out=tmp_path, results=tmp_path)  # over the run itself: the kept form replaces it
    run = json.loads((tmp_path / "sums.json").read_text())
    assert "figures" not in run
    rendered = results.pages(tmp_path)
    assert "| a sum is quick | < 1 s | 0.15 s | yes |" in rendered["sums.md"]
    assert "| a sum \\| of many | < 2 s | 3 | **no** |" in rendered["sums.md"]
    assert "| 10 | 0.1235 |" in rendered["sums.md"]
    assert run["date"] in rendered["sums.md"]
    assert "1 of 2" in rendered["README.md"]


def test_the_guides_figures_of_how_large_an_installation_may_be_are_those_of_the_kept_run() -> None:
    bars = {bar["bar"]: bar for bar in json.loads((results.RESULTS / "scale.json").read_text())["bars"]}
    heartbeat, decision, page, failed = (
        bars[name] for name in (
            "heartbeat, 99th percentile", "decision, 99th percentile", "page, 95th percentile", "calls that failed",
        )
    )  # fmt: skip
    guide = (results.RESULTS.parent / "guide" / "machines.md").read_text()
    words = " ".join(guide.partition("## How large")[2].partition("\n## ")[0].split())
    assert (page["ok"], heartbeat["ok"], decision["ok"]) == (True, True, False), "the guide says which bars hold"
    for said in (
        f"the page kept its bar ({page['got']:.2g} s at", f"heartbeats ({heartbeat['got']:.2g} s at",
        f"decisions ({decision['got']:.2g} s at", f"and {failed['got']} calls failed",
    ):  # fmt: skip
        assert said in words
