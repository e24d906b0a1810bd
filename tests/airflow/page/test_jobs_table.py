"""The table of jobs in a browser: searched, filtered, sorted, paged by the server, steered one by one or together."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from elastic_core.control.plane import LedgerControl
from elastic_core.domain import JobState
from elastic_core.spec.job_changes import JobChanges
from tests.builders import FACTS, Life, a_commit, a_spec

PRIORITY_HEAD = re.compile("^Priority")  # of the column; the mark of the order may follow


@pytest.fixture
def table(page: Page, address: str, shown: LedgerControl) -> Page:
    """Of 60 jobs that wait, one that trains, and one that is over."""
    for number in range(60):
        shown.submit(f"job-{number:02}", a_spec("cats" if number % 2 else "dogs", priority=number % 7), FACTS)
    shown.submit("over-1", a_spec("over"), FACTS)
    shown.cancel("over-1", "enough of it")
    Life(shown, shown.trainer, "job-00").start()
    page.goto(f"{address}table.html")
    expect(page.get_by_role("status").filter(has_text="of")).to_have_text("1 to 50 of 60")
    return page


def ids(page: Page) -> list[str]:
    return [row.get_attribute("data-id") or "" for row in page.locator("#rows tr[data-id]").all()]


def choose(page: Page, *job_ids: str) -> None:
    for job_id in job_ids:
        page.get_by_label(f"Choose {job_id}", exact=True).check()


def test_the_first_answer_is_asked_for_beside_the_modules_and_once(
    page: Page, address: str, shown: LedgerControl
) -> None:
    shown.submit("job-00", a_spec(), FACTS)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{address}table.html")
    expect(page.locator("#place")).to_have_text("1 to 1 of 1")
    of_jobs = [number for number, url in enumerate(asked) if "/api/v1/jobs?" in url]
    assert len(of_jobs) == 1, "the page asks for what it has asked for already: its address is another one"
    assert of_jobs[0] < max(number for number, url in enumerate(asked) if url.endswith(".js"))


def test_pages_are_turned_and_jobs_found_sorted_and_filtered(table: Page) -> None:
    place = table.locator("#place")
    table.get_by_role("button", name="Next").click()
    expect(place).to_have_text("51 to 60 of 60")
    expect(table.get_by_role("button", name="Next")).to_be_disabled()
    table.get_by_label("Search").fill("CATS")
    expect(place).to_have_text("1 to 30 of 30")
    table.get_by_role("button", name=PRIORITY_HEAD).click()
    expect(table.locator("th[aria-sort=descending]")).to_contain_text("Priority")
    expect(table.locator("#rows tr[data-id] td:nth-child(6)").first).to_have_text("6")
    table.get_by_role("button", name=PRIORITY_HEAD).click()
    expect(table.locator("th[aria-sort=ascending]")).to_contain_text("Priority")
    expect(table.locator("#rows tr[data-id] td:nth-child(6)").first).to_have_text("0")
    table.get_by_label("Search").fill("nothing of this name")
    expect(table.get_by_text("No job fits.")).to_be_visible()
    table.get_by_label("Search").fill("")
    table.get_by_label("State").select_option("cancelled")
    expect(place).to_have_text("1 to 1 of 1")
    expect(table.locator("#rows")).to_contain_text("enough of it")


def test_how_a_job_uses_its_slots_stands_in_the_table(table: Page) -> None:
    told = table.locator("tr[data-id=job-00] + tr.why")
    expect(told).to_contain_text(re.compile(r"Layout: (one replica|data \d); exchange: allreduce\. \w"))
    expect(table.locator("tr[data-id=job-01] + tr.why")).not_to_contain_text("Layout")


def test_who_waits_shows_its_place_its_start_and_who_has_its_slots(table: Page, shown: LedgerControl) -> None:
    """Sorted by either; those that do not wait come last. job-00 gives its slots up for job-03, which goes first."""
    for name in ("job-01", "job-03"):
        shown.set_job(name, JobChanges(min_slots=4))
        shown.acquire(f"{name}__seg_0")
    table.get_by_role("button", name="Place").click()
    expect(table.locator("th[aria-sort=ascending]")).to_contain_text("Place")
    expect(table.locator("tr[data-id=job-03] td:nth-child(7)")).to_have_text("1soon")
    expect(table.locator("tr[data-id=job-01] td:nth-child(7)")).to_have_text("2not known")
    assert ids(table)[:2] == ["job-03", "job-01"]
    expect(table.locator("tr[data-id=job-01] + tr.why")).to_contain_text("needs 4 of 4 slots; held by job-00 (4)")
    table.get_by_role("button", name="Starts").click()
    expect(table.locator("th[aria-sort=ascending] button", has_text="▲")).to_have_text("Starts ▲")
    assert ids(table)[0] == "job-03"


def test_choosing_a_job_leaves_the_rows_as_they_are(table: Page) -> None:
    table.route("**/api/v1/jobs?*", lambda _: None)  # the next answer, which draws them anew, does not come
    row = table.locator("#rows tr[data-id=job-20]")
    row.evaluate("row => row.dataset.seen = 'yes'")
    choose(table, "job-20")
    expect(table.locator("#steering button:enabled").first).to_be_visible()
    expect(table.get_by_label("Choose all jobs of this page")).not_to_be_checked()
    assert row.get_attribute("data-seen") == "yes"


def test_chosen_jobs_are_paused_resumed_and_set_together(table: Page, shown: LedgerControl) -> None:
    said = table.locator("#steering [role=status]")
    choose(table, "job-20", "job-21")
    table.get_by_role("button", name="Pause").click()
    expect(said).to_have_text("2 jobs paused.")
    expect(table.get_by_label("Choose job-20", exact=True)).not_to_be_checked()
    assert all(shown.job(job_id).paused for job_id in ("job-20", "job-21"))
    choose(table, "job-20", "job-21")
    table.get_by_role("button", name="Resume").click()
    expect(said).to_have_text("2 jobs resumed.")
    choose(table, "job-20", "job-21")
    table.get_by_label("Priority").fill("42")
    table.get_by_label("Most slots").fill("2")
    table.get_by_role("button", name="Set", exact=True).click()
    expect(said).to_have_text("2 jobs set: priority 42, at most 2 slots.")
    expect(table.locator("tr[data-id=job-20]")).to_contain_text("0 / 1-2")
    for job_id in ("job-20", "job-21"):
        in_force = shown.job(job_id).spec_in_force
        assert (in_force.priority, in_force.slots.min, in_force.slots.max) == (42, 1, 2)


@pytest.mark.nightly
def test_what_cannot_be_set_is_said_and_changes_nothing(table: Page, shown: LedgerControl) -> None:
    said, button = table.locator("#steering [role=status]"), table.get_by_role("button", name="Set", exact=True)
    before = shown.job("job-22").spec_in_force
    choose(table, "job-22")
    button.click()
    expect(said).to_have_text("Fill in priority, fewest slots, most slots, or some of them.")
    table.get_by_label("Fewest slots").fill("0")
    button.click()
    expect(said).to_have_text("Fewest slots is a whole number, at least 1.")
    table.get_by_label("Fewest slots").fill("10000")
    button.click()
    expect(said).to_contain_text("1 not: job-22: ")
    assert shown.job("job-22").spec_in_force == before


@pytest.mark.nightly
def test_cancelling_is_asked_about_first_and_a_refusal_is_said(table: Page, shown: LedgerControl) -> None:
    said = table.locator("#steering [role=status]")
    choose(table, "job-30")
    table.get_by_role("button", name="Cancel").click()
    table.get_by_role("button", name="No", exact=True).click()
    assert shown.job("job-30").state is JobState.ACTIVE
    choose(table, "job-31")
    shown.cancel("job-31", "by somebody else")
    table.get_by_role("button", name="Checkpoint now").click()
    expect(said).to_contain_text("not: job-3")
    choose(table, "job-30")
    table.get_by_role("button", name="Cancel").click()
    table.get_by_role("button", name="Yes, cancel").click()
    expect(said).to_contain_text("cancelled.")
    assert shown.job("job-30").state is JobState.CANCELLED


def test_a_job_that_ended_meanwhile_is_not_said_to_be_cancelled(table: Page, shown: LedgerControl) -> None:
    choose(table, "job-00", "job-30")
    table.get_by_role("button", name="Cancel").click()
    order = shown.launch_order("job-00__seg_0")
    shown.trainer(order.token).commit(a_commit(order, 1000, finished=True))
    table.get_by_role("button", name="Yes, cancel").click()
    said = "1 job cancelled. 1 not: job-00: it has ended before: finished"
    expect(table.locator("#steering [role=status]")).to_have_text(said)


@pytest.mark.nightly
def test_a_choice_and_the_focus_outlive_an_update(table: Page, shown: LedgerControl) -> None:
    choose(table, "job-40")
    box = table.get_by_label("Choose job-40", exact=True)
    box.focus()
    shown.submit("new-1", a_spec("new"), FACTS)
    expect(table.locator("#place")).to_have_text("1 to 50 of 61")
    expect(box).to_be_checked()
    expect(box).to_be_focused()
