"""How soon the page can be used with 300 jobs on 256 slots, in a real browser, beside their trainers.

    .venv/bin/python -m benchmarks.page [--quick]

The control plane's app with the page and its routes runs in a process of its own (`common.control_server`), the
trainers are simulated as in `scale`, and chromium opens each of the six pages with nothing in its cache: slots and
cards, the table of jobs, the page of one job, decisions, what-if, and models, of which an MLflow server has one with
three versions. Timed from the call until the data is drawn, and until a click is answered: a node that is unfolded, a
job that is chosen, a version that is to be promoted. What-if is drawn when it says how long simulating may take, and
used when a field is filled in; how long the answer took is told, without a bar. Then each stays open while its answers
change, and whatever moves under a reader's eyes is counted (layout shift; what follows a click is none). Not in it:
Airflow's frame around the page, and its login. Needs chromium.

Bars: the 95th percentile of the time until it can be used at most 1.5 s, on each page, as everything runs on the same
two cores; but for the table, which has as many rows as its reader chooses (50), no page is higher than three screens of
900 pixels; nothing moves.
"""

from __future__ import annotations

import argparse
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from playwright.sync_api import Browser, Page, expect, sync_playwright

from benchmarks.common.control_server import SECRET, control_plane, submit
from benchmarks.common.latencies import percentile
from benchmarks.common.report import Report
from benchmarks.scale.trainers import training
from elastic_core.protocol.http_client import HttpControl
from elastic_core.spec import parse_cluster_spec
from tests.track.mlflow_server import MlflowServer

JOBS, NODES, SLOTS_EACH = 300, 32, 8
OPENED, QUICK = 20, 5  # times, each page
WATCHED_SECONDS = 15.0
START_SECONDS = 300.0
MOST_SECONDS, MOST_PIXELS = 1.5, 2700
WIDTH, HEIGHT = 1280, 900
NEWEST = f"job-{JOBS - 1}"  # the table's first row
SHIFTS = """() => {
  window.shifts = [];
  new PerformanceObserver((list) => {
    for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifts.push(entry.value);
  }).observe({ type: "layout-shift" });
}"""


@dataclass(frozen=True)
class Shown:
    """A page: its address, when its data is drawn, and what is clicked and seen then, where there is something."""

    name: str
    path: str
    drawn: Callable[[Page], None]
    used: Callable[[Page], None] | None = None
    answered: Callable[[Page], None] | None = None  # what opening it set off, which is over before the next is opened


def _unfold(page: Page) -> None:
    node = page.locator("#timeline [data-node='n0']")
    node.click()
    expect(node).to_have_attribute("aria-expanded", "true")


def _choose(page: Page) -> None:
    page.get_by_label(f"Choose {NEWEST}", exact=True).check()
    expect(page.locator("#steering button:enabled").first).to_be_visible()


def _promote(page: Page) -> None:
    page.get_by_role("button", name="Promote version 1").click()
    expect(page.get_by_role("button", name="Yes, promote")).to_be_visible()


def _fill_in(page: Page) -> None:
    policy = page.get_by_label("Decided by")
    policy.fill("fixed")
    expect(policy).to_have_value("fixed")


def _is_estimated(page: Page) -> None:
    expect(page.locator("#summary")).to_contain_text(re.compile("It may take up to|Simulated at"))


def _is_simulated(page: Page) -> None:
    page.locator("#rows tr[data-id]").first.wait_for(timeout=120_000)


def _sees(selector: str) -> Callable[[Page], None]:
    return lambda page: expect(page.locator(selector).first).to_be_visible()


PAGES = (
    Shown("slots and cards", "", _sees("#timeline [data-node='n0']"), _unfold),
    Shown("jobs", "table.html", _sees(f"#rows tr[data-id='{NEWEST}']"), _choose),
    Shown("a job", f"job/job.html?job={NEWEST}", _sees("#segments table")),
    Shown("decisions", "decisions/decisions.html", _sees("#shown tr[data-id]")),
    Shown("what if", "what_if/what_if.html", _is_estimated, _fill_in, _is_simulated),
    Shown("models", "models/models.html", _sees("#shown tr[data-version]"), _promote),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"each page {QUICK} times")
    quick = parser.parse_args().quick
    report = Report("page", quick=quick)
    with _a_registry() as mlflow_uri, control_plane(mlflow_uri) as (_, base), _chromium() as browser:
        service = HttpControl(base, SECRET, patience_seconds=300)
        nodes = [{"name": f"n{i}", "type": "h200", "slots": SLOTS_EACH} for i in range(NODES)]
        service.set_cluster(parse_cluster_spec({"nodes": nodes}))
        for number in range(JOBS):
            submit(service, number, entry_points=40, batch=1024, slots=4)
        with training(base, JOBS):
            _await_jobs(service)
            _measure(report, browser, f"{base}/elastic/page/", QUICK if quick else OPENED)
        service.close()
    return report.finish()


def _measure(report: Report, browser: Browser, address: str, times: int) -> None:
    rows, used_by_page, heights, moved = [], {}, {}, {}
    for shown in PAGES:
        drawn, used, answered = zip(*(_opened(browser, address, shown) for _ in range(times)), strict=True)
        heights[shown.name], moved[shown.name] = _watched(browser, address, shown)
        used_by_page[shown.name] = used
        rows.append(
            (shown.name, times, median(drawn), percentile(drawn, 95), median(used), percentile(used, 95),
             heights[shown.name], moved[shown.name])
        )  # fmt: skip
        report.figure(f"{shown.name}, drawn, seconds", drawn)
        report.figure(f"{shown.name}, used, seconds", used)
        if shown.answered is not None:
            report.figure(f"{shown.name}, answered, seconds", answered)
    columns = (
        "page",
        "opened",
        "drawn, median s",
        "p95 s",
        "used, median s",
        "p95 s",
        "height, pixels",
        "layout shift",
    )
    report.table(f"{JOBS} jobs on {NODES * SLOTS_EACH} slots, {WIDTH} x {HEIGHT}, seconds", columns, rows)
    for name, used in used_by_page.items():
        got = percentile(used, 95)
        report.bar(
            f"{name}: can be used, 95th percentile", want=f"<= {MOST_SECONDS:g} s", got=round(got, 3),
            ok=got <= MOST_SECONDS,
        )  # fmt: skip
    highest = max(height for name, height in heights.items() if name != "jobs")
    report.bar(
        "height of the highest page but the table",
        want=f"<= {MOST_PIXELS} pixels",
        got=highest,
        ok=highest <= MOST_PIXELS,
    )
    shifts = sum(moved.values())
    report.bar(f"layout shift in {WATCHED_SECONDS:g} s, all pages", want="0", got=round(shifts, 4), ok=shifts == 0)


def _opened(browser: Browser, address: str, shown: Shown) -> tuple[float, float, float]:
    """Seconds until it is drawn, until it can be used (of a page that nothing is clicked on, the same), and until what
    it asked for is answered (of one that is drawn from its answer, the same)."""
    with _page(browser) as page:
        began = time.monotonic()
        page.goto(f"{address}{shown.path}", wait_until="commit")
        shown.drawn(page)
        drawn = used = time.monotonic() - began
        if shown.used is not None:
            shown.used(page)
            used = time.monotonic() - began
        if shown.answered is None:
            return drawn, used, used
        shown.answered(page)
        return drawn, used, time.monotonic() - began


def _watched(browser: Browser, address: str, shown: Shown) -> tuple[int, float]:
    """Its height in pixels, and how much of it moved while it was updated."""
    with _page(browser) as page:
        page.goto(f"{address}{shown.path}")
        shown.drawn(page)
        if shown.answered is not None:
            shown.answered(page)
        page.wait_for_timeout(1000)
        page.evaluate(SHIFTS)
        page.wait_for_timeout(WATCHED_SECONDS * 1000)
        height = page.evaluate("document.documentElement.scrollHeight")
        return int(height), float(page.evaluate("window.shifts.reduce((sum, one) => sum + one, 0)"))


@contextmanager
def _a_registry() -> Iterator[str]:
    """Where an MLflow server answers that has one model, of three versions."""
    from mlflow import MlflowClient

    with tempfile.TemporaryDirectory(prefix="elastic-mlflow-") as folder:
        server = MlflowServer(Path(folder))
        server.start()
        try:
            client = MlflowClient(server.uri, registry_uri=server.uri)
            client.create_registered_model("cats")
            for _ in range(3):
                run = client.create_run("0")
                client.create_model_version("cats", f"{run.info.artifact_uri}/model", run.info.run_id)
            client.set_registered_model_alias("cats", "champion", "3")
            yield server.uri
        finally:
            server.kill()


@contextmanager
def _chromium() -> Iterator[Browser]:
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        raise SystemExit("chromium is not installed (Debian: apt-get install chromium): nothing here shows the page")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def _page(browser: Browser) -> Iterator[Page]:
    """With nothing in its cache."""
    context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT})
    context.set_default_timeout(60_000)
    yield context.new_page()
    context.close()


def _await_jobs(service: HttpControl) -> None:
    end = time.monotonic() + START_SECONDS
    while True:
        running = sum(job.allocation is not None for job in service.jobs(active_only=True))
        print(f"{running} of {JOBS} jobs run", flush=True)
        if running >= JOBS // 2:  # of the others some wait, as on any busy pool
            return
        if time.monotonic() > end:
            raise SystemExit(f"only {running} of {JOBS} jobs run after {START_SECONDS:g} s, not half of them")
        time.sleep(5.0)


if __name__ == "__main__":
    raise SystemExit(main())
