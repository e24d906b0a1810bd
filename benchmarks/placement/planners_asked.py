"""What a planner answers to a problem, in processor time, and the row that many answers make."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import numpy as np

from elastic_core.errors import UserError
from elastic_core.placement import planner_names, problem_families
from elastic_core.placement.placement_problem import PlacementProblem
from elastic_core.placement.planners.planner import Planned, Planner

COLUMNS = ("layers x types", "planner", "found", "median / optimum", "worst", "median CPU s", "worst CPU s")


@dataclass(frozen=True, slots=True)
class Answer:
    planned: Planned | None  # None: refused, or nothing found
    seconds: float


def asked(planner: str | Planner, problem: PlacementProblem, seed: int) -> Answer:
    one = planner_names.get(planner) if isinstance(planner, str) else planner
    started = time.process_time()
    try:
        planned = one.plan(problem, seed)
    except UserError:
        planned = None
    return Answer(planned, time.process_time() - started)


def problems(layers: int, types: int, seeds: int, first: int = 0) -> list[PlacementProblem]:
    """Of both families in turn, of as many seeds from the first on."""
    families = (problem_families.ctr, problem_families.mixed)
    every = range(first, first + seeds)
    return [families[seed % 2](np.random.default_rng([seed, layers, types]), layers, types) for seed in every]


def ratios(answers: list[Answer], best: list[Answer]) -> list[float]:
    """Cost over that of `best`, of those that found a placement."""
    return [
        one.planned.placement.cost / other.planned.placement.cost
        for one, other in zip(answers, best, strict=True)
        if one.planned and other.planned
    ]


def row(where: str, name: str, answers: list[Answer], best: list[Answer]) -> tuple[object, ...]:
    """By `COLUMNS`."""
    of = ratios(answers, best)
    seconds = [answer.seconds for answer in answers]
    found = f"{len(of)} of {len(answers)}"
    costs = (f"{statistics.median(of):.3f}", f"{max(of):.3f}") if of else ("-", "-")
    return where, name, found, *costs, statistics.median(seconds), max(seconds)
