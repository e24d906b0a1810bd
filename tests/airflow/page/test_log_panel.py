"""A job's log on the page, in a browser: what comes is shown as text, of the rank and attempt that is chosen."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from elastic_core.control.plane import LedgerControl
from elastic_core.host.messages import WorkersByRank
from elastic_core.host.rundir import RunDir
from elastic_core.protocol.process_groups import LaunchOrder
from tests.builders import FACTS, Life, a_spec

TRACEBACK = """Traceback (most recent call last):
  File "mine.py", line 7, in loss
RuntimeError: on fire <img src=x onerror="document.title='run'"> <b>bold</b>
"""


def printing(home: Path, order: LaunchOrder, *texts: str) -> RunDir:
    """The files of a group's ranks, as its workers write them."""
    folder = RunDir.of(home, order.origin_epoch)
    folder.create()
    for rank, text in enumerate(texts):
        folder.log(rank).write_text(text)
    folder.write(WorkersByRank(tuple(range(len(texts)))))
    return folder


@pytest.fixture
def life(shown: LedgerControl) -> Life:
    shown.submit("job-a", a_spec(slots=(2, 2)), FACTS)
    return Life(shown, shown.trainer, "job-a")


def test_what_a_job_prints_and_its_traceback_are_followed_as_text(
    page: Page, address: str, life: Life, tmp_path: Path
) -> None:
    folder = printing(tmp_path, life.start(), "epoch 1\n", "of rank 1\n")
    page.goto(f"{address}?job=job-a&log=job-a")
    lines = page.get_by_role("log")
    expect(lines).to_have_text("epoch 1\n")
    with folder.log(0).open("a") as log:
        log.write(TRACEBACK)
    expect(lines).to_contain_text("RuntimeError: on fire <img src=x onerror=\"document.title='run'\"> <b>bold</b>")
    assert lines.locator("img, b").count() == 0
    assert page.title() != "run"
    background, text = (
        lines.evaluate(f"node => getComputedStyle(node).{what}") for what in ("backgroundColor", "color")
    )
    assert background != text


@pytest.mark.nightly
def test_the_page_keeps_the_last_of_a_job_that_prints_much(
    page: Page, address: str, life: Life, tmp_path: Path
) -> None:
    folder = printing(tmp_path, life.start(), "epoch 1\n", "")
    page.goto(f"{address}?job=job-a&log=job-a")
    lines = page.get_by_role("log")
    expect(lines).to_have_text("epoch 1\n")
    with folder.log(0).open("a") as log:
        log.write(f"{'x' * 99}\n" * 30_000 + "the last line\n")
    expect(page.locator(".log-note")).to_contain_text("3,000,022 bytes printed")
    expect(lines).to_contain_text("the last line")
    assert 500_000 < lines.evaluate("node => node.textContent.length") <= 2**20


def test_another_rank_and_an_earlier_attempt_are_shown_by_choice(
    page: Page, address: str, life: Life, tmp_path: Path
) -> None:
    order = life.start()
    printing(tmp_path, order, "first attempt, rank 0\n", "first attempt, rank 1\n")
    life.leave(order, "infrastructure")
    printing(tmp_path, life.start(), "second attempt\n", "second attempt, rank 1\n")
    page.goto(f"{address}?job=job-a&log=job-a")
    lines = page.get_by_role("log")
    expect(lines).to_have_text("second attempt\n")
    page.get_by_label("Rank").select_option("1")
    expect(lines).to_have_text("second attempt, rank 1\n")
    page.get_by_label("Attempt", exact=True).select_option("1")
    expect(lines).to_have_text("first attempt, rank 0\n")
    expect(page.locator(".log-note")).to_contain_text("ended")


def test_the_attempt_that_a_log_has_gone_on_with_is_the_one_that_is_chosen(
    page: Page, address: str, life: Life, tmp_path: Path
) -> None:
    order = life.start()
    printing(tmp_path, order, "first attempt\n", "")
    page.goto(f"{address}?job=job-a&log=job-a")
    lines = page.get_by_role("log")
    expect(lines).to_have_text("first attempt\n")
    life.leave(order, "infrastructure")
    printing(tmp_path, life.start(), "second attempt\n", "")
    expect(lines).to_contain_text("second attempt")
    expect(page.get_by_label("Attempt", exact=True)).to_have_value("2")


def test_who_follows_a_rank_follows_it_in_the_next_attempt_if_that_has_it(
    page: Page, address: str, life: Life, tmp_path: Path
) -> None:
    order = life.start()
    printing(tmp_path, order, "first attempt\n", "first attempt, rank 1\n")
    page.goto(f"{address}?job=job-a&log=job-a")
    lines, rank = page.get_by_role("log"), page.get_by_label("Rank")
    expect(lines).to_have_text("first attempt\n")
    rank.select_option("1")
    expect(lines).to_have_text("first attempt, rank 1\n")
    life.leave(order, "infrastructure")
    order = life.start()
    expect(lines).to_contain_text("--- attempt 2 of 2 attempts ---")
    printing(tmp_path, order, "second attempt\n", "second attempt, rank 1\n")
    expect(lines).to_have_text("first attempt, rank 1\n--- attempt 2 of 2 attempts ---\nsecond attempt, rank 1\n")
    expect(rank).to_have_value("1")
    life.leave(order, "infrastructure")
    printing(tmp_path, life.start(), "alone\n")
    expect(lines).to_contain_text("--- attempt 3 of 3 attempts ---\n--- it has no rank 1: rank 0 ---\nalone\n")
    expect(rank).to_have_value("0")


@pytest.mark.nightly
def test_only_the_rank_that_was_chosen_last_is_followed_and_the_card_goes_on(
    page: Page, address: str, shown: LedgerControl, life: Life, tmp_path: Path
) -> None:
    printing(tmp_path, life.start(), "of rank 0\n", "of rank 1\n")
    page.goto(f"{address}?job=job-a&log=job-a")
    lines, rank = page.get_by_role("log"), page.get_by_label("Rank")
    expect(lines).to_have_text("of rank 0\n")
    held: list[Route] = []
    page.route("**/log?rank=0*", lambda route: held.append(route))
    with page.expect_request("**/log?rank=0*"):
        pass
    rank.focus()
    rank.select_option("1")
    expect(lines).to_have_text("of rank 1\n")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if "/log?" in request.url else None)
    for route in held:
        with page.expect_response(route.request.url):
            route.continue_()
    page.wait_for_timeout(3500)
    assert len(asked) <= 4  # one a second
    expect(lines).to_have_text("of rank 1\n")
    shown.pause("job-a", "until tonight")
    expect(page.locator("#job-job-a")).to_contain_text("until tonight")
    expect(rank).to_be_focused()


@pytest.mark.nightly
def test_a_job_without_slots_yet_says_that_it_has_printed_nothing(page: Page, address: str, life: Life) -> None:
    page.goto(address)
    page.get_by_role("button", name="Log", exact=True).click()
    expect(page.locator(".log-note")).to_have_text(f"job {life.job_id} has printed nothing: it had no slots yet")
