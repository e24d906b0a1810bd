"""How far the predictors are off, on what was measured by others: step times, work of jobs, loss curves.

Needs `ELASTIC_DATA`. Step times (Pollux's and Sia's traces): fitted on one configuration each of 1, 2 and 4 slots of
one node, with 5 % noise, what a job would see first; judged on all other placements and batches, most of them over
several nodes that the fit has never seen. Then other types: from these three points alone, with what five other models
teach about the types. Work: Philly's jobs in order of submission, a virtual cluster taken for a task. Loss curves: the
validation metrics of the traces, by epoch, seen to a part of the run; Optimus's curve beside the set.

Bars: median error of step times at most 0.27 over the models, 80 % of them within two deviations, a fit within 5 ms;
on a type never seen at most 0.8 of the error without experience; 80 % intervals of work that hold 75 to 92 %; loss
curves no further off than Optimus's.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np

from benchmarks.common.report import Report, spread
from elastic_core.domain import Limits, ProfilePoint, ThroughputModel
from elastic_core.errors import UserError
from elastic_core.predict.speed import throughput
from elastic_core.predict.speed.experience import learn
from elastic_core.predict.speed.throughput import StepTime
from elastic_core.predict.work import convergence
from elastic_core.predict.work.work_left_predictor import prior
from elastic_core.sim.traces.measured import EPOCHS
from elastic_core.sim.traces.published_traces import SIA_SUFFIX, data_folder
from elastic_core.sim.traces.trace_files import read_table

LIMITS = Limits(slot_counts=tuple(range(1, 65)), types=(), min_batch=1, max_batch=10**6)
SETS = {"t4 (Pollux)": ("pollux-osdi21", "t4", "")} | {
    f"{kind} (Sia)": ("sia-sosp23", kind, suffix) for kind, suffix in SIA_SUFFIX.items()
}
NOISE = 0.05
Points = Sequence[ProfilePoint]


def measured(path: Path, kind: str) -> list[ProfilePoint]:
    rows = read_table(path, {"placement": str, "local_bsz": int, "step_time": float, "sync_time": float})
    return [_point(row["placement"], row["local_bsz"], row["step_time"], row["sync_time"], kind) for row in rows]


def _point(placement: str, local: int, step: float, sync: float, kind: str) -> ProfilePoint:
    slots = sum(map(int, placement))
    return ProfilePoint(
        num_slots=slots, num_nodes=len(placement), type=kind, global_batch=local * slots, local_batch=local,
        accumulation=1, step_seconds=step, sync_seconds=sync, count=8,
    )  # fmt: skip


def noisy(point: ProfilePoint, rng: Random) -> ProfilePoint:
    factor = rng.lognormvariate(0.0, NOISE)
    return replace(point, step_seconds=point.step_seconds * factor, sync_seconds=point.sync_seconds * factor)


def first_seen(points: Points, rng: Random) -> tuple[ProfilePoint, ...]:
    inside = [[p for p in points if p.num_slots == n and p.num_nodes == 1] for n in (1, 2, 4)]
    return tuple(noisy(rng.choice(points), rng) for points in inside if points)


def errors(model: ThroughputModel, points: Points) -> np.ndarray:
    slots, nodes, batch = np.asarray([(p.num_slots, p.num_nodes, p.global_batch) for p in points]).T
    said = StepTime.of(model, LIMITS).seconds(slots, nodes, points[0].type, batch, LIMITS)
    return np.abs(said / np.asarray([p.step_seconds for p in points]) - 1.0)


def covered(model: ThroughputModel, points: Points) -> list[bool]:
    times = StepTime.of(model, LIMITS)
    off = np.log1p(errors(model, points))
    sure = [times.relative_error(p.num_slots, p.num_nodes, p.type, p.global_batch, LIMITS) for p in points]
    return [bool(error < 2 * one) for error, one in zip(off, sure, strict=True)]


def step_times(report: Report, data: Path, draws: int) -> None:
    rows, seconds, inside, medians, tails = [], [], [], [], []
    for title, (source, kind, suffix) in SETS.items():
        for name in EPOCHS:
            points = measured(data / source / "traces" / name / f"placements{suffix}.csv", kind)
            all_errors = []
            for seed in range(draws):
                rng = Random(f"{name}/{seed}")
                seen = first_seen(points, rng)
                started = time.process_time()  # of this core: others may share the machine
                model = throughput.fit(seen, LIMITS)
                seconds.append(time.process_time() - started)
                all_errors.append(errors(model, points))
                inside += covered(model, rng.sample(points, 10))
            every = np.concatenate(all_errors)
            medians.append(float(np.median(every)))
            tails.append(float(np.quantile(every, 0.9)))
            rows.append([title, name, medians[-1], tails[-1]])
    report.table("step time, relative error, from 1, 2 and 4 slots", ["type", "model", "median", "p90"], rows)
    report.figure("step_time_errors", rows)
    report.figure("fit_seconds", seconds)
    fit_ms = 1e3 * spread(seconds)["median"]
    report.bar(
        "one fit of a step-time model, median of its CPU time", want="<= 5 ms", got=f"{fit_ms:.2f} ms", ok=fit_ms <= 5
    )
    report.bar(
        "step time: mean over models of the median error", want="<= 0.27", got=f"{np.mean(medians):.3f}",
        ok=np.mean(medians) <= 0.27,
    )  # fmt: skip
    report.bar(
        "step time: within two deviations", want=">= 0.80", got=f"{np.mean(inside):.2f}", ok=np.mean(inside) >= 0.80
    )
    report.figure("step_time_p90_mean", float(np.mean(tails)))


def other_types(report: Report, data: Path, draws: int) -> None:
    folder = data / "sia-sosp23" / "traces"
    known = {
        (n, k): measured(folder / n / f"placements{suffix}.csv", k) for n in EPOCHS for k, suffix in SIA_SUFFIX.items()
    }
    errors_by_experience: dict[bool, list[float]] = {False: [], True: []}
    for seed in range(draws):
        rng = Random(seed)
        models = {}
        for name in EPOCHS:
            seen = tuple(noisy(p, rng) for kind in SIA_SUFFIX for p in rng.sample(known[name, kind], 4))
            models[name] = StepTime.of(throughput.fit(seen, LIMITS), LIMITS)
        for name in EPOCHS:
            taught = learn([model for other, model in models.items() if other != name])
            for kind in SIA_SUFFIX:
                seen = first_seen(known[name, kind], rng)
                for knows in errors_by_experience:
                    model = throughput.fit(seen, LIMITS, taught) if knows else throughput.fit(seen, LIMITS)
                    others = [np.median(errors(model, known[name, k])) for k in SIA_SUFFIX if k != kind]
                    errors_by_experience[knows].append(float(np.mean(others)))
    blind, taught_error = np.mean(errors_by_experience[False]), np.mean(errors_by_experience[True])
    report.figure(
        "other_types_errors", {"without": errors_by_experience[False], "with_experience": errors_by_experience[True]}
    )
    report.bar(
        f"a type never seen: median error with experience of other jobs ({blind:.2f} without)",
        want=f"<= 0.8 x {blind:.2f}", got=f"{taught_error:.2f}", ok=taught_error <= 0.8 * blind,
    )  # fmt: skip


def work(report: Report, data: Path, count: int) -> None:
    columns = {"timestamp": str, "gpu_time": float, "cluster": str}
    jobs = [row for row in read_table(data / "philly-derived" / "philly.csv", columns) if row["gpu_time"] > 0]
    jobs = sorted(jobs, key=lambda row: row["timestamp"])[20000 : 20000 + count]
    own: dict[str, list[float]] = defaultdict(list)
    every: list[float] = []
    tasks: list[str] = []  # of each of them
    rows, at = [], {0.0: [], 0.25: [], 0.5: []}  # type: ignore[var-annotated]
    for row in jobs:
        task, true = row["cluster"], row["gpu_time"]
        if len(every) > 10:
            known = prior(tuple(own[task][-64:]), tuple(every[-64:]), tasks=tuple(tasks[-64:]))
            for share, forecasts in at.items():
                said = known.estimate(share * true)
                off_by = abs(np.log(said.median / true))
                forecasts.append((said.low <= true <= said.high, off_by, said.mean_remaining, (1.0 - share) * true))
        own[task].append(true)
        every.append(true)
        tasks.append(task)
    for share, forecasts in at.items():
        inside, off = np.mean([f[0] for f in forecasts]), np.mean([f[1] for f in forecasts])
        left = np.mean([f[2] for f in forecasts]) / np.mean([f[3] for f in forecasts])
        rows.append([f"{share:.0%}", float(inside), float(off), float(left)])
    columns_shown = ["done", "in the 80 % interval", "mean |log error|", "mean left, expected over true"]
    report.table(f"work of {count} Philly jobs", columns_shown, rows)
    report.figure("work", rows)
    report.bar("work: 80 % interval", want="0.75 to 0.92", got=f"{rows[0][1]:.2f}", ok=0.75 <= rows[0][1] <= 0.92)


def missing(path: Path, model: str) -> list[float]:
    """What the metric lacks by epoch: word errors, or 1 - accuracy."""
    raw = np.asarray([row["metric"] for row in read_table(path, {"metric": float})])
    scale = 100.0 if raw.max() > 1.5 else 1.0
    falling = raw / scale if model == "deepspeech2" else 1.0 - raw / scale
    return list(np.maximum(falling, 0.0))


def curves(report: Report, data: Path) -> None:
    every = []
    for name in EPOCHS:
        for path in sorted((data / "pollux-osdi21" / "traces" / name).glob("validation-*.csv")):
            points = missing(path, name)
            if len(points) >= 20:
                every.append(points)
    rows = []
    for share in (0.1, 0.25, 0.5):
        off, inside = [], []
        for curve in every:
            seen = [(float(k), loss) for k, loss in enumerate(curve, 1)][: max(4, int(len(curve) * share))]
            ours, theirs = convergence.fit(seen), convergence.optimus(seen)
            if ours is None or theirs is None:
                continue
            median, low, high = ours.loss(len(curve))
            span = float(np.ptp(curve)) or 1.0
            off.append((abs(median - curve[-1]) / span, abs(theirs.loss(len(curve)) - curve[-1]) / span))
            inside.append(low <= curve[-1] <= high)
        ours_off, optimus_off = np.mean(off, axis=0)
        rows.append([f"{share:.0%}", float(ours_off), float(optimus_off), float(np.mean(inside))])
    report.table(
        f"last metric of {len(every)} validation curves, error relative to their range",
        ["seen", "set of curves", "Optimus's curve", "in the interval"], rows,
    )  # fmt: skip
    report.figure("curves", rows)
    ours, theirs = np.mean([row[1] for row in rows]), np.mean([row[2] for row in rows])
    report.bar(
        "loss curves: mean error against Optimus's", want=f"<= {theirs:.3f}", got=f"{ours:.3f}", ok=ours <= theirs
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer draws and jobs")
    quick = parser.parse_args().quick
    report = Report("predictors", quick=quick)
    try:
        data = data_folder()
        step_times(report, data, 3 if quick else 10)
        other_types(report, data, 1 if quick else 5)
        work(report, data, 400 if quick else 3000)
        curves(report, data)
    except UserError as error:
        print(error)
        return 2
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
