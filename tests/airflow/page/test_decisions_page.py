"""The page of decisions in a browser: what a policy saw, what it gave, and whether it would do so again."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, Route, expect

from elastic_core.control.plane import LedgerControl
from tests.airflow.page.test_accessibility import faults
from tests.builders import FACTS, Life, a_spec


@pytest.fixture
def decided(page: Page, address: str, shown: LedgerControl) -> Page:
    """job-a has all four slots, then job-b asks for two of them."""
    shown.submit("job-a", a_spec(), FACTS)
    Life(shown, shown.trainer, "job-a").start()
    shown.submit("job-b", a_spec(slots=(2, 2)), FACTS)
    shown.acquire("job-b__seg_0")
    page.goto(f"{address}decisions/decisions.html")
    expect(page.get_by_role("heading", level=3)).to_contain_text("Decision")
    return page


def test_the_newest_is_shown_with_what_was_seen_and_given_and_why(decided: Page, shown: LedgerControl) -> None:
    newest = shown.decisions(1)[0]
    expect(decided.get_by_role("heading", level=3)).to_have_text(f"Decision {newest.decision_id}")
    row = decided.locator("#shown tr[data-id=job-b]")
    expect(row.locator("td").nth(3)).to_have_text("none")
    expect(row.locator("td").nth(4)).to_have_text("2 cpu")
    reason = shown.decision(newest.decision_id).plan.targets["job-b"].reason
    expect(decided.locator("#shown")).to_contain_text(reason)
    expect(decided.locator("#shown")).to_contain_text("4 cpu on 2")


def test_an_older_one_is_chosen_and_stays_while_newer_ones_come(
    decided: Page, shown: LedgerControl, address: str
) -> None:
    first = shown.decisions(500)[-1].decision_id
    decided.locator(f"#list button[data-id='{first}']").click()
    expect(decided.get_by_role("heading", level=3)).to_have_text(f"Decision {first}")
    shown.cancel("job-b", "enough")
    shown.decide("a test")
    newest = shown.decisions(1)[0].decision_id
    expect(decided.locator(f"#list button[data-id='{newest}']")).to_be_visible()
    expect(decided.get_by_role("heading", level=3)).to_have_text(f"Decision {first}")


def test_it_is_decided_again_and_the_same(decided: Page) -> None:
    decided.get_by_role("button", name="Decide again from these inputs").click()
    expect(decided.get_by_role("status")).to_have_text("Decided the same today.")


@pytest.mark.nightly
def test_how_long_it_took_then_is_said_while_one_waits(decided: Page, shown: LedgerControl) -> None:
    held: list[Route] = []
    decided.route("**/replay", lambda route: held.append(route))
    decided.get_by_role("button", name="Decide again from these inputs").click()
    said = decided.get_by_role("status")
    expect(said).to_contain_text("s so far.")
    told = re.match(r"Being decided… About ([\d.]+) s, as it took then\.", said.inner_text())
    assert told
    assert float(told[1]) == pytest.approx(shown.decisions(1)[0].seconds, abs=0.5)
    held.pop().continue_()
    expect(said).to_have_text("Decided the same today.")


@pytest.mark.nightly
def test_there_are_pages_of_older_ones(page: Page, address: str, shown: LedgerControl) -> None:
    shown.submit("job-a", a_spec(), FACTS)
    for number in range(31):
        shown.set_policy("fair_share" if number % 2 else "fixed")
    page.goto(f"{address}decisions/decisions.html")
    oldest = shown.decisions(500)[-1].decision_id
    expect(page.locator("#list button")).to_have_count(30)
    page.get_by_role("button", name="Older").click()
    expect(page.locator(f"#list button[data-id='{oldest}']")).to_be_visible()
    expect(page.get_by_role("button", name="Older")).to_be_disabled()
    page.get_by_role("button", name="Newest").click()
    expect(page.locator("#list button")).to_have_count(30)


def test_of_many_jobs_those_that_change_come_first_and_all_when_asked_for(
    page: Page, address: str, shown: LedgerControl
) -> None:
    for number in range(30):
        shown.submit(f"job-{number:02}", a_spec(slots=(4, 4), priority=1 if number == 29 else 0), FACTS)
        shown.acquire(f"job-{number:02}__seg_0")
    page.goto(f"{address}decisions/decisions.html")
    rows = page.locator("#shown tr[data-id]")
    expect(rows).to_have_count(20)
    first = [row.get_attribute("data-id") for row in rows.all()[:2]]
    assert first == ["job-00", "job-29"], "one gives its slots up, the other gets them"
    page.get_by_role("button", name="All 30").click()
    expect(rows).to_have_count(30)
    less = page.get_by_role("button", name="The first 20 only")
    expect(less).to_be_focused()
    less.click()
    expect(rows).to_have_count(20)
    assert faults(page) == []


def test_one_that_is_gone_is_told(page: Page, address: str) -> None:
    page.goto(f"{address}decisions/decisions.html?decision=77")
    expect(page.locator(".banner")).to_contain_text("no decision 77")
