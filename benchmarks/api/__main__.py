"""How long the routes of the REST API and those that the page asks take, over 1,000 jobs and 100,000 segments.

    .venv/bin/python -m benchmarks.api [--quick]

The control plane's app with the page's routes runs in a process of its own under uvicorn, over an embedded PostgreSQL
with its usual durability, and with the default policy in its policy process. Nine of ten jobs are over: one was played
over the real API, and its rows are multiplied (`filled_ledger`). The others run meanwhile, on 256 slots, by simulated
trainers, which speak the real API and compute nothing (`benchmarks.scale.trainers`); each has made as many reports
before as a decision looks at. Each route is asked one after the other, by one client, over different jobs. Not in it:
Airflow's login, its own routes, and starting a run in Airflow, which submissions do besides.

Bars: the 95th percentile of every route at most 100 ms; of those that take a decision before they answer, too. What-if
and replays, which have a policy work, are shown without one. A route of the description that is not asked is named.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import httpx
from sqlalchemy import create_engine, text

from benchmarks.api import filled_ledger
from benchmarks.common.control_server import METRICS_TOKEN, SECRET, control_plane, submit
from benchmarks.common.latencies import percentile
from benchmarks.common.report import Report
from benchmarks.scale.trainers import training
from elastic_core.protocol.http_client import HttpControl
from elastic_core.snapshot.job_reports import RECENT
from elastic_core.spec import parse_cluster_spec

NODES, SLOTS_EACH = 32, 8
HEADERS = {"sec-fetch-site": "same-origin", "authorization": f"Bearer {METRICS_TOKEN.decode()}"}
MOST_SECONDS = 0.100
TIMES_LONG = 3  # that what takes long is asked
DECIDES = ("/what-if", "/replay")
SETTLE_SECONDS, GRANT_SECONDS = 20.0, 10.0
# Of the description, and not asked here.
LEFT_OUT = {
    "POST /api/v1/jobs": "starts a run in Airflow",
    "POST /api/v1/sweeps": "starts runs in Airflow",
    "POST /api/v1/checkpoints/{checkpoint_id}/fork": "starts a run in Airflow",
    "GET /api/v1/jobs/{job_id}/submission": "asks Airflow for its run",
    "POST /api/v1/jobs/{job_id}/revive": "of a failed job, which begins to wait for slots",
    "POST /api/v1/jobs/{job_id}/rollback": "as revive",
    "GET /api/v1/jobs/{job_id}/log": "asks the launcher's hosts for a file",
    "GET /api/v1/what-if/answers/{answer_id}": "a page of a what-if that was answered",
}


@dataclass(frozen=True)
class Size:
    over: int
    segments: int
    active: int
    reports: int  # that each active job has made before
    times: int  # each route is asked


WHOLE, QUICK = Size(900, 111, 100, RECENT, 40), Size(90, 11, 10, 100, 10)


@dataclass(frozen=True)
class Asked:
    """`path`: with "{past}", "{active}", "{other}", "{decision}", "{node}", "{since}" in it."""

    method: str
    path: str
    body: dict[str, Any] | None = None


READS = tuple(
    Asked("GET", path)
    for path in (
        "/api/v1/jobs", "/api/v1/jobs?state=active", "/api/v1/jobs?search=past-1&sort=spent&descending=true",
        "/api/v1/jobs?sort=progress&offset=100&limit=200", "/api/v1/jobs/{active}", "/api/v1/jobs/{past}",
        "/api/v1/jobs/{active}/segments", "/api/v1/jobs/{past}/segments", "/api/v1/jobs/{past}/checkpoints",
        "/api/v1/jobs/{active}/curve", "/api/v1/jobs/{active}/moves", "/api/v1/jobs/{past}/observations",
        "/api/v1/jobs/{active}/explanation", "/api/v1/jobs/{active}/forecasts", "/api/v1/cluster", "/api/v1/nodes",
        "/api/v1/cluster/timeline?limit=500", "/api/v1/cluster/timeline?since=0&offset=50000", "/api/v1/cluster/events",
        "/api/v1/policy", "/api/v1/decisions", "/api/v1/decisions/{decision}", "/api/v1/forecasts", "/api/v1/audit",
        "/api/v1/audit?job_id={active}", "/api/v1/what-if/expected", "/api/v1/decisions/{decision}/replay",
        "/ui/overview", "/ui/jobs/{active}/page", "/metrics", "/api/v1/openapi.json",
    )
)  # fmt: skip
WRITES = (
    Asked("PATCH", "/api/v1/jobs/{active}", {"priority": 1}),
    Asked("POST", "/api/v1/jobs/{active}/checkpoint", {"reason": "benchmark"}),
    Asked("POST", "/api/v1/jobs/{active}/pause", {"reason": "benchmark"}),
    Asked("POST", "/api/v1/jobs/{active}/resume", {}),
    Asked("POST", "/api/v1/nodes/{node}/set-aside", {"reason": "benchmark"}),
    Asked("POST", "/api/v1/nodes/{node}/take-back", {}),
    Asked("POST", "/api/v1/what-if", {"add": [{"type": "h200", "num_slots": 8, "count": 2}]}),
    Asked("POST", "/api/v1/jobs/{active}/stop", {"reason": "benchmark"}),
    Asked("POST", "/api/v1/jobs/{other}/cancel", {"reason": "benchmark"}),
    Asked("POST", "/api/v1/jobs/cancel", {"job_ids": [f"{filled_ledger.PAST}-0", "nothing"], "reason": "benchmark"}),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the jobs and of their segments")
    quick = parser.parse_args().quick
    report = Report("api", quick=quick)
    with control_plane() as (url, base):
        _measure(report, url, base, QUICK if quick else WHOLE)
    return report.finish()


def _measure(report: Report, url: str, base: str, size: Size) -> None:
    service = HttpControl(base, SECRET, patience_seconds=300)
    nodes = [{"name": f"n{i}", "type": "h200", "slots": SLOTS_EACH, "price_per_slot_hour": 2.0} for i in range(NODES)]
    service.set_cluster(parse_cluster_spec({"nodes": nodes}))
    engine = create_engine(url)
    filled_ledger.play_template(service, base)
    filled_ledger.multiply(engine, size.over, size.segments)
    for number in range(size.active):
        submit(service, number, entry_points=12, batch=1024, slots=8)
    time.sleep(GRANT_SECONDS)
    aged = filled_ledger.age(engine, size.reports)
    print(f"{aged} jobs that hold slots have {size.reports} reports each", flush=True)
    with engine.connect() as connection:
        kept = {name: connection.execute(text(f"SELECT count(*) FROM {name}")).scalar_one()
                for name in ("jobs", "segments", "leases", "checkpoints", "observations", "decisions")}  # fmt: skip
    report.table("The ledger", ("table", "rows"), list(kept.items()))
    with (
        training(base, size.active) as asked_calls,
        httpx.Client(base_url=base, timeout=120, headers=HEADERS) as client,
    ):
        time.sleep(SETTLE_SECONDS)
        rows = [_route(report, client, asked, size) for asked in (*READS, *WRITES)]
        calls, _, _ = asked_calls()
        untold = _untold(client)
    report.table("Routes, milliseconds", ("route", "p50", "p95", "most", "KiB"), rows)
    beats = [seconds for _, seconds in calls["heartbeat"]]
    report.table("Meanwhile", ("", "count", "p95 ms"), [("heartbeats", len(beats), 1e3 * percentile(beats, 95))])
    report.bar("routes of the description that were not asked", want="none but those named",
               got=", ".join(untold) or "none", ok=not untold)  # fmt: skip
    print("Not asked:", *(f"{route}: {why}" for route, why in LEFT_OUT.items()), sep="\n  ")
    service.close()


def _route(report: Report, client: httpx.Client, asked: Asked, size: Size) -> tuple[str, float, float, float, float]:
    name = f"{asked.method} {asked.path}"
    seconds, length = [], 0
    takes_long = asked.path.endswith(DECIDES)
    for path in itertools.islice(_paths(client, asked.path, size), TIMES_LONG if takes_long else size.times):
        started = time.monotonic()
        answer = client.request(asked.method, path, json=asked.body)
        seconds.append(time.monotonic() - started)
        if answer.status_code not in (200, 409):  # a job may have ended, or wait
            raise SystemExit(f"{asked.method} {path} answered {answer.status_code}: {answer.text[:500]}")
        length = len(answer.content)
    report.figure(name, seconds)
    p95 = percentile(seconds, 95)
    if not takes_long:
        report.bar(
            f"{name}, p95", want=f"<= {1e3 * MOST_SECONDS:g} ms", got=f"{1e3 * p95:.0f} ms", ok=p95 <= MOST_SECONDS
        )
    return name, 1e3 * median(seconds), 1e3 * p95, 1e3 * max(seconds), length / 1024


def _paths(client: httpx.Client, path: str, size: Size) -> Iterator[str]:
    """Over different jobs and nodes, again and again."""
    decision = 0
    if "{decision}" in path:
        decision = client.get("/api/v1/decisions?limit=1").json()[0]["decision_id"]
    for number in itertools.count():
        yield path.format(
            past=f"{filled_ledger.PAST}-{7 * number % size.over}", active=f"job-{number % size.active}",
            other=f"job-{(size.active - 1 - number) % size.active}",
            decision=decision, node=f"n{number % NODES}",
        )  # fmt: skip


def _untold(client: httpx.Client) -> list[str]:
    """Routes of the API's description that are neither asked here nor said not to be."""
    described = client.get("/api/v1/openapi.json").json()["paths"]
    every = {f"{method.upper()} {path}" for path, methods in described.items() for method in methods}
    return sorted(route for route in every - LEFT_OUT.keys() if not any(_is(route, a) for a in (*READS, *WRITES)))


def _is(route: str, asked: Asked) -> bool:
    method, path = route.split(" ")
    parts, own = path.split("/"), asked.path.partition("?")[0].split("/")
    alike = len(parts) == len(own) and all(a == b or a.startswith("{") for a, b in zip(parts, own, strict=True))
    return method == asked.method and alike


if __name__ == "__main__":
    raise SystemExit(main())
