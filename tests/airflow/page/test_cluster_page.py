"""The page of slots and cards in a browser: from four slots to hundreds, and with more jobs than cards are read of."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect

from elastic_airflow.page.overview import nodes_shown
from elastic_core.control.plane import LedgerControl
from elastic_core.protocol.cluster.cluster_timeline import NodeEvent
from elastic_core.protocol.process_groups import LaunchOrder
from elastic_core.protocol.records import NodeStatus
from tests.airflow.page.test_accessibility import WATCH, faults
from tests.builders import FACTS, FakeClock, Life, a_cluster, a_commit, a_control, a_spec


@pytest.fixture
def clock() -> FakeClock:
    """In a year that a deadline may lie in."""
    return FakeClock(1_800_000_000.0)


@pytest.fixture
def shown(pool_url: str, tmp_path: Path, clock: FakeClock) -> Iterator[LedgerControl]:
    with closing(a_control(pool_url, tmp_path, clock)) as plane:
        yield plane


def start(shown: LedgerControl, job_id: str, slots: int, **more: object) -> tuple[Life, LaunchOrder]:
    shown.submit(job_id, a_spec(job_id, slots=(slots, slots), **more), FACTS)
    life = Life(shown, shown.trainer, job_id)
    return life, life.start()


def wait(shown: LedgerControl, job_id: str, slots: int, **more: object) -> None:
    """For slots that are not there."""
    shown.submit(job_id, a_spec(job_id, slots=(slots, slots), **more), FACTS)
    shown.acquire(f"{job_id}__seg_0")


def node(page: Page, name: str) -> Locator:
    return page.locator(f"#timeline [data-node='{name}']")


def settled(page: Page) -> None:
    """Until the page was drawn anew, from an answer that was asked for after this."""
    for _ in range(2):
        with page.expect_response(lambda answer: "/ui/overview" in answer.url):
            pass
    page.wait_for_timeout(300)


def test_a_node_that_is_gone_is_shown_only_while_it_held_something_in_the_window() -> None:
    def status(name: str, present: bool, held: int = 0, why: str | None = None) -> NodeStatus:
        return NodeStatus(
            name=name, type="cpu", num_slots=2, present=present, held_slots=held, set_aside_at=1.0 if why else None,
            set_aside_by=None, set_aside_reason=why,
        )  # fmt: skip

    nodes = [status("here", True), status("gone", False), status("aside", True, why="hot"), status("lost", False),
             status("aside-and-gone", False, why="hot"), status("leaving", False, held=1)]  # fmt: skip
    lost = NodeEvent(at=1.0, node="lost", what="lost", why="it left the cluster; held by job-a")
    assert [node.name for node in nodes_shown(nodes, [], [lost])] == ["here", "aside", "lost", "leaving"]


def test_the_pools_use_is_told_and_a_lost_node_is_marked_until_it_is_past(
    page: Page, address: str, shown: LedgerControl, clock: FakeClock
) -> None:
    start(shown, "job-a", 2)
    clock.advance(600)
    page.goto(address)
    timeline = page.locator("#timeline")
    expect(timeline).to_contain_text("In use: 2 of 4")
    expect(timeline).to_contain_text("48 % over time")  # two of four slots, but for the 24 s that are shown before
    expect(timeline).to_contain_text("node-b")
    held = shown.job("job-a").allocation
    assert held is not None
    lost = held.slots[0].node
    other = ({"node-a", "node-b"} - {lost}).pop()
    clock.advance(60)
    shown.set_cluster(a_cluster({other: 2}))  # where the job goes on
    clock.advance(60)
    page.reload()
    expect(timeline).to_contain_text("cpu, gone")
    expect(page.get_by_label(f"{lost} was lost at")).to_have_count(1)
    expect(timeline).to_contain_text("In use: 2 of 2")
    clock.advance(16 * 60)
    page.reload()
    expect(timeline).to_contain_text(other)
    expect(timeline).not_to_contain_text(lost)


def test_what_was_yesterday_is_looked_at_and_then_now_again(
    page: Page, address: str, shown: LedgerControl, clock: FakeClock
) -> None:
    life, order = start(shown, "job-a", 2)
    clock.advance(600)
    shown.trainer(order.token).commit(a_commit(order, 1000, finished=True))
    life.leave(order, "finished")
    clock.advance(20 * 60)
    page.goto(address)
    holds, earlier = page.locator("#timeline .hold"), page.get_by_title("Earlier")
    now = page.get_by_role("button", name="Now")
    expect(page.locator("#timeline")).to_contain_text("In use: 0 of 4")
    expect(holds).to_have_count(0)
    expect(now).to_be_disabled()
    for _ in range(3):
        earlier.click()
    expect(page.locator("#window")).to_contain_text(" to ")
    expect(holds).to_have_count(2)
    expect(page.locator("#timeline")).to_contain_text("In use: 2 of 4")
    settled(page)
    expect(holds).to_have_count(2)
    assert not faults(page)
    page.get_by_title("Later").click()
    expect(holds).to_have_count(2)
    now.click()
    expect(holds).to_have_count(0)
    expect(page.locator("#window")).to_be_empty()


def test_who_holds_a_slot_and_why_is_found_out_by_keyboard(
    page: Page, address: str, shown: LedgerControl, clock: FakeClock
) -> None:
    life, order = start(shown, "job-a", 2)
    clock.advance(300)
    life.leave(order, "infrastructure", "its node was lost")
    clock.advance(10)
    life.start()
    clock.advance(300)
    page.goto(address)
    expect(page.locator("#timeline .hold")).to_have_count(4)
    page.locator("#timeline").focus()
    page.keyboard.press("Tab")
    tip, gone_to = page.get_by_role("tooltip"), page.locator("#timeline .hold:focus")
    expect(tip).to_contain_text("attempt 2")
    expect(tip).to_contain_text("Why: ")
    expect(gone_to).to_have_attribute("aria-label", re.compile(r"slot 0; job-a; .*attempt 2.*Why: "))
    page.keyboard.press("ArrowLeft")
    expect(tip).to_contain_text("Ended: ")
    expect(gone_to).to_have_attribute("aria-label", re.compile("its node was lost"))
    page.keyboard.press("ArrowDown")
    expect(gone_to).to_have_attribute("aria-label", re.compile("slot 1; .*its node was lost"))
    settled(page)
    expect(gone_to).to_have_attribute("aria-label", re.compile("slot 1; .*its node was lost"))
    expect(tip).to_contain_text("Ended: ")
    page.keyboard.press("End")
    expect(tip).to_contain_text("attempt 2")
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    assert not faults(page)


def test_nodes_set_aside_and_taken_back_are_marked(page: Page, address: str, shown: LedgerControl) -> None:
    shown.set_aside_node("node-a", "it is hot")
    shown.take_back_node("node-a")
    shown.set_aside_node("node-b", "it is slow")
    page.goto(address)
    mark = page.get_by_label("node-b was set aside at")
    expect(mark).to_have_count(1)
    expect(page.get_by_label("node-a was taken back at")).to_have_count(1)
    mark.hover()
    expect(page.get_by_role("tooltip")).to_contain_text("it is slow")


def test_when_a_node_goes_is_said_with_why_it_is_set_aside(
    page: Page, address: str, shown: LedgerControl, clock: FakeClock
) -> None:
    shown.set_aside_node("node-a", "a spot market's notice", clock() + 1800.0)
    page.goto(address)
    expect(page.get_by_text("a spot market's notice; it goes at ")).to_have_count(1)


def test_up_to_sixty_four_slots_have_a_row_each(page: Page, address: str, shown: LedgerControl) -> None:
    shown.set_cluster(a_cluster({f"node-{number}": 8 for number in range(8)}))
    page.goto(address)
    expect(page.locator("#timeline .rows .idle")).to_have_count(64)
    expect(page.locator("#timeline [data-node]")).to_have_count(0)


@pytest.mark.nightly
def test_more_slots_have_a_row_a_node_which_a_click_or_a_key_unfolds(
    page: Page, address: str, shown: LedgerControl, clock: FakeClock
) -> None:
    shown.set_cluster(a_cluster({f"node-{number}": 8 for number in range(9)}))
    start(shown, "job-a", 6)
    clock.advance(300)
    page.goto(address)
    held = shown.job("job-a").allocation
    assert held is not None
    name = held.slots[0].node
    row, slots = node(page, name), page.locator("#timeline .rows > svg > .idle")
    expect(page.locator("#timeline [data-node]")).to_have_count(9)
    expect(slots).to_have_count(0)
    expect(row).to_contain_text("6 of 8")
    row.click()
    expect(node(page, name)).to_have_attribute("aria-expanded", "true")
    expect(slots).to_have_count(8)
    expect(page.locator("#timeline .hold")).to_have_count(6)
    other = node(page, "node-8")
    other.focus()
    page.keyboard.press("Enter")
    expect(slots).to_have_count(16)
    settled(page)
    expect(node(page, "node-8")).to_be_focused()
    expect(slots).to_have_count(16)
    page.keyboard.press("Space")
    expect(slots).to_have_count(8)
    assert faults(page) == []


@pytest.mark.nightly
def test_the_focus_stays_with_its_job_and_banners_stay_while_they_say_the_same(
    page: Page, address: str, shown: LedgerControl, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_airflow.page.page_api.paused_dags", lambda: ["elastic_job"])
    start(shown, "job-a", 1)
    start(shown, "job-b", 1)
    page.goto(address)
    card, banner = page.locator("#job-job-b"), page.locator(".banner")
    log, cancel = card.get_by_role("button", name="Log", exact=True), page.get_by_role("button", name="Cancel 1 job")
    expect(banner).to_contain_text("1 DAG paused")
    banner.evaluate("node => { node.dataset.drawn = 'once'; }")
    log.focus()
    shown.cancel("job-a", "enough of it")  # its card moves away
    clock.advance(60)  # the last answer is not kept so long
    expect(page.locator("#ended #job-job-a")).to_be_visible()
    expect(log).to_be_focused()
    card.get_by_role("checkbox").check()
    settled(page)
    expect(card.get_by_role("checkbox")).to_be_focused()
    cancel.focus()
    settled(page)
    expect(cancel).to_be_focused()
    expect(banner).to_have_attribute("data-drawn", "once")
    monkeypatch.setattr("elastic_airflow.page.page_api.paused_dags", lambda: ["elastic_job", "elastic_segment"])
    clock.advance(60)
    expect(banner).to_contain_text("2 DAGs paused")


def test_that_nobody_reconciles_is_said(
    page: Page, address: str, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elastic_airflow.page.page_api.seconds_without_reconciliation", lambda: 3700.0)
    clock.advance(301)
    page.goto(address)
    expect(page.locator(".banner")).to_contain_text("No run of elastic_reconcile has ended well for 62 min")


def test_a_chosen_job_that_ended_meanwhile_is_not_said_to_be_cancelled(
    page: Page, address: str, shown: LedgerControl
) -> None:
    start(shown, "job-a", 1)
    page.goto(address)
    page.locator("#job-job-a").get_by_role("checkbox").check()
    page.get_by_role("button", name="Cancel 1 job").click()
    order = shown.launch_order("job-a__seg_0")
    shown.trainer(order.token).commit(a_commit(order, 1000, finished=True))
    page.get_by_role("button", name="Yes, cancel").click()
    expect(page.get_by_text("0 jobs cancelled; 1 not: it has ended before: finished")).to_be_visible()


def crowd(shown: LedgerControl, clock: FakeClock, jobs: int) -> None:
    """Jobs of which one holds slots, one has failed, two are late and the rest waits, the last one longest."""
    start(shown, "job-holds", 4)
    shown.submit("job-failed", a_spec("failed"), FACTS)
    shown.fail("job-failed", "RuntimeError: out of memory")
    wait(shown, "job-longest", 4)
    soon = datetime.fromtimestamp(clock.now + 60, UTC).isoformat()
    for number in range(2):
        wait(shown, f"job-late-{number}", 4, deadline=soon)
    clock.advance(120)
    for number in range(jobs - 4):
        wait(shown, f"job-{number:03}", 4)
        clock.advance(0.1)
    clock.advance(10)


def cards(page: Page) -> list[str]:
    return [card.get_attribute("id") or "" for card in page.locator(".card.job").all()]


@pytest.mark.nightly
def test_twenty_active_jobs_have_a_card_each(page: Page, address: str, shown: LedgerControl, clock: FakeClock) -> None:
    crowd(shown, clock, 20)
    page.goto(address)
    expect(page.locator("#jobs .card.job")).to_have_count(20)
    expect(page.locator("#ended .card.job")).to_have_count(1)


@pytest.mark.nightly
def test_of_more_only_those_that_need_a_look_have_one(
    page: Page, address: str, shown: LedgerControl, clock: FakeClock
) -> None:
    crowd(shown, clock, 25)
    page.goto(address)
    table = page.get_by_role("link", name="All 25 active jobs")
    expect(table).to_have_attribute("href", "/plugin/elastic-jobs")
    assert cards(page) == ["job-job-failed", "job-job-late-0", "job-job-late-1", "job-job-longest", "job-job-000",
                           "job-job-001"]  # fmt: skip
    expect(page.get_by_role("group", name="Waiting longest")).to_contain_text("Waiting longest: 3 of 24")
    expect(page.locator("#ended-section")).to_be_hidden()
    page.get_by_role("button", name="Choose all").click()
    expect(page.get_by_role("button", name="Cancel 5 jobs")).to_be_visible()  # and nobody who is not seen
    page.goto(f"{address}?job=job-007")
    expect(page.locator("#job-job-007")).to_be_in_viewport()
    assert faults(page) == []


@pytest.mark.nightly
def test_a_crowded_page_stands_still_when_it_is_updated(
    page: Page, address: str, shown: LedgerControl, clock: FakeClock
) -> None:
    shown.set_cluster(a_cluster({f"node-{number}": 8 for number in range(9)}))
    crowd(shown, clock, 25)
    page.goto(address)
    expect(page.get_by_role("link", name="All 25 active jobs")).to_be_visible()
    page.wait_for_timeout(1000)
    page.evaluate(WATCH)
    shown.submit("another", a_spec(), FACTS)
    clock.advance(60)  # the last answer is not kept so long
    expect(page.get_by_role("link", name="All 26 active jobs")).to_be_visible()
    settled(page)
    assert page.evaluate("window.shifts") == []


@pytest.mark.nightly
@pytest.mark.parametrize("width", [1280, 1920])
def test_three_hundred_jobs_on_256_slots_are_two_screens(
    page: Page, address: str, shown: LedgerControl, clock: FakeClock, width: int
) -> None:
    shown.set_cluster(a_cluster({f"node-{number:02}": 8 for number in range(32)}))
    crowd(shown, clock, 300)
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(address)
    expect(page.get_by_role("link", name="All 300 active jobs")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollHeight") <= 2 * 900
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert faults(page) == []
