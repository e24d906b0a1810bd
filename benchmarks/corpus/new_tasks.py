"""Jobs of tasks that nobody has run: what the default policy gains by forecasts of their steps from other tasks' jobs.

The real control plane in one process at a virtual clock, on an embedded PostgreSQL, with `horizon` in force; its
trainers are simulated (`tests.control.scheduling.simulated_trainers`), all else is what a platform runs. Jobs are those
of the corpus (`benchmarks/corpus`): a run's batch, parameters, data set and amount of work, which is declared, and the
step time that it measured, all of them taken 300 times as long, so that a job takes minutes. A draw holds back some of
its families: their tasks run for the first time. Step times are learnt from the runs of the other families alone, and
one job of each of these has run before; then jobs are submitted at once, half of either sort, to four CPU slots.

Each draw is run twice: with what was learnt, and without (`use_predictors` off), where a step of a task that nobody has
measured is taken for 0.05 s; in nothing else do they differ. Bar: the mean completion of all draws at most 0.9 times.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, log
from pathlib import Path
from random import Random
from statistics import mean, median

from benchmarks.common.control_server import a_database
from benchmarks.common.report import Report
from benchmarks.corpus.history import corpus_runs
from elastic_core.predict.forecasts import forecast_files
from elastic_core.predict.forecasts.step_seconds import fit_steps
from elastic_core.protocol.records import FinishedRun, JobFacts
from elastic_core.sim.ground_truth.physics import AnalyticPhysics
from elastic_core.sim.ground_truth.workload import SimJob
from elastic_core.spec import ClusterSpec, JobSpec
from tests.builders import FakeClock, a_control
from tests.control.scheduling.simulated_trainers import SimulatedCluster

DRAWS, QUICK_DRAWS = 12, 2
JOBS, QUICK_JOBS = 24, 8
NEW_FAMILIES = 4
SLOWER = 300.0
WANT = 0.9
NOISE = 0.05  # of measured steps
LEASE_SECONDS = 1e8  # longer than any job of the corpus takes between two instants
START = 1_000_000_000.0
POOL = ClusterSpec.model_validate({"nodes": [{"name": "node", "type": "cpu", "slots": 4}]})


@dataclass(frozen=True)
class Draw:
    """What runs before, and then at once; `learnt_from`: the runs of other families."""

    before: list[FinishedRun]
    at_once: list[FinishedRun]
    new: frozenset[str]  # of their entry points
    learnt_from: list[FinishedRun]

    @staticmethod
    def of(number: int, runs: Sequence[FinishedRun], jobs: int) -> Draw:
        rng = Random(f"new tasks/{number}")
        families = sorted({run.description.entry_point for run in runs})
        new = frozenset(rng.sample(families, NEW_FAMILIES))
        of_new = [run for run in runs if run.description.entry_point in new]
        of_known = [run for run in runs if run.description.entry_point not in new]
        before = [rng.choice([run for run in of_known if run.description.entry_point == family])
                  for family in families if family not in new]  # fmt: skip
        at_once = rng.sample(of_new, jobs // 2) + rng.sample(of_known, jobs - jobs // 2)
        rng.shuffle(at_once)
        return Draw(before, at_once, new, of_known)


@dataclass(frozen=True)
class Outcome:
    completion: float  # mean seconds of the jobs that came at once
    told: list[float]  # of the new tasks' jobs that started: the median finish that was told first, over the true one


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_DRAWS} draws of {QUICK_JOBS} jobs")
    quick = parser.parse_args().quick
    report = Report("new_tasks", quick=quick)
    runs = [_slower(run) for run in corpus_runs() if run.profile]
    rows, ratios, without_all, learnt_all = [], [], [], []
    for number in range(QUICK_DRAWS if quick else DRAWS):
        draw = Draw.of(number, runs, QUICK_JOBS if quick else JOBS)
        without, learnt = (run(draw, predictors=predictors) for predictors in (False, True))
        ratios.append(learnt.completion / without.completion)
        without_all.append(without)
        learnt_all.append(learnt)
        names = ", ".join(sorted(family.rpartition(":")[2] for family in draw.new))
        rows.append((names, without.completion, learnt.completion, round(ratios[-1], 3)))
        print(f"draw {number + 1}: {ratios[-1]:.3f}", flush=True)
    report.table(
        "Mean completion of the jobs that came at once, seconds", ("new tasks", "without", "learnt", "ratio"), rows
    )
    report.table(
        "The finish that a new task's first decision with slots told, off the true one by a factor",
        ("", "median"),
        [(name, _factor([told for outcome in of for told in outcome.told]))
         for name, of in (("without", without_all), ("learnt", learnt_all))],
    )  # fmt: skip
    report.figure("ratios", ratios)
    total = mean(one.completion for one in learnt_all) / mean(one.completion for one in without_all)
    report.bar(
        "mean completion, learnt over without", want=f"<= {WANT:g}", got=round(total, 3), ok=total <= WANT
    )  # fmt: skip
    return report.finish()


def run(draw: Draw, *, predictors: bool) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="elastic-") as home, a_database() as url:
        clock = FakeClock(START)
        plane = a_control(
            url,
            Path(home),
            clock,
            policy="horizon",
            use_predictors=predictors,
            tasks="benchmarks.*",
            lease_seconds=LEASE_SECONDS,
        )
        plane.set_cluster(POOL)
        if predictors:
            path = plane.settings.forecasts_file()
            path.parent.mkdir(parents=True, exist_ok=True)
            forecast_files.save(forecast_files.Forecasters(steps=fit_steps(draw.learnt_from)), path)
        facts = {f"{sort}-{number:02d}": JobFacts(dataset_samples=run.description.dataset_samples, metric="loss",
                                                  metric_mode="min", num_parameters=run.description.num_parameters)
                 for sort, some in (("before", draw.before), ("job", draw.at_once))
                 for number, run in enumerate(some)}  # fmt: skip
        cluster = SimulatedCluster(plane, clock, NOISE, seed=0, facts=facts)
        cluster.run([_job(f"before-{number:02d}", run, START) for number, run in enumerate(draw.before)])
        at = clock.now + 60.0
        cluster.run([_job(f"job-{number:02d}", run, at) for number, run in enumerate(draw.at_once)])
        names = [f"job-{number:02d}" for number in range(len(draw.at_once))]
        new = {name for name, run in zip(names, draw.at_once, strict=True) if run.description.entry_point in draw.new}
        told: dict[str, float] = {}
        for shown, plan in cluster.decisions():
            for job_id, target in plan.targets.items():
                on_slots = target.finish_seconds if target.num_slots else None
                if job_id in new and job_id not in told and on_slots is not None:
                    told[job_id] = on_slots[1] / max(cluster.ended[job_id] - shown.now, 1.0)
        plane.close()
        return Outcome(mean(cluster.ended[name] - at for name in names), list(told.values()))


def _slower(run: FinishedRun) -> FinishedRun:
    return replace(
        run, profile=tuple(replace(point, step_seconds=SLOWER * point.step_seconds) for point in run.profile)
    )  # fmt: skip


def _job(name: str, run: FinishedRun, at: float) -> tuple[SimJob, JobSpec]:
    job, (point, *_) = run.description, run.profile
    spec = JobSpec.model_validate(
        {
            "name": name, "entry_point": job.entry_point, "params": dict(job.params),
            "work": {"samples": run.work_done}, "batch": {"min": point.global_batch, "max": point.global_batch},
            "slots": {"min": 1, "max": 2, "types": ["cpu"]},
        }
    )  # fmt: skip
    physics = AnalyticPhysics(
        base_batch=point.global_batch, work=float(run.work_done), fixed_seconds=0.5 * point.step_seconds,
        per_sample_seconds=0.5 * point.step_seconds / point.global_batch, exchange_seconds=0.1 * point.step_seconds,
    )  # fmt: skip
    return (
        SimJob(job_id=name, task=spec.entry_point, submitted_at=at, physics=physics, limits=spec.limits()),
        spec,
    )


def _factor(ratios: Sequence[float]) -> float:
    return round(exp(median(abs(log(ratio)) for ratio in ratios)), 2)


if __name__ == "__main__":
    sys.exit(main())
