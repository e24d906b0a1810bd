"""Horizon against every rival on Sia's and Pollux's ground: mean completion time on published workloads.

    ELASTIC_DATA=... .venv/bin/python -m benchmarks.scheduling [--quick] [--setting NAME ...] [--sample in|out]
                                                               [--group NAME] [--pool NAME] [--policy NAME ...]
                                                               [--kept]

Workloads: Sia's four Philly traces (160 jobs each) and its two longer ones (`newtrace`, 960 jobs each) on 64
accelerators of three types and on 64 T4. Constants were chosen on the first and the third Philly trace: these are *in
sample*, all others *out of sample*, and they never share a table. Step times, gradient statistics and restart times
are the measured ones; policies see measurements with 5 % noise. Round-based rivals decide in their own rounds, the
others at every event, as in production. `gavel` has the objective and the knowledge of Sia's comparison (`max_sum`,
true rates).

Settings: *declared* and *undeclared* work; *equal information*, where each job is a task of its own and undeclared,
starts from its speed on one slot of each type and at most doubles what was measured, as Sia's do; and *no clones*,
where each job's step times, gradient noise and work are drawn around its model's (log-normal, sigma 0.4), declared and
undeclared. In each, `sia` is given the same jobs.

Beside every figure stands the limit: the mean completion time if each job had the whole pool to itself from its
arrival, at the best option that the measured step times allow, one restart included.

Bars, over `sia`'s on the same workloads: see `SETTINGS`; and as they were defined before, over the four Philly traces.
Who feels the tail more than the mean chooses the policy `horizon_tail`: with declared work its p99 and makespan are
held to `sia`'s too, beside `horizon`'s own.

A run is kept (`benchmarks.common.kept_runs`) and not made again while neither its workload nor the code that made it
changes: the benchmark may be stopped, and made in parts by `--setting`, `--sample`, `--group`, `--pool` and `--policy`;
`--kept` makes the tables whose runs are all kept, and says which it leaves out.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from benchmarks.common import kept_runs
from benchmarks.common.report import Report
from elastic_core.domain import Node
from elastic_core.errors import UserError
from elastic_core.policy import registry
from elastic_core.policy.base.policy import Policy
from elastic_core.policy.gavel.gavel import Gavel
from elastic_core.policy.sia.sia import Sia
from elastic_core.sim.engine.engine import Options, simulate
from elastic_core.sim.ground_truth.oracle import TrueOptimus, TrueSpeeds
from elastic_core.sim.ground_truth.physics import Physics, gain, split
from elastic_core.sim.ground_truth.workload import SimJob, Workload
from elastic_core.sim.traces import published_traces
from elastic_core.sim.workloads.variations import no_clones, own_tasks, with_one_slot_speeds

POOLS: dict[str, tuple[Node, ...]] = {
    "heterogeneous": published_traces.SIA_HETEROGENEOUS,
    "64 T4": published_traces.SIXTEEN_T4_NODES,
}
TAIL = "horizon_tail"
ROUNDS = {"sia": 60.0, "gavel": 360.0, "tiresias": 60.0, "optimus": 60.0, "pollux": 60.0}
RIVALS = ("sia", "gavel", "tiresias", "optimus", "srtf", "elastic_batch", "fair_share", "bftrainer", "ones")
SAMPLES = {
    "in": {"philly": ["philly/workload-1", "philly/workload-3"]},
    "out": {
        "philly": ["philly/workload-2", "philly/workload-4"],
        "newtrace": ["newtrace/workload-1", "newtrace/workload-2"],
    },
}
FIGURES = ("mean_completion", "p99_completion", "makespan", "resizes_per_job", "slot_hours_per_job")
SIGMA = 0.4  # of the logarithm: how far jobs of one model are from being clones
Alter = Callable[[Workload, Sequence[Node]], Workload]
Runs = list[dict[str, Any]]  # the figures of each workload


@dataclass(frozen=True)
class Setting:
    """What is known of the jobs, and the most that `horizon`'s figures may be over `sia`'s."""

    name: str
    alter: Alter
    declared: bool
    mean: float
    worst: float | None = None  # of one trace's mean
    p99: float | None = None
    makespan: float | None = None


def _as_published(workload: Workload, pool: Sequence[Node]) -> Workload:  # noqa: ARG001
    return workload


def _own_tasks(workload: Workload, pool: Sequence[Node]) -> Workload:
    return with_one_slot_speeds(own_tasks(workload), pool)


def _no_clones(workload: Workload, pool: Sequence[Node]) -> Workload:  # noqa: ARG001
    return no_clones(workload, SIGMA, seed=0)


EQUAL = "equal information"
SETTINGS = (
    Setting("declared", _as_published, declared=True, mean=0.75, p99=1.0, makespan=1.0),
    Setting("undeclared", _as_published, declared=False, mean=0.85, worst=0.95, p99=1.05),
    Setting(EQUAL, _own_tasks, declared=False, mean=0.92),
    Setting("no clones, declared", _no_clones, declared=True, mean=0.85),
    Setting("no clones, undeclared", _no_clones, declared=False, mean=0.90),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the first Philly trace on both pools, beside sia only")
    parser.add_argument("--setting", action="append", choices=[s.name for s in SETTINGS], help="(default: all)")
    parser.add_argument("--sample", choices=SAMPLES, help="traces that constants were chosen on, or the others")
    parser.add_argument("--group", choices=SAMPLES["out"], help="traces of this kind (default: all)")
    parser.add_argument("--policy", action="append", help="a rival; may be given several times (default: all)")
    parser.add_argument("--pool", choices=POOLS, help="one pool (default: both)")
    parser.add_argument("--kept", action="store_true", help="no new runs: only tables whose runs are all kept")
    chosen = parser.parse_args()
    rivals = ("sia",) if chosen.quick else tuple(chosen.policy or RIVALS)
    report = Report("scheduling", quick=chosen.quick)
    for pool in POOLS if chosen.pool is None else (chosen.pool,):
        philly: dict[str, dict[str, dict[str, Runs]]] = {}
        for sample, groups in SAMPLES.items():
            if chosen.sample in (None, sample) and not (chosen.quick and sample == "out"):
                for group, names in groups.items():
                    if chosen.group not in (None, group):
                        continue
                    few, title = names[:1] if chosen.quick else names, f"{sample}-of-sample {group}"
                    settings = [one for one in SETTINGS if one.name in (chosen.setting or [one.name])]
                    runs = tables(report, pool, title, few, settings, rivals, only_kept=chosen.kept)
                    gaps_to_oracle(report, f"{title} on {pool}", runs)
                    for name in runs if group == "philly" else ():
                        philly.setdefault(name, {})[sample] = runs[name]
        if "sia" in rivals:
            hold_to_old_bars(report, pool, philly)
    return report.finish()


def tables(
    report: Report, pool: str, group: str, names: Sequence[str], settings: Sequence[Setting], rivals: Sequence[str], *,
    only_kept: bool,
) -> dict[str, dict[str, Runs]]:  # fmt: skip
    """By setting."""
    made = {}
    for setting in settings:
        try:
            made[setting.name] = one_table(report, pool, group, names, setting, rivals, only_kept=only_kept)
        except NotKeptError as missing:
            print(f"left out: {setting.name}, {group} on {pool}: {missing}", file=sys.stderr)
    return made


def one_table(
    report: Report, pool: str, group: str, names: Sequence[str], setting: Setting, rivals: Sequence[str], *,
    only_kept: bool,
) -> dict[str, Runs]:  # fmt: skip
    """The figures of each policy. Rivals that take no part in the changes of a setting run in the first only.

    Raises `NotKeptError` before the report has anything of it.
    """
    data, nodes = published_traces.data_folder(), POOLS[pool]
    published = [published_traces.sia_workload(data, _path(data, name)) for name in names]
    loaded = [setting.alter(workload, nodes) for workload in published]
    limits = [statistics.fmean(alone(job, nodes) for job in workload.jobs) for workload in loaded]
    others = rivals if setting is SETTINGS[0] else [rival for rival in rivals if rival == "sia"]
    names_of_policies = ("horizon", *((TAIL,) if setting is SETTINGS[0] else ()), *others)
    runs = {
        name: [run(workload, pool, name, setting, only_kept=only_kept) for workload in loaded]
        for name in names_of_policies
    }
    title = f"{setting.name}, {group} on {pool}"
    report.figure(title, {"workloads": list(names), "limit_seconds": limits, **runs})
    rows: list[Sequence[Any]] = [("limit", statistics.fmean(limits) / 3600, "", "", "", "", "")]
    for label, of_policy in runs.items():
        means = [figures["mean_completion"] / 3600 for figures in of_policy]
        rest = [statistics.fmean(figures[name] for figures in of_policy) for name in FIGURES[1:]]
        spread = statistics.stdev(means) if len(means) > 1 else 0.0
        rows.append((label, statistics.fmean(means), spread, rest[0] / 3600, rest[1] / 3600, rest[2], rest[3]))
    columns = ("", "mean h", "+-", "p99 h", "makespan h", "resizes a job", "slot h a job")
    report.table(f"{title}: {', '.join(names)}", columns, rows)
    if "sia" in runs:
        hold_to_bars(report, title, setting, runs)
    return runs


def _path(data: Path, name: str) -> Path:
    return data / "sia-sosp23" / "workloads" / f"{name}.csv"


def _ratio(ours: Runs, theirs: Runs, figure: str) -> float:
    return statistics.fmean(figures[figure] for figures in ours) / statistics.fmean(
        figures[figure] for figures in theirs
    )


def _bar(report: Report, what: str, most: float, got: float) -> None:
    report.bar(f"{what} over sia's", want=f"<= {most}", got=round(got, 3), ok=got <= most)


def hold_to_bars(report: Report, title: str, setting: Setting, runs: Mapping[str, Runs]) -> None:
    ours, theirs = runs["horizon"], runs["sia"]
    _bar(report, f"{title}: mean completion", setting.mean, _ratio(ours, theirs, "mean_completion"))
    if setting.worst is not None:
        worst = max(_ratio([figures], [other], "mean_completion") for figures, other in zip(ours, theirs, strict=True))
        _bar(report, f"{title}: mean completion of the worst trace", setting.worst, worst)
    for figure, most in (("p99_completion", setting.p99), ("makespan", setting.makespan)):
        if most is not None:
            _bar(report, f"{title}: {figure}", most, _ratio(ours, theirs, figure))
            if TAIL in runs:
                _bar(report, f"{title}: {figure} of {TAIL}", most, _ratio(runs[TAIL], theirs, figure))


def gaps_to_oracle(report: Report, title: str, runs: Mapping[str, Mapping[str, Runs]]) -> None:
    """What not knowing the work costs: `horizon` without declarations over `horizon` with them, on the same jobs."""
    pairs = (("undeclared", "declared"), ("no clones, undeclared", "no clones, declared"))
    rows = [
        (unknown, *(_ratio(runs[unknown]["horizon"], runs[known]["horizon"], figure) for figure in FIGURES[:4]))
        for unknown, known in pairs
        if unknown in runs and known in runs
    ]
    if rows:
        columns = ("", "mean", "p99", "makespan", "resizes a job")
        report.table(f"Over an oracle that knows the work, {title}", columns, rows)


def hold_to_old_bars(report: Report, pool: str, philly: Mapping[str, Mapping[str, Mapping[str, Runs]]]) -> None:
    """As they were before in-sample and out-of-sample were told apart: over all four Philly traces together."""
    old = (
        ("declared", "mean_completion", 0.75 if pool == "heterogeneous" else 0.80),
        ("undeclared", "mean_completion", 0.90),
        ("declared", "p99_completion", 1.0),
        ("declared", "makespan", 1.0),
        ("declared", "resizes_per_job", 1.0),
    )
    for setting, figure, most in old:
        samples = philly.get(setting, {})
        if len(samples) == len(SAMPLES):
            ours, theirs = (
                [figures for runs in samples.values() for figures in runs[name]] for name in ("horizon", "sia")
            )
            _bar(report, f"old bar, {setting}, four Philly traces on {pool}: {figure}", most,
                 _ratio(ours, theirs, figure))  # fmt: skip


class NotKeptError(Exception):
    """A run that was not made yet, by this code."""


def run(workload: Workload, pool: str, name: str, setting: Setting, *, only_kept: bool = False) -> dict[str, Any]:
    """The figures of one run, kept from one start of this benchmark to the next."""
    options = Options(declared_work=setting.declared, round_seconds=ROUNDS.get(name), timeline=False)
    policy = _policy(name, workload, setting)
    label = f"{name}, {workload.name}, {setting.name}, {pool}"

    def answer() -> dict[str, Any]:
        if only_kept:
            raise NotKeptError(label)
        started = time.process_time()
        result = simulate(workload, POOLS[pool], policy, options)
        if not result.complete:
            raise UserError(f"{name} on {workload.name} did not end")
        print(f"{label}: {time.process_time() - started:.0f} s", file=sys.stderr, flush=True)
        figures = result.figures()
        return {figure: figures[figure] for figure in FIGURES}

    question = {
        "policy": name, "setting": setting.name, "pool": [str(node) for node in POOLS[pool]], "options": str(options),
        "workload": [_told(job, POOLS[pool]) for job in workload.jobs],
    }  # fmt: skip
    return kept_runs.kept("scheduling", label, question, [simulate.__module__, type(policy).__module__], answer)


def _told(job: SimJob, pool: Sequence[Node]) -> str:
    """All that a run depends on of a job."""
    physics = job.physics
    speeds = [physics.seconds(kind, (1,), physics.max_local(kind, (1,)), 1) for kind in {node.type: 0 for node in pool}]
    of_model = physics.base_batch, physics.rescale_seconds, list(physics.epoch_ends), speeds
    return f"{replace(job, physics=None)} {of_model} {physics.gradient(physics.base_batch, 0)}"  # type: ignore[arg-type]


def _policy(name: str, workload: Workload, setting: Setting) -> Policy:
    if name == "gavel":
        return Gavel("max_sum", TrueOptimus(workload))
    if name == "sia" and setting.name == EQUAL:
        return Sia(TrueSpeeds(workload))
    return registry.get(name)


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
