"""The click model under the cheapest plan of several types beside all of it on one type: what plans promise, what real
processes reach, what a sample costs. `python -m benchmarks.placement_real [--quick]`

Plans are of `examples/placement/paced-ctr.json`: prices and times as there, the accelerator is one that is not here
(`examples.paced_ctr` says what is made and what is real). Real worker processes train under the small ledger of the
tests. Throughput: what the job's own observations say of its steps, the first left out.

- Each plan for itself: predicted is what the planner says, which leaves out that a pipeline is filled and drained.
- With the throughputs that were measured, the range of the accelerator's price (the processor's stays) in which this
  plan makes a sample cheaper than the two of one type.
- On the way: a run is resized to half as many keepers of rows, and one of its processes is killed; losses beside those
  of one process that nobody disturbs, relative. Times are made a tenth as long for that.
- A table that is larger than the accelerator's memory is refused there.

Bars: predicted and measured within 20 %; more samples for the same money than on each type alone; losses to 1e-6.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.common.report import Report
from benchmarks.placement_real.task import CURVE
from elastic_core.domain import PlacedStage
from elastic_core.host.environment import ALLOCATION
from elastic_core.placement import planner_names
from elastic_core.placement.placement_problem import PlacementProblem
from elastic_core.placement.planners.planner import Planned
from elastic_core.placement.profile_files import read_profile
from examples.paced_ctr import PROFILES
from tests.train import forked
from tests.train.job import Job

PROFILE = "paced-ctr"
MIXED, RIVALS = "exact", ("cpu_only", "gpu_only")
HOUR = 3600.0
SAMPLES = 20_000
LARGE_ROWS = 20_000  # too many for the accelerator's memory
WITHIN, SAME_LOSS = 0.20, 1e-6
SECONDS, QUICK_SECONDS = 40.0, 12.0  # that each plan is run, as predicted
DISTURBED_SIZE = 0.1


@dataclass(frozen=True, slots=True)
class Measured:
    plan: Planned
    throughput: float  # samples a second
    rate: float  # money an hour

    @property
    def samples_per_unit(self) -> float:
        """Samples for one unit of money."""
        return self.throughput * HOUR / self.rate


def stages_of(plan: Planned, problem: PlacementProblem) -> tuple[PlacedStage, ...]:
    return tuple(
        PlacedStage(
            layers=(stage.layers[0], stage.layers[-1] + 1), type=problem.types[stage.type].name, num_slots=stage.units
        )
        for stage in plan.placement.stages
    )


def a_job(folder: Path, name: str, steps: int, batch: int, **params: object) -> Job:
    shutil.rmtree(folder / name, ignore_errors=True)
    (folder / name).mkdir(parents=True)
    given = {"samples": SAMPLES, "profile": PROFILE, "folder": str(folder / name), **params}
    spec = {"entry_point": "benchmarks.placement_real.task:recorded", "batch": {"min": batch, "max": batch}}
    return Job(
        folder / name, entry="", rows=SAMPLES, total=batch * steps, params=given, spec=spec, tasks="benchmarks.*"
    )  # fmt: skip


def run(job: Job, stages: Sequence[PlacedStage], batch: int, **order: object) -> list[int]:
    slots = sum(stage.num_slots for stage in stages)
    return forked.join(
        job.start(slots, batch, stages=tuple(stages), heartbeat_seconds=1.0, **order), seconds=600
    )  # fmt: skip


def done(codes: Sequence[int], job: Job) -> None:
    if any(codes):
        raise RuntimeError(f"workers ended with the exit codes {codes}:\n{job.logs()}")


def curve(job: Job) -> dict[int, float]:
    lines = (job.folder / CURVE).read_text().split("\n")
    return {int(step): float.fromhex(loss) for step, loss in (line.split() for line in lines if line)}


def measure(folder: Path, name: str, plan: Planned, problem: PlacementProblem, seconds: float) -> Measured:
    batch = int(problem.batch)
    steps = max(3, round(seconds * plan.placement.throughput / batch))
    job = a_job(folder, name, steps, batch)
    stages = stages_of(plan, problem)
    done(run(job, stages, batch), job)
    step_seconds = statistics.median(observation.step_seconds for observation in job.ledger.observations())
    rate = sum(problem.types[stage.type].price * stage.units for stage in plan.placement.stages)
    return Measured(plan, batch / step_seconds, rate)


def disturbed(folder: Path, stages: Sequence[PlacedStage], batch: int, steps: int) -> float:
    """How much losses differ from those of one process, relative, at the worst step."""
    alone = a_job(folder, "alone", steps, batch, size=0.0)
    job = a_job(folder, "disturbed", steps, batch, size=DISTURBED_SIZE)
    done(alone.run(1, batch), alone)
    done(run(job, stages, batch, segment_steps=steps // 3), job)
    first, *rest = stages
    fewer = (PlacedStage(layers=first.layers, type=first.type, num_slots=max(1, first.num_slots // 2)), *rest)
    workers = job.start(sum(stage.num_slots for stage in fewer), batch, stages=fewer)
    begun = max(curve(job))
    while max(curve(job)) < begun + 2:
        time.sleep(0.05)
    assert workers[0].pid is not None
    os.kill(workers[0].pid, signal.SIGKILL)  # a keeper of rows
    codes = forked.join(workers, seconds=60)
    assert codes[0] == -signal.SIGKILL, codes
    done(run(job, fewer, batch), job)
    wanted, found = curve(alone), curve(job)
    assert wanted.keys() == found.keys(), (sorted(wanted), sorted(found))
    return max(abs(found[step] - loss) / abs(loss) for step, loss in wanted.items())


def refusal(folder: Path, plan: Planned, problem: PlacementProblem) -> str:
    """What a job is told whose table does not fit where it is put."""
    job = a_job(folder, "refused", 4, int(problem.batch), rows=LARGE_ROWS)
    codes = run(job, stages_of(plan, problem), int(problem.batch))
    if not all(codes):
        raise RuntimeError(f"a table of {LARGE_ROWS} rows was not refused: exit codes {codes}")
    return job.error()["error"]


def price_range(by_name: Mapping[str, Measured], problem: PlacementProblem) -> tuple[float, float]:
    """The accelerator's prices, in processors', between which the mixed plan makes a sample cheapest."""
    cpu = next(index for index, kind in enumerate(problem.types) if kind.is_cpu)

    def units(name: str) -> tuple[int, int]:
        stages = by_name[name].plan.placement.stages
        return sum(s.units for s in stages if s.type == cpu), sum(s.units for s in stages if s.type != cpu)

    mixed_cpu, mixed_gpu = units(MIXED)
    mixed, on_cpu, on_gpu = (by_name[name].throughput for name in (MIXED, *RIVALS))
    # (mixed_cpu + mixed_gpu r) / mixed < cpus / on_cpu, and the same beside gpus r / on_gpu
    high = (mixed / on_cpu * units("cpu_only")[0] - mixed_cpu) / mixed_gpu
    left = mixed / on_gpu * units("gpu_only")[1] - mixed_gpu
    return (mixed_cpu / left if left > 0 else float("inf")), high


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer steps")
    arguments = parser.parse_args()
    os.environ.update(ALLOCATION)
    report = Report("placement_real", quick=arguments.quick)
    problem = read_profile(PROFILES / f"{PROFILE}.json").problem()
    plans = {name: planner_names.get(name).plan(problem) for name in (MIXED, *RIVALS)}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        seconds = QUICK_SECONDS if arguments.quick else SECONDS
        by_name = {name: measure(folder, name, plan, problem, seconds) for name, plan in plans.items()}
        worst = disturbed(folder, stages_of(plans[MIXED], problem), int(problem.batch), 9 if arguments.quick else 18)
        refused = refusal(folder, plans["gpu_only"], problem)
    rows = [_row(name, measured, problem) for name, measured in by_name.items()]
    columns = (
        "plan",
        "stages",
        "money / h",
        "predicted samples/s",
        "measured",
        "measured / predicted",
        "samples / money",
    )
    report.table(f"{problem.name}: batches of {problem.batch:g}", columns, rows)
    report.figure("plans", {row[0]: dict(zip(columns[1:], row[1:], strict=True)) for row in rows})
    low, high = price_range(by_name, problem)
    report.figure("accelerator's price in processors' prices", {"low": low, "high": high, "listed": _listed(problem)})
    report.figure("refused", refused)
    for name, measured in by_name.items():
        part = measured.throughput / measured.plan.placement.throughput
        report.bar(f"{name}: measured / predicted", want="0.8 to 1.2", got=round(part, 3), ok=abs(part - 1) <= WITHIN)
    for name in RIVALS:
        ratio = by_name[MIXED].samples_per_unit / by_name[name].samples_per_unit
        report.bar(f"samples for the same money, beside {name}", want="> 1", got=round(ratio, 2), ok=ratio > 1)
    report.bar("losses, resized and killed", want=f"<= {SAME_LOSS:g}", got=worst, ok=worst <= SAME_LOSS)
    return report.finish()


def _row(name: str, measured: Measured, problem: PlacementProblem) -> tuple[object, ...]:
    predicted = measured.plan.placement.throughput
    stages = "; ".join(map(str, stages_of(measured.plan, problem)))
    part = measured.throughput / predicted
    return name, stages, measured.rate, predicted, measured.throughput, part, measured.samples_per_unit


def _listed(problem: PlacementProblem) -> float:
    prices = {kind.is_cpu: kind.price for kind in problem.types}
    return prices[False] / prices[True]


if __name__ == "__main__":
    sys.exit(main())
