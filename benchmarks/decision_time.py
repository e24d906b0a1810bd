"""How long each policy takes to decide: 10, 50 and 200 jobs on 16, 64 and 256 slots.

Half of the jobs run, half wait; all may use 1 to 64 slots (every count) and batches from 32 to 2048, and have three
measurements. The models are fitted before, as the control plane does between two reports of a job; the first fit
of a job is timed by itself.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

from benchmarks.report import Report, spread
from elastic_core.domain import Allocation, JobView, Layout, Limits, Node, ProfilePoint, SegmentState, Snapshot
from elastic_core.policy import registry
from elastic_core.policy.check import violations
from elastic_core.policy.packing import choose
from elastic_core.predict.fit import job_models

NOW = 1_000_000.0
SIZES = ((10, 16), (10, 64), (10, 256), (50, 16), (50, 64), (50, 256), (200, 16), (200, 64), (200, 256))
QUICK_SIZES = ((10, 16), (50, 64), (200, 256))
# Decisions are made at every event, outside any lock: a second is unnoticed next to a resize of ten.
WANT_SECONDS = {10: 0.1, 50: 0.5, 200: 2.0}
WANT_FIT_SECONDS = 0.05
# A genetic search takes as long as its generations (half a second for 50 jobs on 64 slots): shown, not held to a bar.
SEARCHES = ("pollux",)
MOST_JOBS_TO_SEARCH = 50


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer sizes and repeats")
    quick = parser.parse_args().quick
    report = Report("decision_time", quick=quick)
    repeats = 3 if quick else 10
    time_fits(report, 20 if quick else 100)
    rows = []
    for num_jobs, num_slots in QUICK_SIZES if quick else SIZES:
        picture = make_snapshot(num_jobs, num_slots, Random(num_jobs * 1000 + num_slots))
        for name in registry.names():
            if name in SEARCHES and num_jobs > MOST_JOBS_TO_SEARCH:
                continue
            raw = time_decisions(name, picture, repeats)
            report.figure(f"{name}_{num_jobs}_jobs_{num_slots}_slots_seconds", raw)
            found = spread(raw)
            rows.append((name, num_jobs, num_slots, 1e3 * found["median"], 1e3 * found["max"]))
            if name in SEARCHES:
                continue
            want = WANT_SECONDS[num_jobs]
            report.bar(
                f"{name}: {num_jobs} jobs on {num_slots} slots, median decision",
                want=f"< {want} s",
                got=round(found["median"], 4),
                ok=found["median"] < want,
            )
    report.table("Decision time", ("policy", "jobs", "slots", "median ms", "max ms"), rows)
    return report.finish()


def time_decisions(name: str, picture: Snapshot, repeats: int) -> list[float]:
    """Seconds of each decision, after one that is not counted. A plan that is not valid stops the benchmark."""
    policy = registry.get(name)
    wrong = violations(policy.decide(picture, Random(0)), picture)
    if wrong:
        raise AssertionError(f"{name} made an invalid plan: {wrong}")
    return [timed(lambda: policy.decide(picture, Random(0))) for _ in range(repeats)]


def time_fits(report: Report, repeats: int) -> None:
    rng = Random(1)
    limits = job_limits()
    profiles = [measurements(rng, 8) for _ in range(repeats)]
    raw = [timed(partial(job_models, points, limits)) for points in profiles]
    report.figure("fit_of_8_points_seconds", raw)
    got = spread(raw)["median"]
    report.bar("fit of 8 points, median", want=f"< {WANT_FIT_SECONDS} s", got=round(got, 4), ok=got < WANT_FIT_SECONDS)


def timed(call: Callable[[], object]) -> float:
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


def job_limits() -> Limits:
    return Limits(slot_counts=tuple(range(1, 65)), types=(), min_batch=32, max_batch=2048, requested_slots=4)


def measurements(rng: Random, count: int) -> tuple[ProfilePoint, ...]:
    """Nearly linear scaling with a part that does not scale, five percent of noise."""
    points = []
    for _ in range(count):
        slots, batch = 2 ** rng.randint(0, 3), 2 ** rng.randint(5, 10)
        local = -(-batch // slots)
        sync = 0.0 if slots == 1 else rng.uniform(0.002, 0.02)
        step = (0.01 + 0.001 * local + sync) * rng.gauss(1, 0.05)
        points.append(
            ProfilePoint(
                num_slots=slots,
                num_nodes=1,
                type="gpu",
                global_batch=batch,
                local_batch=local,
                accumulation=1,
                step_seconds=step,
                sync_seconds=sync,
                count=10,
            )
        )
    return tuple(points)


def make_snapshot(num_jobs: int, num_slots: int, rng: Random) -> Snapshot:
    pool = tuple(Node(name=f"node-{i:03}", type="gpu", num_slots=8) for i in range(num_slots // 8))
    free = [slot for node in pool for slot in node.slots()]
    jobs = []
    for i in range(num_jobs):
        view = make_job(i, rng)
        count = min(2 ** rng.randint(0, 2), len(free))
        if i % 2 == 0 and count:
            slots = choose(free, {"gpu": count})
            free = [slot for slot in free if slot not in slots]
            allocation = Allocation(slots=slots, global_batch=256, layout=Layout(data=count))
            view = replace(view, allocation=allocation, segment_state=SegmentState.RUNNING, last_batch=256)
        jobs.append(view)
    return Snapshot(version=1, now=NOW, nodes=pool, jobs=tuple(jobs))


def make_job(index: int, rng: Random) -> JobView:
    points = measurements(rng, 3)
    limits = job_limits()
    return JobView(
        job_id=f"job-{index:03}",
        name=f"job-{index:03}",
        queue="default",
        priority=0,
        submitted_at=NOW - 1000.0 + index,
        deadline=None,
        limits=limits,
        total_samples=10**7,
        done_samples=rng.randint(0, 10**6),
        segment_id=f"job-{index:03}__seg_0",
        segment_state=SegmentState.WAITING,
        profile=points,
        throughput=job_models(points, limits),
    )


if __name__ == "__main__":
    sys.exit(main())
