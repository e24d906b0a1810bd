"""300 jobs submitted at once: how long the page and a decision take, and to cancel all of them on the page.

The control plane's app with the page's routes runs in a process of its own under uvicorn, over an embedded PostgreSQL
with its usual durability, and with the default policy, in its policy process, on 64 slots. Jobs come by signed requests
of eight threads, as their runs' tasks send them (`submit`, `acquire`), on behalf of a user, whose actions are on
record. All the while the page is asked for anew once its answer is not kept any longer. Then decisions are asked for
one by one, and one request of a user cancels all jobs. Not in it: Airflow (its login, its scheduler, the runs of the
jobs) and heartbeats.

Bars: the 95th percentile of the page's answers and of decisions at most 1 s, all jobs cancelled within 10 s.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from statistics import median

import httpx
from sqlalchemy import create_engine, text

from benchmarks.common.control_server import SECRET, USER, control_plane, submit
from benchmarks.common.latencies import percentile, seconds_of
from benchmarks.common.report import Report
from elastic_core.protocol.http_client import HttpControl
from elastic_core.spec import parse_cluster_spec

JOBS, QUICK_JOBS = 300, 60
DECISIONS, QUICK_DECISIONS = 40, 10
NODES, SLOTS_EACH, CLIENTS = 8, 8, 8
PAGE_EVERY_SECONDS = 1.05  # an answer is kept for a second
MOST_SECONDS, MOST_CANCEL_SECONDS = 1.0, 10.0
OWN_PAGE = {"sec-fetch-site": "same-origin"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    jobs, decisions = (QUICK_JOBS, QUICK_DECISIONS) if quick else (JOBS, DECISIONS)
    report = Report("many_jobs", quick=quick)
    with control_plane() as (url, base):
        _measure(report, url, base, jobs, decisions)
    return report.finish()


def _measure(report: Report, url: str, base: str, jobs: int, decisions: int) -> None:
    service = HttpControl(base, SECRET, patience_seconds=60)
    service.set_cluster(
        parse_cluster_spec({"nodes": [{"name": f"n{i}", "type": "h200", "slots": SLOTS_EACH} for i in range(NODES)]})
    )
    with _page_looked_at(base) as pages:
        started = time.monotonic()
        with ThreadPoolExecutor(CLIENTS) as pool:
            submitted = list(pool.map(lambda number: _submit(service, number), range(jobs)))
        arrival = time.monotonic() - started
        decided = [seconds_of(lambda: service.decide("benchmark")) for _ in range(decisions)]
    job_ids = [job.job_id for job in service.jobs(active_only=True)]
    answers: list[httpx.Response] = []
    body = {"job_ids": job_ids, "reason": "benchmark"}
    cancel = seconds_of(
        lambda: answers.append(httpx.post(f"{base}/api/v1/jobs/cancel", json=body, headers=OWN_PAGE, timeout=120))
    )
    answers[0].raise_for_status()
    cancelled = [outcome["job_id"] for outcome in answers[0].json() if outcome["state"] == "cancelled"]
    recorded = len([r for r in service.audit_records(actor=USER, limit=4 * jobs) if r.action == "cancel" and r.done])
    with create_engine(url).connect() as connection:
        policy = [float(row[0]) for row in connection.execute(text("SELECT seconds FROM decisions ORDER BY id"))]
    rows = [_row("submit and acquire, each", submitted), _row("page", pages), _row("decision asked for", decided),
            _row("of it the policy, all decisions", policy)]  # fmt: skip
    report.table(f"{jobs} jobs, seconds", ("what", "count", "median", "p95", "most"), rows)
    report.table("All of them, seconds", ("what", "seconds"), [("arrival", arrival), ("cancelled", cancel)])
    for name, raw in (("submit_seconds", submitted), ("page_seconds", pages), ("decide_seconds", decided),
                      ("policy_seconds", policy)):  # fmt: skip
        report.figure(name, raw)
    report.figure("arrival_seconds", arrival)
    report.figure("cancel_seconds", cancel)
    all_gone = len(cancelled) == jobs == recorded and not service.jobs(active_only=True)
    report.bar("jobs cancelled and on record", want=f"{jobs}", got=len(cancelled), ok=all_gone)
    for what, raw in (("page", pages), ("decision", decided)):
        p95 = percentile(raw, 95)
        report.bar(f"{what}, 95th percentile", want=f"<= {MOST_SECONDS:g} s", got=round(p95, 3), ok=p95 <= MOST_SECONDS)
    report.bar(
        "all cancelled", want=f"<= {MOST_CANCEL_SECONDS:g} s", got=round(cancel, 2), ok=cancel <= MOST_CANCEL_SECONDS
    )
    service.close()


def _submit(service: HttpControl, number: int) -> float:
    return seconds_of(lambda: submit(service, number, entry_points=12, batch=1024, slots=8))


@contextmanager
def _page_looked_at(base: str) -> Iterator[list[float]]:
    """Seconds of each answer meanwhile."""
    seconds: list[float] = []
    stop = threading.Event()

    def look() -> None:
        with httpx.Client(timeout=60) as client:
            while not stop.wait(PAGE_EVERY_SECONDS):
                seconds.append(seconds_of(lambda: client.get(f"{base}/ui/overview").raise_for_status()))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seconds
    finally:
        stop.set()
        thread.join()


def _row(what: str, raw: list[float]) -> tuple[str, int, float, float, float]:
    return what, len(raw), median(raw), percentile(raw, 95), max(raw)


if __name__ == "__main__":
    sys.exit(main())
