"""The page of one job, in a browser: whenever it ended, with all that the ledger knows of it, and what may be done."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from playwright.sync_api import FrameLocator, Page, Route, expect

from elastic_core.control.plane import LedgerControl
from elastic_core.domain import JobState
from elastic_core.protocol.process_groups import LaunchOrder
from tests.airflow.page.test_accessibility import faults
from tests.airflow.page.test_log_panel import printing
from tests.builders import FACTS, FakeClock, Life, a_commit, a_spec, an_observation

EVIL = "<img src=x onerror=\"document.title='run'\"> <b>bold</b>"
ERROR = f"RuntimeError: on fire {EVIL}"


def train(shown: LedgerControl, order: LaunchOrder, first: int, last: int, step_seconds: float) -> None:
    """Reports of these steps, and a commit at each tenth."""
    trainer = shown.trainer(order.token)
    moved = {"restore_fetch": 0.4, "restored_from_store_bytes": 3.0 * 2**20} if first > 1 else {}
    for step in range(first, last + 1):
        told = {"loss": 4.0 / (step + 3), "step_seconds": step_seconds, "at": 1_000_000.0 + step}
        trainer.observe([an_observation(step, order, **told)])
        if step % 10 == 0:
            metrics = {"held_out_loss": 5.0 / (step + 3), "loss": 4.0 / (step + 3)}
            trainer.commit(a_commit(order, step, metrics=metrics, size_bytes=3 * 2**20, timings=moved))
            moved = {}


@pytest.fixture
def life(shown: LedgerControl) -> Life:
    """Of a job that trained on four slots, made room for another one, and trains on two."""
    shown.submit("job-a", a_spec("digits", registered_model="cats-and-dogs"), FACTS)
    life = Life(shown, shown.trainer, "job-a")
    order = life.start()
    train(shown, order, 1, 30, 0.06)
    shown.submit("job-b", a_spec("other", slots=(2, 2)), FACTS)
    shown.acquire("job-b__seg_0")
    shown.trainer(order.token).commit(a_commit(order, 31, final=True))
    life.leave(order)
    again = life.start(31)
    train(shown, again, 32, 61, 0.1)
    assert again.allocation.num_slots == 2
    return life


@pytest.fixture
def clock(shown: LedgerControl) -> FakeClock:
    clock = shown._ledger.clock
    assert isinstance(clock, FakeClock)
    return clock


def opened(page: Page, address: str, job_id: str = "job-a", more: str = "") -> Page:
    page.goto(f"{address}job/job.html?job={job_id}{more}")
    expect(page.locator("#segments table")).to_be_visible()
    expect(page.locator("#moves dl")).to_be_visible()
    return page


def test_a_job_that_trains_shows_its_course_its_segments_and_its_checkpoints(
    page: Page, address: str, life: Life
) -> None:
    opened(page, address)
    expect(page.get_by_role("heading", name="digits")).to_be_visible()
    expect(page.locator("#card .chip")).to_have_text("training")
    expect(page.locator("#card dl")).to_contain_text("2 cpu (may use 1 to 4)")
    expect(page.locator("#decision")).to_contain_text("by fair_share")
    expect(page.locator("#segments tr[data-segment]")).to_have_count(2)
    expect(page.locator("#segments tr[data-segment] td:nth-child(3)")).to_have_text(["2 cpu", "4 cpu"])
    expect(page.locator("#segments")).to_contain_text("Ended: resize")
    expect(page.locator("#checkpoints tbody tr")).to_have_count(7)
    expect(page.locator("#checkpoints tbody tr").first).to_contain_text("3.0 MiB")
    loss = page.locator("#loss svg[role=img]")
    expect(loss.locator("polyline.series")).to_have_count(1)
    expect(loss.locator("line.mark title")).to_have_text("4 cpu to 2 cpu")
    expect(page.locator("#metric")).to_have_value("held_out_loss")
    expect(page.locator("#metrics svg[role=img] circle.dot")).to_have_count(6)
    curve = page.locator("#curve svg[role=img]")
    expect(curve.locator("polygon.band")).to_have_count(1)
    expect(curve.locator("circle.dot")).to_have_count(2)
    expect(page.locator("#moves")).to_contain_text("From the store")
    expect(page.locator("#moves")).to_contain_text("3.0 MiB")
    assert faults(page) == []


def test_of_many_checkpoints_the_newest_are_shown_first_and_the_others_when_asked_for(
    page: Page, address: str, shown: LedgerControl
) -> None:
    shown.submit("job-a", a_spec("digits"), FACTS)
    train(shown, Life(shown, shown.trainer, "job-a").start(), 1, 220, 0.06)
    rows = opened(page, address).locator("#checkpoints tbody tr")
    expect(rows).to_have_count(20)
    expect(rows.first.locator("td").first).to_have_text("220")
    page.get_by_role("button", name="All 22").click()
    expect(rows).to_have_count(22)
    expect(rows.last.locator("td").first).to_have_text("10")
    page.get_by_role("button", name="The newest 20 only").click()
    expect(rows).to_have_count(20)


@pytest.mark.nightly
def test_of_more_than_one_answer_holds_the_button_says_how_many_it_shows(page: Page, address: str, life: Life) -> None:
    script = "import('./tables.js').then(({ moreButton }) => moreButton(500, 1234, false, () => {}).textContent)"
    assert opened(page, address).evaluate(script) == "The newest 500 of 1,234"


@pytest.mark.nightly
def test_charts_say_their_figures_by_keyboard(page: Page, address: str, life: Life) -> None:
    opened(page, address)
    page.locator("#curve svg[role=img]").focus()
    page.keyboard.press("End")
    expect(page.locator("#curve .readout")).to_contain_text("slots 4: cpu, predicted")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#curve .readout")).to_contain_text("slots 3: cpu, predicted")
    expect(page.get_by_role("table", name="Samples a second by slots")).to_contain_text("267 (16 reports)")


def test_what_comes_is_shown_and_the_focus_stays(page: Page, address: str, shown: LedgerControl, life: Life) -> None:
    opened(page, address)
    rows = page.locator("#checkpoints tbody tr")
    page.get_by_role("button", name="Log", exact=True).focus()
    train(shown, shown_order(shown), 62, 70, 0.1)
    expect(rows).to_have_count(8)
    expect(page.get_by_role("button", name="Log", exact=True)).to_be_focused()


@pytest.mark.nightly
def test_the_focus_stays_with_the_checkpoint_when_a_newer_one_comes_above_it(
    page: Page, address: str, shown: LedgerControl, life: Life
) -> None:
    opened(page, address)
    button = page.get_by_role("button", name="Fork: step 20")
    button.focus()
    train(shown, shown_order(shown), 62, 70, 0.1)
    expect(page.locator("#checkpoints tbody tr")).to_have_count(8)
    expect(button).to_be_focused()


@pytest.mark.nightly
def test_when_a_job_that_waits_was_last_spoken_of_is_told_anew(
    page: Page, address: str, shown: LedgerControl, life: Life, clock: FakeClock
) -> None:
    shown.submit("job-c", a_spec("third", slots=(4, 4)), FACTS)
    shown.acquire("job-c__seg_0")
    page.goto(f"{address}job/job.html?job=job-c")
    decision = page.locator("#decision")
    expect(decision).to_contain_text("0.0 s ago")
    clock.advance(300)
    expect(decision).to_contain_text("5 min ago")
    number = decision.get_by_role("link").inner_text()
    shown.set_aside_node("node-a", "it is hot")  # of which the job has nothing, and waits on
    expect(decision).not_to_contain_text(number)


def test_who_waits_is_told_when_it_is_done_and_what_that_assumes(
    page: Page, address: str, shown: LedgerControl
) -> None:
    shown.set_policy("horizon")
    shown.submit("job-a", a_spec("digits", slots=(4, 4)), FACTS)
    order = Life(shown, shown.trainer, "job-a").start()
    train(shown, order, 1, 30, 0.06)
    shown.submit("job-b", a_spec("other", slots=(4, 4), work={"samples": 10**6}), FACTS)
    shown.acquire("job-b__seg_0")
    shown.decide("job-b has come")
    page.goto(f"{address}job/job.html?job=job-b")
    told = page.get_by_text("Time left", exact=True).locator("xpath=following-sibling::*[1]")
    expect(told).to_contain_text(
        re.compile(r"^about .+ \(.+ to .+\)if it starts on its fewest slots once those before it")
    )
    waits = shown.job("job-b").forecast
    assert waits is not None
    assert waits.seconds_on_slots is None, "what is told holds of its turn, not of slots that it has"


@pytest.mark.nightly
def test_a_part_that_did_not_answer_is_asked_for_again_though_the_job_is_over(
    page: Page, address: str, shown: LedgerControl, life: Life
) -> None:
    shown.cancel("job-a", "enough of it")
    page.route("**/job-a/moves", lambda route: route.fulfill(status=503, body="{}"), times=1)
    page.goto(f"{address}job/job.html?job=job-a")
    expect(page.locator(".banner")).to_contain_text("Moves: The control API answered 503.")
    expect(page.locator("#moves dl")).to_be_visible()
    expect(page.locator(".banner")).to_have_count(0)


def shown_order(shown: LedgerControl) -> LaunchOrder:
    return shown.launch_order(shown.job("job-a").segment_id)


@pytest.mark.nightly
def test_a_job_is_rolled_back_to_a_checkpoint_after_a_question(
    page: Page, address: str, shown: LedgerControl, life: Life
) -> None:
    opened(page, address)
    said = page.locator("#checkpoints .said")
    page.get_by_role("button", name="Roll back: step 20").click()
    expect(said).to_contain_text("Go on from step 20 again")
    page.get_by_role("button", name="No", exact=True).click()
    expect(said).to_be_hidden()
    assert shown.job("job-a").lineage == 0
    page.get_by_role("button", name="Roll back: step 20").click()
    page.get_by_role("button", name="Yes, roll back").click()
    expect(said).to_have_text("It goes on from step 20.")
    assert shown.job("job-a").lineage == 1
    expect(page.locator("#segments")).to_contain_text("cancelled: rolled back to step 20")
    expect(page.locator("#loss polyline.series")).to_have_count(2)
    expect(page.locator("#loss polyline.faint")).to_have_count(1)  # of what came after step 20
    expect(page.locator("#metrics svg[role=img] circle.dot")).to_have_count(2)
    expect(page.locator("#checkpoints tbody tr .tag")).to_have_text(["left"] * 5)


def test_a_job_is_forked_from_a_checkpoint_after_a_question(
    page: Page, address: str, shown: LedgerControl, life: Life
) -> None:
    opened(page, address)
    page.get_by_role("button", name="Fork: step 20").click()
    page.get_by_role("button", name="Yes, fork").click()
    expect(page.locator("#checkpoints .said")).to_contain_text("goes on from step 20.")
    (fork,) = (job for job in shown.jobs() if "forked_from" in job.results)
    assert (fork.step, fork.results["forked_from"]["job_id"], fork.submitted_by) == (20, "job-a", "ann")
    assert shown.job("job-a").lineage == 0


def test_how_a_checkpoint_is_exported_is_told_until_it_is_closed(
    page: Page, address: str, shown: LedgerControl, life: Life
) -> None:
    opened(page, address)
    said = page.locator("#checkpoints .said")
    page.get_by_role("button", name="Export: step 20").click()
    (uri,) = (one.uri for one in shown.checkpoints("job-a") if one.step == 20)
    expect(said.locator("code")).to_have_text([
        f"elastic checkpoint export {uri} --out job-a-step-20.safetensors",
        f"elastic checkpoint export {uri} --mlflow-model models:/cats-and-dogs",
    ])  # fmt: skip
    assert faults(page) == []
    page.get_by_role("button", name="Close").click()
    expect(said).to_be_hidden()


def test_a_command_that_is_told_is_one_of_a_shell_whatever_the_model_is_called(
    page: Page, address: str, shown: LedgerControl
) -> None:
    model = "cats'; touch $(id) `id` \\ \"& dogs"
    shown.submit("job-a", a_spec("digits", registered_model=model), FACTS)
    train(shown, Life(shown, shown.trainer, "job-a").start(), 1, 10, 0.06)
    opened(page, address).get_by_role("button", name="Export: step 10").click()
    code = page.locator("#checkpoints .said code")
    expect(code).to_have_count(2)
    (checkpoint,) = shown.checkpoints("job-a")
    said = subprocess.run(["sh", "-c", f"printf '%s\\n' {code.last.text_content()}"], capture_output=True, text=True)
    assert said.stdout.splitlines() == [
        *("elastic", "checkpoint", "export", checkpoint.uri, "--mlflow-model", f"models:/{model}"),
    ]  # fmt: skip


def test_a_job_is_steered_on_its_page_and_revived_when_it_is_over(
    page: Page, address: str, shown: LedgerControl, life: Life
) -> None:
    opened(page, address)
    said = page.locator("#steering [role=status]")
    page.get_by_role("button", name="Pause").click()
    expect(said).to_have_text("1 job paused.")
    assert shown.job("job-a").paused
    page.get_by_role("button", name="Cancel").click()
    expect(said).to_have_text("Cancel this job, without a last commit?")
    page.get_by_role("button", name="Yes, cancel").click()
    expect(page.locator("#card .chip")).to_have_text("cancelled")
    expect(page.get_by_role("button", name="Pause")).to_have_count(0)
    page.get_by_role("button", name="Revive").click()
    expect(page.locator("#steering")).to_contain_text("1 job revived.")
    assert shown.job("job-a").state is JobState.ACTIVE


def test_who_may_only_look_is_told_so(page: Page, viewers_address: str, shown: LedgerControl, life: Life) -> None:
    opened(page, viewers_address)
    page.get_by_role("button", name="Pause").click()
    refusal = "it takes Airflow's right to start runs of elastic_job"
    expect(page.locator("#steering [role=status]")).to_have_text(f"Not done: job-a: {refusal}")
    page.get_by_role("button", name="Roll back: step 10").click()
    page.get_by_role("button", name="Yes, roll back").click()
    expect(page.locator("#checkpoints .said")).to_have_text(f"Not done: I{refusal[1:]}.")
    assert (shown.job("job-a").paused, shown.job("job-a").lineage) == (None, 0)


def test_a_job_that_failed_hours_ago_shows_its_error_and_its_log_as_text(
    page: Page, address: str, shown: LedgerControl, clock: FakeClock, tmp_path: Path
) -> None:
    shown.submit("failed-1", a_spec("failed", slots=(1, 1)), FACTS)
    failing = Life(shown, shown.trainer, "failed-1")
    order = failing.start()
    train(shown, order, 1, 10, 0.1)
    printing(tmp_path, order, f"epoch 1\nTraceback (most recent call last):\n{ERROR}\n")
    failing.leave(order, "user_error", ERROR)
    clock.advance(9 * 3600)
    page.goto(address)
    expect(page.locator("#summary")).to_contain_text("Slots in use")
    expect(page.get_by_text("failed-1")).to_have_count(0)
    opened(page, address, "failed-1")
    expect(page.locator("#card .chip")).to_have_text("failed")
    expect(page.locator("#card > article > .error")).to_contain_text(ERROR)
    expect(page.get_by_role("log")).to_contain_text(f"Traceback (most recent call last):\n{ERROR}")
    expect(page.locator("#segments .error")).to_contain_text(ERROR)
    assert page.locator("img, main b").count() == 0
    assert page.title() != "run"
    expect(page.get_by_role("button", name="Revive")).to_be_visible()
    assert faults(page) == []


@pytest.mark.nightly
def test_without_a_job_in_the_address_one_is_found(page: Page, address: str, life: Life) -> None:
    page.goto(f"{address}job/job.html")
    expect(page.locator("#found li")).to_have_count(2)
    page.get_by_role("searchbox").fill("JOB-A")
    expect(page.locator("#found li")).to_have_count(1)
    expect(page.get_by_role("link", name="digits")).to_have_attribute("href", "/plugin/elastic-job?job=job-a")
    assert faults(page) == []
    page.get_by_role("searchbox").fill("nothing of this name")
    expect(page.get_by_text("No job fits.")).to_be_visible()
    page.goto(f"{address}job/job.html?job=nobody")
    expect(page.locator("#banners")).to_contain_text("there is no job 'nobody'")


@pytest.mark.nightly
def test_the_table_and_the_cards_lead_to_the_page(page: Page, address: str, life: Life) -> None:
    page.goto(f"{address}table.html")
    row = page.locator("tr[data-id=job-a]")
    expect(row.get_by_role("link", name="Page")).to_have_attribute("href", "/plugin/elastic-job?job=job-a")
    expect(row.get_by_role("link", name="Log")).to_have_attribute("href", "/plugin/elastic-job?job=job-a&log=job-a")
    page.goto(address)
    card = page.locator("#job-job-a")
    expect(card.get_by_role("link", name="digits", exact=True)).to_have_attribute(
        "href", "/plugin/elastic-job?job=job-a"
    )
    expect(card.locator(".links a")).to_have_count(1)


FRAME = '<!doctype html><html data-theme="dark"><body><iframe src="{page}" width="1200" height="800"></iframe></body>'


def framed(page: Page, address: str) -> FrameLocator:
    """The page of job-a in a frame, as Airflow shows it."""
    outer = address.replace("/elastic/page/", "/plugin/elastic-job")
    page.route("**/plugin/elastic-job*", lambda route: route.fulfill(
        body=FRAME.format(page="/elastic/page/job/job.html"), content_type="text/html"
    ))  # fmt: skip
    page.goto(f"{outer}?job=job-a")
    frame = page.frame_locator("iframe")
    expect(frame.get_by_role("heading", name="digits")).to_be_visible()
    return frame


def test_what_was_asked_of_one_job_shows_nothing_on_the_page_of_the_next(
    page: Page, address: str, shown: LedgerControl, life: Life
) -> None:
    held: list[Route] = []
    for action in ("pause", "rollback"):
        page.route(f"**/jobs/job-a/{action}", lambda route: held.append(route))
    frame = framed(page, address)
    frame.get_by_role("button", name="Roll back: step 20").click()
    frame.get_by_role("button", name="Yes, roll back").click()
    frame.get_by_role("button", name="Pause").click()
    frame.get_by_role("searchbox").fill("other")
    frame.get_by_role("link", name="other").click()
    expect(frame.get_by_role("heading", name="other")).to_be_visible()
    expect(frame.locator("#checkpoints")).to_contain_text("It has committed none yet")
    for route in held:
        with page.expect_response(route.request.url):
            route.continue_()
    page.wait_for_timeout(300)
    expect(frame.locator("#checkpoints")).to_contain_text("It has committed none yet")
    expect(frame.locator("#steering [role=status]")).to_have_text("")
    frame.get_by_role("button", name="Pause").click()
    expect(frame.locator("#steering [role=status]")).to_have_text("1 job paused.")
    assert shown.job("job-b").paused


@pytest.mark.nightly
def test_in_airflows_frame_it_follows_the_address_and_the_theme(page: Page, address: str, life: Life) -> None:
    frame = framed(page, address)
    expect(frame.locator("html")).to_have_attribute("data-theme", "dark")
    frame.get_by_role("searchbox").fill("other")
    frame.get_by_role("link", name="other").click()
    expect(frame.get_by_role("heading", name="other")).to_be_visible()
    assert page.url.endswith("/plugin/elastic-job?job=job-b")
    page.go_back()
    expect(frame.get_by_role("heading", name="digits")).to_be_visible()
