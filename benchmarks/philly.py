"""Replays Microsoft's whole Philly trace: `python -m benchmarks.philly [--quick] [--policy NAME ...]`.

82,247 jobs of autumn 2017 on 1,024 a100 (128 nodes of 8), one decision per 10 simulated minutes. The trace names no
models: they are drawn at random by the seed among Sia's measured ones (see `elastic_core.sim.traces.philly`). Bars are
on processor time, so that what else the machine does is not measured, and on the peak of the process's memory.
`--quick` replays four days from where the trace gets busy, with bars in proportion to the simulated time.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from dataclasses import replace
from math import inf
from typing import Any

from benchmarks.common.report import Report
from elastic_core.errors import UserError
from elastic_core.policy import registry
from elastic_core.sim.engine.engine import Options, simulate
from elastic_core.sim.ground_truth.workload import Workload
from elastic_core.sim.workloads import catalogue, clusters

ROUND_SECONDS = 600.0
DAY = 86400.0
QUICK_DAYS = (18, 22)
LIMIT_SECONDS = {"horizon": 600.0, "srtf": 120.0}  # of the whole trace
OTHERS_SECONDS = 600.0
MEMORY_GIB = 2.0
DEFAULT = ("horizon", "srtf")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="four days of the trace")
    parser.add_argument("--policy", action="append", help=f"default: {', '.join(DEFAULT)}")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    names = given.policy or DEFAULT
    policies = [registry.get(name) for name in names]
    report = Report("philly", quick=given.quick)
    try:
        whole = catalogue.entry("philly").load(given.seed)
    except UserError as error:
        print(f"philly: not run: {error}")
        return 2
    loaded = _some_days(whole) if given.quick else whole
    part = (QUICK_DAYS[1] - QUICK_DAYS[0]) * DAY / whole.jobs[-1].submitted_at if given.quick else 1.0
    rows = []
    for policy in policies:
        figures = _replay(loaded, policy, given.seed, until=QUICK_DAYS[1] * DAY if given.quick else inf)
        report.figure(policy.name, figures)
        rows.append([policy.name, *(figures[key] for key in _COLUMNS)])
        limit = LIMIT_SECONDS.get(policy.name, OTHERS_SECONDS) * part
        seconds = figures["processor_seconds"]
        report.bar(
            f"{policy.name}, processor time", want=f"<= {limit:.1f} s", got=round(seconds, 1), ok=seconds <= limit
        )
        if not given.quick:
            done = figures["completed"] + figures["turned_away"]
            report.bar(f"{policy.name}, jobs ended", want=str(len(loaded.jobs)), got=done, ok=done == len(loaded.jobs))
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    report.figure("peak_memory_gib", memory)
    report.bar("peak memory", want=f"< {MEMORY_GIB:.0f} GiB", got=f"{memory:.2f} GiB", ok=memory < MEMORY_GIB)
    cluster = clusters.describe(clusters.preset("philly-1024"))
    report.table(f"{loaded.name}: {len(loaded.jobs):,} jobs on {cluster}", ["policy", *_COLUMNS.values()], rows)
    for note in loaded.notes:
        print(f"note: {note}")
    return report.finish()


_COLUMNS = {
    "processor_seconds": "CPU s", "wall_seconds": "wall s", "decisions": "asked", "mean_completion": "mean s",
    "p99_completion": "p99 s", "utilisation": "used", "resizes_per_job": "resizes", "decision_median": "decide s",
}  # fmt: skip


def _some_days(whole: Workload) -> Workload:
    first, last = (day * DAY for day in QUICK_DAYS)
    jobs = tuple(job for job in whole.jobs if first <= job.submitted_at < last)
    return replace(whole, name=f"{whole.name}, days {QUICK_DAYS[0]} to {QUICK_DAYS[1]}", jobs=jobs)


def _replay(loaded: Workload, policy: Any, seed: int, until: float) -> dict[str, Any]:
    options = Options(seed=seed, round_seconds=ROUND_SECONDS, timeline=False, until=until)
    processor, wall = time.process_time(), time.perf_counter()
    result = simulate(loaded, clusters.preset("philly-1024"), policy, options)
    return {
        **result.figures(),
        "processor_seconds": time.process_time() - processor,
        "wall_seconds": time.perf_counter() - wall,
    }


if __name__ == "__main__":
    sys.exit(main())
