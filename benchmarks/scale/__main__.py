"""The control plane with 1,000 running jobs on 10,000 slots: heartbeats, decisions, the page; and where it would break.

    .venv/bin/python -m benchmarks.scale [--quick]

The control plane's app with the page's routes runs in a process of its own under uvicorn, over an embedded PostgreSQL
with its usual durability, and with the default policy in its policy process. Trainers are simulated: a process of
`trainers`, whose threads send over the real API, each job over a connection of its own, what its rank 0 and its agent
would, and compute nothing. Jobs come by signed requests of eight threads, as their runs' tasks send them. Once all
run, calls are timed for some minutes: heartbeats and reports, which come when the server says
(`ELASTIC_HEARTBEATS_PER_SECOND`), boundaries of segments of five minutes, the page of all jobs, asked for anew once its
answer is not kept any longer, and decisions that are asked for. Meanwhile jobs are cancelled and others come, so that
plans change. Not in it: Airflow (its login, its scheduler, the runs of the jobs), training, and other machines'
networks.

Bars, on two cores which all of that shares: the 99th percentile of heartbeats at most 250 ms and of decisions at most
2 s, the 95th of the page at most 1 s.
"""

from __future__ import annotations

import argparse
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median

import httpx
import psutil
from sqlalchemy import create_engine, text

from benchmarks.common.control_server import SECRET, control_plane, submit
from benchmarks.common.latencies import percentile, seconds_of
from benchmarks.common.report import Report
from benchmarks.scale.trainers import training
from elastic_core.protocol.http_client import HttpControl
from elastic_core.spec import parse_cluster_spec

SLOTS_EACH, CLIENTS = 8, 8
PAGE_EVERY_SECONDS, DECIDE_EVERY_SECONDS, CHANGE_EVERY_SECONDS = 1.05, 5.0, 15.0
START_SECONDS = 600.0  # until all jobs run
MOST_HEARTBEAT, MOST_DECISION, MOST_PAGE = 0.25, 2.0, 1.0  # seconds
ENTRY_POINTS = 40


@dataclass(frozen=True)
class Size:
    jobs: int
    slots: int
    seconds: float  # that are timed


WHOLE, QUICK = Size(1000, 10_000, 240.0), Size(100, 1000, 40.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100 jobs on 1,000 slots, for less than a minute")
    quick = parser.parse_args().quick
    report = Report("scale", quick=quick)
    with control_plane() as (url, base):
        _measure(report, url, base, QUICK if quick else WHOLE)
    return report.finish()


def _measure(report: Report, url: str, base: str, size: Size) -> None:
    service = HttpControl(base, SECRET, patience_seconds=300)
    nodes = [{"name": f"n{i}", "type": "h200", "slots": SLOTS_EACH} for i in range(size.slots // SLOTS_EACH)]
    service.set_cluster(parse_cluster_spec({"nodes": nodes}))
    began = time.time()
    with ThreadPoolExecutor(CLIENTS) as pool:
        list(
            pool.map(
                lambda number: _submit(service, number),
                range(size.jobs),
            )
        )
    arrival = time.time() - began
    coming = int(size.seconds / CHANGE_EVERY_SECONDS) + 1
    with training(base, size.jobs + coming) as asked_calls:
        _await_all(service, size.jobs)
        started = time.time()
        pages, decided, in_force = _while_it_runs(service, base, url, size)
        ended = time.time()
        calls, errors, late = asked_calls()
    timed = {name: [s for sent, s in raw if started <= sent <= ended] for name, raw in calls.items()}
    with create_engine(url).connect() as connection:
        window = {"started": started, "ended": ended}
        policy = [float(row[0]) for row in connection.execute(text(
            "SELECT seconds FROM decisions WHERE at BETWEEN :started AND :ended"), window)]  # fmt: skip
        stored = connection.execute(text(
            "SELECT coalesce(sum(pg_column_size(d.*)), 0) FROM decisions d WHERE at BETWEEN :started AND :ended"
        ), window).scalar_one()  # fmt: skip
    rows = [
        _row(name, timed[name]) for name in ("heartbeat", "observe", "commit", "release", "exited") if timed.get(name)
    ]
    rows += [_row("page", pages), _row("decision asked for", decided), _row("until it is in force", in_force),
             _row("of decisions, the policy", policy)]  # fmt: skip
    report.table(
        f"{size.jobs} jobs on {size.slots} slots, seconds", ("what", "count", "median", "p95", "p99", "most"), rows
    )
    seconds = ended - started
    rates = [("messages of trainers", sum(map(len, timed.values())) / seconds),
             ("boundaries", len(timed.get("commit", [])) / seconds), ("decisions", len(policy) / seconds)]  # fmt: skip
    report.table("A second", ("what", "number"), rates)
    report.table("Besides", ("what", "value"), [
        ("seconds until all were submitted", arrival),
        ("decisions' bytes a day, MiB", 86_400 / seconds * float(stored) / 2**20),
        ("turns of the simulated trainers that came later than 0.1 s, part", _part_above(late, 0.1)),
        ("errors of calls", sum(errors.values())),
    ])  # fmt: skip
    for name, raw in (*timed.items(), ("page", pages), ("decision", decided),
                      ("in_force", in_force), ("policy", policy)):  # fmt: skip
        report.figure(f"{name}_seconds", raw)
    report.figure("errors", errors)
    report.figure("decision_bytes", int(stored))
    judged = (("heartbeat", timed.get("heartbeat", []), 99, MOST_HEARTBEAT),
              ("decision", decided, 99, MOST_DECISION), ("page", pages, 95, MOST_PAGE))  # fmt: skip
    for what, raw, part, most in judged:
        got = percentile(raw, part)
        report.bar(f"{what}, {part}th percentile", want=f"<= {most:g} s", got=round(got, 3), ok=got <= most)
    report.bar("calls that failed", want="0", got=sum(errors.values()), ok=not errors)
    service.close()


def _while_it_runs(
    service: HttpControl, base: str, url: str, size: Size
) -> tuple[list[float], list[float], list[float]]:
    """Seconds of each page, of each decision that was asked for, and until a plan was in force that knew of all that
    had come by the answer: another process, or one aside, may have been at a decision already."""
    pages: list[float] = []
    decided: list[float] = []
    in_force: list[float] = []
    end = time.monotonic() + size.seconds

    def look() -> None:
        with httpx.Client(timeout=60) as client:
            while time.monotonic() < end:
                pages.append(seconds_of(lambda: client.get(f"{base}/ui/overview").raise_for_status()))
                time.sleep(PAGE_EVERY_SECONDS)

    def decide() -> None:
        with create_engine(url, isolation_level="AUTOCOMMIT").connect() as connection:
            while time.monotonic() < end:
                asked = time.monotonic()
                version = service.decide("benchmark")
                decided.append(time.monotonic() - asked)
                while connection.execute(text("SELECT decided_version FROM scheduling")).scalar_one() < version:
                    time.sleep(0.1)
                in_force.append(time.monotonic() - asked)
                time.sleep(DECIDE_EVERY_SECONDS)

    def change() -> None:
        number = size.jobs
        while time.monotonic() < end:
            time.sleep(CHANGE_EVERY_SECONDS)
            service.cancel(f"job-{number - size.jobs}", "benchmark")
            _submit(service, number)
            number += 1

    threads = [threading.Thread(target=work) for work in (look, decide, change)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return pages, decided, in_force


def _await_all(service: HttpControl, jobs: int) -> None:
    end = time.monotonic() + START_SECONDS
    while True:
        running = sum(job.allocation is not None for job in service.jobs(active_only=True))
        print(f"{running} of {jobs} jobs run; load {psutil.getloadavg()[0]:.1f}", flush=True)
        if running == jobs:
            return
        if time.monotonic() > end:
            raise SystemExit(f"only {running} of {jobs} jobs run after {START_SECONDS:g} s")
        time.sleep(5.0)


def _submit(service: HttpControl, number: int) -> None:
    submit(service, number, entry_points=ENTRY_POINTS, batch=4096, slots=64)


def _row(what: str, raw: list[float]) -> tuple[str, int, float, float, float, float]:
    return what, len(raw), median(raw), percentile(raw, 95), percentile(raw, 99), max(raw)


def _part_above(raw: list[float], limit: float) -> float:
    return sum(value > limit for value in raw) / max(len(raw), 1)


if __name__ == "__main__":
    raise SystemExit(main())
