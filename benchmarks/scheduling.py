"""Horizon against every rival on Sia's and Pollux's ground: mean completion time on published workloads.

    ELASTIC_DATA=... .venv/bin/python -m benchmarks.scheduling [--quick] [--policy NAME ...] [--group philly]

Workloads: Sia's four Philly traces (160 jobs each) on 64 accelerators of three types and on 64 T4, and, but for
`--quick`, its two longer ones (960 jobs). Step times, gradient statistics and restart times are the measured ones;
policies see measurements with 5 % noise. Round-based rivals decide in their own rounds, the others at every event, as
in production. `horizon` runs with declared work and without.

Beside every figure stands the limit: the mean completion time if each job had the whole pool to itself from its
arrival, at the best option that the measured step times allow, one restart included.

Bars, over `sia`'s: mean completion at most 0.75 (heterogeneous) or 0.80, 0.90 with work undeclared; p99, makespan and
resizes a job at most 1.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.common.report import Report
from elastic_core.domain import Node
from elastic_core.errors import UserError
from elastic_core.policy import registry
from elastic_core.sim.engine.engine import Options, simulate
from elastic_core.sim.ground_truth.physics import Physics, gain, split
from elastic_core.sim.ground_truth.workload import SimJob, Workload
from elastic_core.sim.traces import published_traces

POOLS: dict[str, tuple[Node, ...]] = {
    "heterogeneous": published_traces.SIA_HETEROGENEOUS,
    "64 T4": published_traces.SIXTEEN_T4_NODES,
}
ROUNDS = {"sia": 60.0, "gavel": 360.0, "tiresias": 60.0, "optimus": 60.0, "pollux": 60.0}
RIVALS = ("sia", "gavel", "tiresias", "optimus", "srtf", "elastic_batch", "fair_share")
PHILLY = [f"philly/workload-{i}" for i in (1, 2, 3, 4)]
LONG = [f"newtrace/workload-{i}" for i in (1, 2)]
FIGURES = ("mean_completion", "p99_completion", "makespan", "resizes_per_job", "slot_hours_per_job")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the first Philly trace on both pools, horizon and sia")
    parser.add_argument("--policy", action="append", help="a rival; may be given several times (default: all)")
    parser.add_argument("--group", choices=("philly", "newtrace"), help="one group of workloads (default: both)")
    parser.add_argument("--pool", choices=POOLS, help="one pool (default: both)")
    chosen = parser.parse_args()
    data = published_traces.data_folder()
    rivals = ("sia",) if chosen.quick else tuple(chosen.policy or RIVALS)
    groups = {"philly": PHILLY[:1]} if chosen.quick else {"philly": PHILLY, "newtrace": LONG}
    groups = {name: group for name, group in groups.items() if chosen.group in (None, name)}
    report = Report("scheduling", quick=chosen.quick)
    for pool in POOLS if chosen.pool is None else (chosen.pool,):
        for group, names in groups.items():
            one_group(report, data, pool, group, names, rivals)
    return report.finish()


def one_group(
    report: Report, data: Path, pool: str, group: str, names: Sequence[str], rivals: Sequence[str]
) -> None:  # fmt: skip
    loaded = [published_traces.sia_workload(data, data / "sia-sosp23" / "workloads" / f"{name}.csv") for name in names]
    limits = [statistics.fmean(alone(job, POOLS[pool]) for job in one.jobs) for one in loaded]
    found = {
        label: [run(one, pool, policy, declared=declared) for one in loaded]
        for label, policy, declared in [
            ("horizon", "horizon", True),
            ("horizon, undeclared", "horizon", False),
            *((rival, rival, True) for rival in rivals),
        ]
    }
    report.figure(f"{pool}/{group}", {"limit_seconds": limits, **found})
    rows: list[Sequence[Any]] = [("limit", statistics.fmean(limits) / 3600, "", "", "", "", "")]
    for label, runs in found.items():
        means = [one["mean_completion"] / 3600 for one in runs]
        rest = [statistics.fmean(one[name] for one in runs) for name in FIGURES[1:]]
        spread = statistics.stdev(means) if len(means) > 1 else 0.0
        rows.append((label, statistics.fmean(means), spread, rest[0] / 3600, rest[1] / 3600, rest[2], rest[3]))
    columns = ("", "mean h", "+-", "p99 h", "makespan h", "resizes a job", "slot h a job")
    report.table(f"{group} on {pool}: {', '.join(names)}", columns, rows)
    if group == "philly" and "sia" in found:
        hold_to_bars(report, pool, found)


def hold_to_bars(report: Report, pool: str, found: dict[str, list[dict[str, Any]]]) -> None:
    def ratio(label: str, figure: str) -> float:
        ours, theirs = (statistics.fmean(one[figure] for one in found[name]) for name in (label, "sia"))
        return ours / theirs

    most = 0.75 if pool == "heterogeneous" else 0.80
    for label, figure, want in (
        ("horizon", "mean_completion", most),
        ("horizon, undeclared", "mean_completion", 0.90),
        ("horizon", "p99_completion", 1.0),
        ("horizon", "makespan", 1.0),
        ("horizon", "resizes_per_job", 1.0),
    ):
        got = ratio(label, figure)
        report.bar(f"{pool}: {figure} of {label} over sia's", want=f"<= {want}", got=round(got, 3), ok=got <= want)


def run(workload: Workload, pool: str, policy: str, *, declared: bool) -> dict[str, Any]:
    options = Options(declared_work=declared, round_seconds=ROUNDS.get(policy), timeline=False)
    result = simulate(workload, POOLS[pool], registry.get(policy), options)
    if not result.complete:
        raise UserError(f"{policy} on {workload.name} did not end")
    return result.figures()


def alone(job: SimJob, pool: Sequence[Node]) -> float:
    """Seconds of a job with the pool to itself: its best type, count and batch, never changed."""
    sizes = {node.type: node.num_slots for node in pool}
    totals = {kind: sum(node.num_slots for node in pool if node.type == kind) for kind in sizes}
    return fastest(
        job.physics,
        job.limits.slot_counts,
        tuple(sorted((k, sizes[k], totals[k]) for k in sizes)),
        job.limits.max_batch,
    )


@lru_cache(maxsize=256)
def fastest(
    physics: Physics, counts: tuple[int, ...], pool: tuple[tuple[str, int, int], ...], max_batch: int
) -> float:  # fmt: skip
    best = float("inf")
    for kind, size, total in pool:
        for slots in counts:
            if slots > total or (slots > size and slots % size):
                continue
            nodes = (size,) * (slots // size) + ((slots % size,) if slots % size else ())
            batch = max(physics.base_batch, slots)
            while batch <= max_batch:
                best = min(best, _seconds(physics, kind, nodes, slots, batch, max_batch))
                batch *= 2
    return physics.rescale_seconds + best


def _seconds(physics: Physics, kind: str, nodes: tuple[int, ...], slots: int, batch: int, max_batch: int) -> float:
    parts = split(batch, slots, physics.max_local(kind, nodes), max_batch)
    step = physics.seconds(kind, nodes, parts.local, parts.accumulation)[0]
    seconds, done = 0.0, 0.0
    for epoch, end in enumerate(physics.epoch_ends):
        seconds += (end - done) / (physics.base_batch * gain(physics, parts.batch, epoch) / step)
        done = end
    return seconds


if __name__ == "__main__":
    sys.exit(main())
