"""Pages are usable by keyboard and screen reader, as far as axe-core can tell, and stand still when they are updated.

With few jobs and with many, in every state that a job is shown in; questions and panels open. The page of models, which
has a registry: `test_models_page`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from elastic_core.control.plane import LedgerControl
from tests.builders import FACTS, Life, a_spec
from tests.effort import sample

GRAVE = ("serious", "critical")


def faults(page: Page) -> list[str]:
    """What axe-core finds serious or worse: its rule, and where."""
    found: list[dict[str, Any]] = Axe().run(page).response["violations"]
    return [f"{fault['id']}: {node['target']} {node['html'][:120]}" for fault in found if fault["impact"] in GRAVE
            for node in fault["nodes"]]  # fmt: skip


def fill(shown: LedgerControl, jobs: int) -> None:
    """Jobs that wait, of which one trains, one has failed, one is paused and one is over."""
    for number in range(jobs):
        shown.submit(f"job-{number:03}", a_spec("cats" if number % 2 else "dogs", priority=number % 7), FACTS)
    Life(shown, shown.trainer, "job-000").start()
    shown.submit("over-1", a_spec("over"), FACTS)
    shown.cancel("over-1", "enough of it")
    shown.submit("failed-1", a_spec("failed"), FACTS)
    shown.fail("failed-1", "RuntimeError: out of memory")
    shown.pause("job-001", "until tonight")


def overview(page: Page, address: str) -> None:
    page.goto(address)
    expect(page.get_by_text("failed-1").first).to_be_visible()  # of many, those that may need a look


def table(page: Page, address: str) -> None:
    page.goto(f"{address}table.html")
    page.get_by_label("Choose job-002", exact=True).check()  # what may be done with it shows


def question(page: Page, address: str) -> None:
    """Whether the chosen job shall be cancelled, which stands where the actions were."""
    table(page, address)
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("button", name="Yes, cancel")).to_be_visible()


def question_on_cards(page: Page, address: str) -> None:
    overview(page, address)
    page.get_by_role("checkbox").first.check()
    page.get_by_role("button", name="Cancel 1 job").click()
    expect(page.get_by_role("button", name="Yes, cancel")).to_be_visible()


def decisions(page: Page, address: str) -> None:
    page.goto(f"{address}decisions/decisions.html")
    expect(page.locator("#shown tr[data-id]").first).to_be_visible()  # of the newest


def what_if(page: Page, address: str) -> None:
    page.goto(f"{address}what_if/what_if.html")
    expect(page.locator("#rows tr[data-id]").first).to_be_visible()


def job(page: Page, address: str) -> None:
    page.goto(f"{address}job/job.html?job=job-000")
    expect(page.locator("#segments table")).to_be_visible()
    page.get_by_role("searchbox").fill("cats")  # jobs to choose from show
    expect(page.locator("#found li").first).to_be_visible()


SHOWN = sample([overview, question_on_cards, table, question, job, decisions, what_if], overview, table, question, job)


@pytest.mark.parametrize("jobs", [3, pytest.param(300, marks=pytest.mark.nightly)], ids=["few", "many"])
@pytest.mark.parametrize("opened", SHOWN, ids=lambda page: page.__name__)
def test_axe_finds_nothing_serious(
    page: Page, address: str, shown: LedgerControl, opened: Callable[[Page, str], None], jobs: int
) -> None:
    fill(shown, jobs)
    opened(page, address)
    assert faults(page) == []


WATCH = """() => {
  window.shifts = [];
  new PerformanceObserver((list) => {
    for (const entry of list.getEntries())
      window.shifts.push(entry.value + " " + entry.sources.map((s) => s.node && (s.node.id || s.node.className)));
  }).observe({ type: "layout-shift" });
}"""


def test_nothing_moves_when_the_page_is_updated(page: Page, address: str, shown: LedgerControl) -> None:
    fill(shown, 12)
    overview(page, address)
    expect(page.locator("#summary")).to_contain_text("Last decision")
    page.wait_for_timeout(1000)  # until it has settled
    page.evaluate(WATCH)
    shown.set_aside_node("node-b", "its second card has reported memory errors since this morning")
    expect(page.locator("#summary")).to_contain_text("memory errors")
    page.wait_for_timeout(500)
    assert page.evaluate("window.shifts") == []
