"""What planners of placements find and how long they take: `python -m benchmarks.placement [--quick]`.

Random models of 5 to 64 layers on 2, 4 and 16 types (`elastic_core.placement.problem_families`: recommendation models,
and layers in any order), each above a floor of 0.8 of what one type alone reaches. Cost is in parts of the optimum,
which `exact` proves. Times are processor time, so that what else the machine does is not measured. The second table
is of recommendation models alone, which HeterPS is for: the same model, at the same prices, by every planner.
The models are made up: the figures say how much choosing layers can be worth, not what it is worth on hardware.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from dataclasses import dataclass

import numpy as np

from benchmarks.common.report import Report
from elastic_core.errors import UserError
from elastic_core.placement import planner_names, problem_families
from elastic_core.placement.placement_problem import PlacementProblem
from elastic_core.placement.planners.planner import Planned

LAYERS, TYPES = (5, 10, 16, 32, 64), (2, 4, 16)
SECONDS = {(16, 4): 0.25, (32, 4): 5.0}  # of `exact`, its slowest; measured on a prototype: 0.23 and 3.1
LARGEST, LARGEST_SECONDS, LARGEST_GAP = (64, 16), 60.0, 0.01
RIVALS = ("greedy", "genetic", "bayesian", "rl_lstm", "cpu_only", "gpu_only", "first_on_cpu")
RULES = ("greedy", "cpu_only", "gpu_only", "first_on_cpu")  # no search: milliseconds
QUICK_SEARCHES = (5, 2)
MOST_CHOICES = 5_000  # that brute force is asked for
HEADLINE_LAYERS, HEADLINE_TYPES = 16, 4
COLUMNS = ("layers x types", "planner", "found", "median / optimum", "worst", "median CPU s", "worst CPU s")


@dataclass(frozen=True, slots=True)
class Answer:
    planned: Planned | None  # None: refused, or nothing found
    seconds: float


def asked(name: str, problem: PlacementProblem, seed: int) -> Answer:
    started = time.process_time()
    try:
        planned = planner_names.get(name).plan(problem, seed)
    except UserError:
        planned = None
    return Answer(planned, time.process_time() - started)


def problems(layers: int, types: int, seeds: int) -> list[PlacementProblem]:
    families = (problem_families.ctr, problem_families.mixed)
    return [families[seed % 2](np.random.default_rng([seed, layers, types]), layers, types) for seed in range(seeds)]


def size(report: Report, layers: int, types: int, seeds: int, rivals: tuple[str, ...]) -> list[tuple[object, ...]]:
    """One row a planner."""
    loaded = problems(layers, types, seeds)
    best = [asked("exact", problem, 0) for problem in loaded]
    rows = [_row(f"{layers} x {types}", "exact", best, best)]
    if types**layers <= MOST_CHOICES:
        every = [asked("brute_force", problem, 0) for problem in loaded]
        rows.append(_row(f"{layers} x {types}", "brute_force", every, best))
        worst = max(_ratios(every, best), key=lambda ratio: abs(ratio - 1.0))
        report.bar(f"{layers} x {types}: brute force beside exact", want="1.000 always", got=f"{worst:.6f}",
                   ok=abs(worst - 1.0) <= 1e-6)  # fmt: skip
    for name in rivals:
        answers = [asked(name, problem, number) for number, problem in enumerate(loaded)]
        rows.append(_row(f"{layers} x {types}", name, answers, best))
        report.figure(f"cost_over_optimum of {name} at {layers} x {types}", _ratios(answers, best))
    report.figure(f"processor_seconds of exact at {layers} x {types}", [answer.seconds for answer in best])
    _bars(report, layers, types, best)
    return rows


def _bars(report: Report, layers: int, types: int, best: list[Answer]) -> None:
    where, slowest = f"{layers} x {types}: exact", max(answer.seconds for answer in best)
    if any(answer.planned is None or answer.planned.gap is None for answer in best):
        report.bar(f"{where}, plans found", want="all", got="not all", ok=False)
        return
    gap = max(answer.planned.gap or 0.0 for answer in best if answer.planned)
    if (layers, types) in SECONDS:
        limit = SECONDS[layers, types]
        report.bar(f"{where}, slowest", want=f"<= {limit:g} s", got=f"{slowest:.3f} s", ok=slowest <= limit)
    if (layers, types) == LARGEST:
        report.bar(f"{where}, gap within {LARGEST_SECONDS:.0f} s", want=f"<= {LARGEST_GAP:.0%}",
                   got=f"{gap:.2e}, {slowest:.1f} s", ok=gap <= LARGEST_GAP and slowest <= LARGEST_SECONDS)  # fmt: skip
    else:
        report.bar(f"{where}, gap", want="proved", got=f"{gap:.1e}", ok=gap <= 1e-7)


def _ratios(answers: list[Answer], best: list[Answer]) -> list[float]:
    """Of those that found a placement."""
    return [
        one.planned.placement.cost / other.planned.placement.cost
        for one, other in zip(answers, best, strict=True)
        if one.planned and other.planned
    ]


def _row(where: str, name: str, answers: list[Answer], best: list[Answer]) -> tuple[object, ...]:
    ratios = _ratios(answers, best)
    seconds = [answer.seconds for answer in answers]
    found = f"{len(ratios)} of {len(answers)}"
    if not ratios:
        return where, name, found, "-", "-", statistics.median(seconds), max(seconds)
    return (
        where, name, found, f"{statistics.median(ratios):.3f}", f"{max(ratios):.3f}", statistics.median(seconds),
        max(seconds),
    )  # fmt: skip


def headline(report: Report, seeds: int, rivals: tuple[str, ...]) -> None:
    """Recommendation models: who meets the floor, and at what cost."""
    drawn = [np.random.default_rng([seed, HEADLINE_LAYERS]) for seed in range(seeds)]
    loaded = [problem_families.ctr(rng, HEADLINE_LAYERS, HEADLINE_TYPES) for rng in drawn]
    best = [asked("exact", problem, 0) for problem in loaded]
    where = f"{HEADLINE_LAYERS} x {HEADLINE_TYPES}"
    rows = [_row(where, name, [asked(name, problem, 0) for problem in loaded], best) for name in ("exact", *rivals)]
    report.table("recommendation models alone", COLUMNS, rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer models, searches on the smallest only")
    quick = parser.parse_args().quick
    report = Report("placement", quick=quick)
    rows = []
    for layers in LAYERS:
        for types in TYPES:
            rivals = RULES if quick and (layers, types) != QUICK_SEARCHES else RIVALS
            rows += size(report, layers, types, 2 if quick else 10, rivals)
    report.table("cost in parts of the optimum, and processor time", COLUMNS, rows)
    headline(report, 3 if quick else 20, RULES if quick else RIVALS)
    return report.finish()


if __name__ == "__main__":
    sys.exit(main())
