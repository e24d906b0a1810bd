"""Elastic batches against fixed ones, after the evaluation of Saxena et al. 2020 (arXiv 2006.13878).

Cells: {40, 400 slots} x {low, high, bursty arrivals} x {compute-bound, communication-bound, balanced, hardly scaling,
mixed} x {drop, queue: the rule for jobs that cannot all run}. Policies: `elastic_batch`, the same program at a fixed
total batch (the smallest, the largest, a random one of the user's range), and `horizon`. Workloads are generated
(`elastic_core.sim.workloads.families`), jobs come profiled as in the paper, decisions are made every `ROUND` seconds.

A cell is judged by the jobs completed within the window of arrivals, and by the mean completion time of all jobs that
were not turned away. A run is cut after `LONGEST` windows: what is not done then counts with its age, which flatters
the slow. `horizon` turns nobody away: under drop it is judged by jobs completed first.

On 40 slots some forty jobs are done in a window: one that ends a minute after it instead of before is 2.4 %, more than
the bar that is to be judged. So a cell is as many workloads, seeds apart, as make `SLOTS_JUDGED` slots together: ten of
40 slots, one of 400. Their jobs are judged together; the worst single workload is printed beside it.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from statistics import fmean

from benchmarks.common.report import Report
from elastic_core.policy import registry
from elastic_core.sim.engine.engine import Options, simulate
from elastic_core.sim.engine.result import Result
from elastic_core.sim.workloads.families import ARRIVALS, FAMILIES, MIXED, WINDOW, cell, pool

ROUND = 300.0  # seconds
LONGEST = 5  # windows
SLOTS_JUDGED = 400  # in all workloads of a cell
OURS, RIVAL = "elastic_batch", "horizon"
BASELINES = ("min_batch", "max_batch", "random_batch")
POLICIES = (OURS, *BASELINES, RIVAL)
RULES = ("drop", "queue")
WANT_JOBS, WANT_TIME = 2.0, 10.0  # times as many, times as fast, in the best cell
WANT_BEHIND, WANT_AHEAD = 0.01, 2 / 3
WANT_DECISION = {40: 0.1, 400: 0.5}  # seconds; a decision every `ROUND`


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    slots: int
    arrivals: str
    family: str
    rule: str

    def __str__(self) -> str:
        return f"{self.slots} {self.arrivals} {self.family} {self.rule}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    jobs: int
    completed: int  # within the window of arrivals
    turned_away: int
    unfinished: int  # when the run was cut
    mean_seconds: float  # of completion; nan where everybody was turned away
    decision_median: float
    wall_seconds: float

    @property
    def taken(self) -> int:
        return self.jobs - self.turned_away


Outcomes = dict[str, Outcome]  # by policy, without the rule's suffix


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="40 slots, two families")
    parser.add_argument("--slots", type=int, nargs="+", choices=(40, 400), default=(40, 400))
    parser.add_argument("--families", nargs="+", choices=(*FAMILIES, MIXED), default=(*FAMILIES, MIXED))
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    report = Report("elastic_scaling", quick=args.quick)
    sizes, families = ((40,), ("compute-bound", "hardly-scaling")) if args.quick else (args.slots, args.families)
    single = {judged_cell: run_cell(judged_cell, args.seed) for judged_cell in cells(sizes, families)}
    for judged_cell, workloads in single.items():
        report.figure(
            str(judged_cell), [{name: asdict(outcome) for name, outcome in outcomes.items()} for outcomes in workloads]
        )
    by_cell = {judged_cell: together(workloads) for judged_cell, workloads in single.items()}
    show(report, by_cell)
    judge_batches(report, by_cell)
    judge_rival(report, by_cell)
    show_single(report, single)
    judge_decisions(report, by_cell)
    return report.finish()


def cells(sizes: Sequence[int], families: Sequence[str]) -> Iterator[Cell]:
    for slots, arrivals, family, rule in product(sizes, ARRIVALS, families, RULES):
        yield Cell(slots=slots, arrivals=arrivals, family=family, rule=rule)


def run_cell(judged_cell: Cell, seed: int) -> list[Outcomes]:
    """The outcomes of each workload of the cell, the first from `seed`."""
    workloads = [
        {name: run(judged_cell, name, seed + number) for name in POLICIES}
        for number in range(SLOTS_JUDGED // judged_cell.slots)
    ]
    outcomes = together(workloads)
    figures = " ".join(f"{name} {outcome.completed}/{outcome.mean_seconds:.0f}s" for name, outcome in outcomes.items())
    print(f"{judged_cell}: {figures}", file=sys.stderr, flush=True)
    return workloads


def together(workloads: Sequence[Outcomes]) -> Outcomes:
    """As if the jobs of all workloads were those of one; decisions are as slow as in the slowest."""
    return {name: _together([outcomes[name] for outcomes in workloads]) for name in workloads[0]}


def _together(outcomes: Sequence[Outcome]) -> Outcome:
    taken = sum(outcome.taken for outcome in outcomes)
    seconds = sum(outcome.mean_seconds * outcome.taken for outcome in outcomes if outcome.taken)
    return Outcome(
        jobs=sum(outcome.jobs for outcome in outcomes),
        completed=sum(outcome.completed for outcome in outcomes),
        turned_away=sum(outcome.turned_away for outcome in outcomes),
        unfinished=sum(outcome.unfinished for outcome in outcomes),
        mean_seconds=seconds / taken if taken else float("nan"),
        decision_median=max(outcome.decision_median for outcome in outcomes),
        wall_seconds=sum(outcome.wall_seconds for outcome in outcomes),
    )


def run(judged_cell: Cell, name: str, seed: int) -> Outcome:
    workload = cell(judged_cell.slots, judged_cell.arrivals, judged_cell.family, seed)
    dropping = f"{name}_drop"
    policy = registry.get(dropping if judged_cell.rule == "drop" and dropping in registry.names() else name)
    options = Options(round_seconds=ROUND, noise=0.0, until=LONGEST * WINDOW, timeline=False)
    started = time.perf_counter()
    result = simulate(workload, pool(judged_cell.slots), policy, options)
    return Outcome(
        jobs=len(result.jobs),
        completed=result.completed_by(WINDOW),
        turned_away=sum(job.turned_away for job in result.jobs),
        unfinished=sum(job.finished_at is None and not job.turned_away for job in result.jobs),
        mean_seconds=mean_completion(result),
        decision_median=result.figures()["decision_median"],
        wall_seconds=time.perf_counter() - started,
    )


def mean_completion(result: Result) -> float:
    """Of the jobs that were not turned away; one that is not done counts with its age."""
    times = [
        (result.ended_at if job.finished_at is None else job.finished_at) - job.submitted_at
        for job in result.jobs
        if not job.turned_away
    ]
    return fmean(times) if times else float("nan")


def show(report: Report, by_cell: dict[Cell, Outcomes]) -> None:
    names = POLICIES
    columns = ["slots, arrivals, family, rule", "jobs", *names]
    rows = []
    for judged, outcomes in by_cell.items():
        cells_text = [f"{outcomes[name].completed} {outcomes[name].mean_seconds / 3600:.2f}" for name in names]
        rows.append([str(judged), outcomes[OURS].jobs, *cells_text])
    report.table("Jobs completed in the window, and mean hours to completion", columns, rows)


def judge_batches(report: Report, by_cell: dict[Cell, Outcomes]) -> None:
    """The paper's claims are of its best cells; beside them, where a fixed batch is ahead."""
    jobs, times = {}, {}
    for judged_cell, outcomes in by_cell.items():
        ours = outcomes[OURS]
        for name in BASELINES:
            other = outcomes[name]
            jobs[f"{judged_cell}, {name}"] = ours.completed / max(other.completed, 1)
            times[f"{judged_cell}, {name}"] = other.mean_seconds / ours.mean_seconds
    for name in BASELINES:
        rows = [(where, value) for where, value in jobs.items() if where.endswith(name)]
        slow = [(where, value) for where, value in times.items() if where.endswith(name)]
        report.figure(f"best_cell_against_{name}", {"jobs": max(rows, key=_second), "time": max(slow, key=_second)})
    for what, values, want in (("jobs completed", jobs, WANT_JOBS), ("mean completion time", times, WANT_TIME)):
        where, value = max(values.items(), key=_second)
        report.bar(
            f"{OURS} against a fixed batch, {what}, best cell",
            want=f">= {want:g} x",
            got=f"{value:.2f} x ({where})",
            ok=value >= want,
        )
    ahead = [(where, value) for where, value in times.items() if value < 1 and " queue, " in where]
    report.table(f"Cells that queue in which a fixed batch is faster than {OURS}", ("cell, policy", "times"), ahead)


def _second(pair: tuple[str, float]) -> float:
    return pair[1]


def judge_rival(report: Report, by_cell: dict[Cell, Outcomes]) -> None:
    leads = {
        str(judged_cell): lead(judged_cell, outcomes[RIVAL], outcomes[OURS])
        for judged_cell, outcomes in by_cell.items()
    }
    worst = min(leads, key=lambda name: leads[name][0])
    report.bar(
        f"{RIVAL} behind {OURS}, worst cell",
        want=f"<= {WANT_BEHIND:.0%}",
        got=f"{-leads[worst][0]:.1%} ({worst})",
        ok=leads[worst][0] >= -WANT_BEHIND,
    )
    ahead = sum(is_ahead for _, is_ahead in leads.values())
    report.bar(
        f"{RIVAL} ahead of {OURS}",
        want=f">= two thirds of {len(leads)} cells",
        got=ahead,
        ok=ahead >= WANT_AHEAD * len(leads),
    )


def show_single(report: Report, single: dict[Cell, list[Outcomes]]) -> None:
    """Where a cell has several workloads: how far behind the rival is in its worst, and in how many it is behind."""
    rows = []
    for judged_cell, workloads in single.items():
        leads = [lead(judged_cell, outcomes[RIVAL], outcomes[OURS])[0] for outcomes in workloads]
        if len(leads) > 1 and min(leads) < 0:
            rows.append(
                (str(judged_cell), f"{-min(leads):.1%}", f"{sum(value < 0 for value in leads)} of {len(leads)}")
            )
    report.table(f"Single workloads in which {RIVAL} is behind {OURS}", ("cell", "worst", "workloads behind"), rows)


def lead(judged_cell: Cell, theirs: Outcome, ours: Outcome) -> tuple[float, bool]:
    """(how far the first is ahead of the second, relative; whether it is). Drop: by jobs completed, then by time."""
    faster = 1.0 - theirs.mean_seconds / ours.mean_seconds
    if judged_cell.rule == "queue":
        return faster, faster > 0
    more = theirs.completed / max(ours.completed, 1) - 1.0
    return more, more > 0 or (more == 0 and faster > 0)


def judge_decisions(report: Report, by_cell: dict[Cell, Outcomes]) -> None:
    for slots in sorted({judged_cell.slots for judged_cell in by_cell}):
        slowest = max(
            outcome.decision_median for judged_cell, outcomes in by_cell.items() if judged_cell.slots == slots
            for outcome in outcomes.values()
        )  # fmt: skip
        report.bar(
            f"median decision on {slots} slots, slowest run",
            want=f"< {WANT_DECISION[slots]} s",
            got=round(slowest, 4),
            ok=slowest < WANT_DECISION[slots],
        )


if __name__ == "__main__":
    sys.exit(main())
