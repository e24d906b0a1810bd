"""The what-if page in a browser: what is asked is simulated, nothing is changed, and what is wrong is said."""

from __future__ import annotations

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from elastic_core.control.plane import LedgerControl
from elastic_core.protocol.rest.what_if import COURSE_SECONDS
from tests.builders import FACTS, Life, a_spec

LATER_THAN_NOW = "in "


@pytest.fixture
def asked(page: Page, address: str, shown: LedgerControl) -> Page:
    """job-a holds all slots, job-b waits for them."""
    shown.submit("job-a", a_spec(slots=(4, 4)), FACTS)
    Life(shown, shown.trainer, "job-a").start()
    shown.submit("job-b", a_spec(slots=(2, 2)), FACTS)
    shown.acquire("job-b__seg_0")
    page.goto(f"{address}what_if/what_if.html")
    expect(page.get_by_role("status")).to_contain_text("2 jobs")
    return page


def cell(page: Page, job_id: str, column: int) -> Locator:
    return page.locator(f"tr[data-id={job_id}] td:nth-child({column})")


STARTS, STARTS_THEN, ENDS_THEN, SOONER = 5, 7, 8, 9


def test_with_more_nodes_who_waits_starts_now(asked: Page, shown: LedgerControl) -> None:
    before = shown.snapshot()
    expect(cell(asked, "job-b", STARTS)).to_contain_text(LATER_THAN_NOW)
    expect(cell(asked, "job-b", SOONER)).to_have_text("=")
    asked.get_by_label("Number").fill("1")
    asked.get_by_label("of type").fill("cpu")
    asked.get_by_label("with slots").fill("2")
    asked.get_by_role("button", name="Simulate").click()
    expect(cell(asked, "job-b", STARTS_THEN)).to_have_text("now")
    expect(cell(asked, "job-b", STARTS)).to_contain_text(LATER_THAN_NOW)
    expect(cell(asked, "job-b", SOONER)).to_have_class("number sooner")
    asked.get_by_role("button", name="As it is").click()
    expect(cell(asked, "job-b", SOONER)).to_have_text("=")
    assert shown.snapshot() == before


@pytest.mark.nightly
def test_limits_are_set_in_a_jobs_row_and_stay_there(asked: Page) -> None:
    for name in ("Min slots", "Max slots"):
        asked.get_by_label(f"{name} of job-a", exact=True).fill("2")
    asked.get_by_label("Max slots of job-a", exact=True).press("Enter")
    expect(cell(asked, "job-a", SOONER)).to_have_class("number later")
    expect(asked.get_by_label("Max slots of job-a", exact=True)).to_have_value("2")


def test_the_focus_stays_where_it_is_when_the_answer_comes(asked: Page) -> None:
    limit, simulate = asked.get_by_label("Max slots of job-b", exact=True), asked.get_by_role("button", name="Simulate")
    for focused, policy, told in ((limit, "fixed", "then under fixed"), (simulate, "", "under fair_share, 2 jobs")):
        asked.get_by_label("Decided by").fill(policy)
        focused.press("Enter")
        expect(asked.get_by_role("status")).to_contain_text(told)
        expect(asked.locator("table")).to_have_attribute("aria-busy", "false")
        expect(focused).to_be_focused()


@pytest.mark.nightly
def test_who_could_not_run_at_all_never_starts_again(asked: Page) -> None:
    asked.get_by_label("Names").fill("node-b")
    asked.get_by_role("button", name="Simulate").click()
    expect(cell(asked, "job-a", ENDS_THEN)).to_have_text("never")


def test_what_is_wrong_is_said_and_the_last_answer_stays(asked: Page) -> None:
    asked.get_by_label("Decided by").fill("fixd")
    asked.get_by_role("button", name="Simulate").click()
    expect(asked.locator(".banner")).to_contain_text("Did you mean 'fixed'?")
    expect(asked.locator("#rows tr")).to_have_count(2)
    asked.get_by_label("Decided by").fill("fixed")
    asked.get_by_role("button", name="Simulate").click()
    expect(asked.get_by_role("status")).to_contain_text("under fair_share, then under fixed")
    expect(asked.locator(".banner")).to_have_count(0)


def test_a_question_that_is_put_while_another_is_answered_is_asked_after_it(asked: Page) -> None:
    held: list[Route] = []
    asked.route("**/api/v1/what-if", lambda route: held.append(route))
    asked.get_by_label("Decided by").fill("fixed")
    with asked.expect_request("**/api/v1/what-if"):
        asked.get_by_role("button", name="Simulate").click()
    asked.get_by_role("button", name="As it is").click()
    asked.get_by_label("Max slots of job-a", exact=True).press("Enter")
    asked.wait_for_timeout(300)
    (first,) = held  # the server would refuse the other
    with asked.expect_request("**/api/v1/what-if") as second:
        first.continue_()
    assert second.value.post_data == "{}"
    asked.wait_for_timeout(300)
    held[-1].continue_()
    expect(asked.get_by_role("status")).to_contain_text("under fair_share, 2 jobs")
    expect(asked.locator(".banner")).to_have_count(0)
    assert len(held) == 2


def test_while_the_server_answers_somebody_else_it_is_asked_again(
    page: Page, address: str, shown: LedgerControl
) -> None:
    refusal = {"code": "conflict", "message": "another what-if or replay is being answered"}
    page.route("**/api/v1/what-if", lambda route: route.fulfill(status=429, json=refusal), times=2)
    page.goto(f"{address}what_if/what_if.html")
    expect(page.get_by_role("status")).to_contain_text("0 jobs")
    expect(page.locator(".banner")).to_have_count(0)


def test_how_long_it_takes_is_said_while_one_waits(page: Page, address: str, shown: LedgerControl) -> None:
    """As the server expects it, for one course or for two."""
    shown.submit("job-a", a_spec(slots=(4, 4)), FACTS)
    Life(shown, shown.trainer, "job-a").start()
    held: list[Route] = []
    page.route("**/api/v1/what-if", lambda route: held.append(route))
    told = {"jobs": 1, "start_seconds": 3.2, "course_seconds": 4.0, "most_seconds": COURSE_SECONDS}
    page.route("**/api/v1/what-if/expected", lambda route: route.fulfill(json=told))
    page.goto(f"{address}what_if/what_if.html")
    summary = page.get_by_role("status")
    expect(summary).to_contain_text("Being simulated… About 7.2 s for 1 job, 13 s at most.")
    expect(summary).to_contain_text("s so far.")
    held.pop().continue_()
    expect(summary).to_contain_text("Simulated at")
    page.get_by_label("Decided by").fill("fixed")
    page.get_by_role("button", name="Simulate").click()
    expect(summary).to_contain_text("About 11 s for 1 job, 23 s at most.")
    held.pop().continue_()
    expect(summary).to_contain_text("then under fixed")
    expect(summary).not_to_contain_text("so far")


def test_of_many_jobs_the_first_are_shown_and_more_with_a_click(page: Page, address: str, shown: LedgerControl) -> None:
    """What is filled in of a job counts wherever it is shown, and stays with the next answer."""
    for number in range(52):
        shown.submit(f"job-{number:02}", a_spec(slots=(1, 4)), FACTS)
        shown.acquire(f"job-{number:02}__seg_0")
    page.goto(f"{address}what_if/what_if.html")
    rows, more = page.locator("#rows tr"), page.get_by_role("button", name="2 more of 52")
    expect(page.get_by_role("status")).to_contain_text("52 jobs: done after")
    expect(rows).to_have_count(50)
    with page.expect_request("**/api/v1/what-if/answers/*") as turned:
        more.click()
    assert "offset=50&limit=50" in turned.value.url
    expect(rows).to_have_count(52)
    expect(more).to_be_hidden()
    page.get_by_label("Priority of job-51", exact=True).fill("9")
    with page.expect_request("**/api/v1/what-if?limit=52") as asked_again:
        page.get_by_label("Priority of job-51", exact=True).press("Enter")
    assert asked_again.value.post_data_json == {"jobs": {"job-51": {"priority": 9}}}
    expect(page.locator("table")).to_have_attribute("aria-busy", "false")
    expect(rows).to_have_count(52)
    expect(page.get_by_label("Priority of job-51", exact=True)).to_have_value("9")
