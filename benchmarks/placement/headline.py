"""HeterPS's headline restated: what a learnt choice is worth in cost and in throughput, on its kind of model.

HeterPS reports up to 14.5 times the throughput of training on CPUs alone, and other schedulers' cost up to 312.3 % of
its own: two largest values, of its models on its machines. Here all planners get the same recommendation models at the
same prices. **Cost** at one floor, that of the family, over `rl_lstm`'s and over the optimum; the worst scheduler of
each model is the dearest that meets the floor. **Throughput at most**: the floor is raised until the planner (a rule),
or the choice of types that it found (a search), no longer meets it; `exact`'s is the highest of all placements.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from benchmarks.common.report import Report
from benchmarks.placement.planners_asked import COLUMNS, Answer, asked, row
from elastic_core.placement import problem_families
from elastic_core.placement.placement_problem import PlacementProblem
from elastic_core.placement.planners import floor_reach
from elastic_core.placement.planners.planner import Planned
from elastic_core.placement.stage_costs import Placement, Tables

LAYERS, TYPES, MODELS = 16, 4, 12
RULES = ("greedy", "cpu_only", "gpu_only", "first_on_cpu")  # no search: milliseconds
RIVALS = (*RULES, "genetic", "bayesian")
CLOSE = 1e-3  # relative, to the highest floor that is met
RATIOS = ("planner", "meets the floor", "cost / rl_lstm, median", "largest", "throughput at most / rl_lstm, median",
          "rl_lstm's over its, largest")  # fmt: skip


def tables(report: Report, models: int, rivals: Sequence[str]) -> None:
    loaded = [problem_families.ctr(np.random.default_rng([seed, LAYERS]), LAYERS, TYPES) for seed in range(models)]
    names = ("exact", "rl_lstm", *rivals)
    found = {name: [asked(name, problem, 0) for problem in loaded] for name in names}
    where = f"{LAYERS} x {TYPES}"
    report.table(f"{models} recommendation models alone", COLUMNS,
                 [row(where, name, found[name], found["exact"]) for name in names])  # fmt: skip
    highest = {name: [_at_most(name, *pair) for pair in zip(loaded, found[name], strict=True)] for name in names}
    report.table("HeterPS's headline on these models", RATIOS, [_row(name, found, highest) for name in names])
    report.figure("throughput_at_most, samples a second", highest)
    dearest = _dearest(found, rivals)
    report.figure("cost of the worst scheduler over rl_lstm", dearest)
    report.table(
        "beside what HeterPS reports",
        ("what", "HeterPS, its largest", "here, median", "here, largest"),
        [
            ("cost of the worst scheduler that meets the floor, in parts of rl_lstm's", "312.3 %",
             f"{statistics.median(dearest):.1%}", f"{max(dearest):.1%}"),
            ("throughput at most of rl_lstm over that of CPUs alone", "14.5", *_both(highest, "cpu_only")),
        ],
    )  # fmt: skip


def _both(highest: dict[str, list[float]], name: str) -> tuple[str, str]:
    times = [ours / theirs for ours, theirs in zip(highest["rl_lstm"], highest[name], strict=True) if theirs]
    return f"{statistics.median(times):.2f}", f"{max(times):.2f}"


def _dearest(found: dict[str, list[Answer]], rivals: Sequence[str]) -> list[float]:
    """Of every model that `rl_lstm` answers: the dearest rival that meets the floor, over `rl_lstm`."""
    dearest = []
    for number, ours in enumerate(found["rl_lstm"]):
        theirs = [other.planned.placement.cost for name in rivals if (other := found[name][number]).planned]
        if ours.planned and theirs:
            dearest.append(max(theirs) / ours.planned.placement.cost)
    return dearest


def _row(name: str, found: dict[str, list[Answer]], highest: dict[str, list[float]]) -> tuple[object, ...]:
    both = [(one.planned, ours.planned) for one, ours in zip(found[name], found["rl_lstm"], strict=True)]
    costs = [one.placement.cost / ours.placement.cost for one, ours in both if one and ours]
    met = f"{sum(answer.planned is not None for answer in found[name])} of {len(found[name])}"
    least = (f"{statistics.median(costs):.3f}", f"{max(costs):.3f}") if costs else ("-", "-")
    at_most = [theirs / ours for theirs, ours in zip(highest[name], highest["rl_lstm"], strict=True) if ours]
    over = [1.0 / one for one in at_most if one]
    return name, met, *least, f"{statistics.median(at_most):.3f}", f"{max(over):.2f}" if over else "-"


def _at_most(name: str, problem: PlacementProblem, answer: Answer) -> float:
    """Samples a second; 0 where the planner finds nothing at any floor."""
    tables_ = Tables.of(problem)
    if name == "exact":
        fastest = floor_reach.fastest(floor_reach.without_floor(tables_))
        return fastest.throughput if fastest else 0.0
    if name in RULES:
        return _raised(problem, lambda tried: _placement(asked(name, tried, 0).planned))
    if answer.planned is None:
        return 0.0
    kinds = {layer: stage.type for stage in answer.planned.placement.stages for layer in stage.layers}
    choice = [kinds[layer] for layer in range(len(problem.layers))]
    return _raised(problem, lambda tried: replace(tables_, problem=tried).provision(choice))


def _placement(planned: Planned | None) -> Placement | None:
    return None if planned is None else planned.placement


def _raised(problem: PlacementProblem, found: Callable[[PlacementProblem], Placement | None]) -> float:
    """The highest throughput of what is found while the floor is raised, by halves between what is met and what not."""
    best, met, missed = 0.0, 0.0, np.inf
    floor = 0.0
    while True:
        placement = found(replace(problem, floor=floor))
        if placement is None:
            missed = floor
        else:
            best = max(best, placement.throughput)
            met = max(floor, best)
        if missed <= met * (1.0 + CLOSE) or (placement is None and floor == 0.0):
            return best
        floor = 2.0 * met if missed == np.inf else (met * missed) ** 0.5
