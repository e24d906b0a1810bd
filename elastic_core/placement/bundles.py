"""What a placed job could do with given slots of each type: its throughput as a function of the allocation.

A policy decides over bundles: slots of several types, with the stages that a planner puts on them. The planner is asked
for the fastest placement within each of a grid of limits of units (none, powers of two, all), and for the cheapest at a
ladder of floors on the whole pool; what uses no fewer slots of any type and is no faster than another is dropped. A
function of model and pool alone, kept for both: computed once, not once a decision. What no cell of the grid asked for
is not among them: a bundle between two powers of two may be missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product

import numpy as np

from elastic_core.domain import PlacedFigures, PlacedModel, PlacedStage, Stages
from elastic_core.domain.placed import counts_of
from elastic_core.errors import UserError
from elastic_core.placement import planner_names
from elastic_core.placement.placed_models import PoolType, problem_of
from elastic_core.placement.placement_problem import PlacementProblem
from elastic_core.placement.planners import floor_reach
from elastic_core.placement.planners.exact import Exact
from elastic_core.placement.planners.planner import NoPlacement
from elastic_core.placement.stage_costs import Placement, Stage, Tables

MOST_CELLS = 64  # of the grid of limits; where there are more, levels are left out
RUNGS = 6  # of the ladder of floors
MOST_BUNDLES = 24
CLOSE = 1e-3  # relative, to the fastest placement of a cell
LOOKS = 400  # cycle times that one question may look at
GAP = 1e-3  # relative to the optimum, at which a question on the ladder ends
HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Bundle:
    """`throughput`: samples a second as predicted; `rate`: money an hour; `gap`: how much dearer a sample is than in
    the cheapest placement of the pool that is as fast, as a part of it: None where that is not known."""

    stages: Stages
    throughput: float
    rate: float
    gap: float | None

    @property
    def figures(self) -> PlacedFigures:
        return PlacedFigures(samples_per_second=self.throughput, price_per_hour=self.rate, gap=self.gap)

    @property
    def counts(self) -> dict[str, int]:
        return counts_of(self.stages)

    @property
    def num_slots(self) -> int:
        return sum(stage.num_slots for stage in self.stages)


def bundles(
    model: PlacedModel, pool: Sequence[PoolType], allowed: Sequence[str], counts: Sequence[int], most_slots: int
) -> tuple[Bundle, ...]:
    """By number of slots. `allowed`: types that the job may use, () for any; `counts`: numbers of slots in all that it
    may have; none above `most_slots`. () where no placement reaches the floor."""
    usable = tuple(sorted(kind for kind in pool if not allowed or kind.name in allowed))
    return _bundles(model, usable, tuple(count for count in counts if count <= most_slots))


@lru_cache(maxsize=512)
def _bundles(model: PlacedModel, pool: tuple[PoolType, ...], counts: tuple[int, ...]) -> tuple[Bundle, ...]:
    whole = _tables(model, pool)
    if not counts or whole is None:
        return ()
    try:
        placements = list(_asked(model, pool, whole, counts[-1]))
    except NoPlacement:
        return ()
    admitted = set(counts)
    found = {placement.stages: placement for placement in placements if _num_slots(placement.stages) in admitted}
    kept = _thinned(_undominated(list(found.values())))
    ladder = _Ladder(whole)
    return tuple(sorted((ladder.bundle(one) for one in kept), key=lambda one: (one.num_slots, -one.throughput)))


def judged(model: PlacedModel, pool: Sequence[PoolType], stages: Stages) -> Bundle | None:
    """What these stages are predicted to do; None where they are not the model's, or the pool lacks a type of them."""
    tables = _tables(model, tuple(pool))
    if tables is None:
        return None
    index = {kind.name: number for number, kind in enumerate(tables.problem.types)}
    ends = [0, *(stage.layers[1] for stage in stages)]
    fits = all(stage.layers[0] == end for stage, end in zip(stages, ends, strict=False)) and ends[-1] == len(
        model.layers
    )
    if not fits or any(stage.type not in index for stage in stages):
        return None
    placed = [Stage(layers=tuple(range(*stage.layers)), type=index[stage.type], units=stage.num_slots)
              for stage in stages]  # fmt: skip
    return _Ladder(tables).bundle(tables.judge(placed), with_gap=False)


@lru_cache(maxsize=512)
def _tables(model: PlacedModel, pool: tuple[PoolType, ...]) -> Tables | None:
    """None where nothing of the pool is for this model."""
    try:
        return Tables.of(problem_of(model, pool))
    except UserError:
        return None


def check(model: PlacedModel, pool: Sequence[PoolType], allowed: Sequence[str], counts: Sequence[int]) -> None:
    """Raises `UserError` for what this pool can never run: a type without price, or without times, that the job names;
    a floor out of reach, with the highest throughput and what limits it; numbers of slots that reach it nowhere."""
    known = {kind.name: kind for kind in pool}
    for name in allowed:
        if name in known and name not in model.types:
            raise UserError(
                f"slots.types: {name!r} is listed, and placement_profile has no times of every layer on it; it has "
                f"them on {', '.join(model.types)}; give times or relative_speed of {name!r}, or leave it out"
            )
    usable = [kind for kind in pool if kind.name in model.types and (not allowed or kind.name in allowed)]
    free = sorted(kind.name for kind in usable if kind.price <= 0)
    if free:
        raise UserError(
            f"placement: the type {free[0]!r} has no price, and the cheapest placement is found by prices; give its "
            "nodes price_per_slot_hour above 0 in the cluster file, or leave the type out of slots.types"
        )
    tables = Tables.of(problem_of(model, usable or pool))
    rng = np.random.default_rng(0)
    cheapest = Exact(most_looks=LOOKS, gap=GAP).search(tables, rng).placement  # or `NoPlacement`: it says what limits
    if _num_slots(cheapest.stages) not in counts and not bundles(model, usable, (), counts, counts[-1]):
        every = range(1, _slots(usable) + 1)
        fewest = min((one.num_slots for one in bundles(model, usable, (), every, len(every))), default=None)
        least = "no number of slots" if fewest is None else f"{fewest} at least"
        raise UserError(
            f"slots: the job may have {counts[0]} to {counts[-1]} slots in all, and no placement of so many is known "
            f"that reaches its floor of {model.floor:g} samples a second; it needs {least}"
        )


def _slots(pool: Sequence[PoolType]) -> int:
    return sum(kind.slots for kind in pool)


def _num_slots(stages: Sequence[Stage]) -> int:
    return sum(stage.units for stage in stages)


@dataclass(frozen=True)
class _Ladder:
    """Of the whole pool: what a placement is measured by."""

    tables: Tables

    def bundle(self, placement: Placement, *, with_gap: bool = True) -> Bundle:
        types = self.tables.problem.types
        stages = tuple(
            PlacedStage(layers=(stage.layers[0], stage.layers[-1] + 1), type=types[stage.type].name,
                        num_slots=stage.units)
            for stage in placement.stages
        )  # fmt: skip
        rate = sum(stage.units * types[stage.type].price for stage in placement.stages)
        gap = self._gap(placement.throughput, rate) if with_gap else None
        return Bundle(stages, placement.throughput, rate, gap)

    def _gap(self, throughput: float, rate: float) -> float | None:
        floor = throughput * (1.0 - CLOSE)
        tables = replace(self.tables, problem=replace(self.tables.problem, floor=floor))
        try:
            found = Exact(most_looks=LOOKS, gap=GAP).search(tables, np.random.default_rng(0))
        except NoPlacement:
            return None
        assert found.bound is not None
        cost = self.tables.money(self.tables.problem.batch / throughput, rate)
        return max(0.0, cost / found.bound - 1.0)


def _asked(model: PlacedModel, pool: Sequence[PoolType], whole: Tables, most_slots: int) -> Iterator[Placement]:
    """Placements over the types of `whole`. Raises `NoPlacement` where nothing reaches the floor."""
    asked = _Learnt(whole) if model.planner == "rl_lstm" else _Optimal(whole)
    cheapest = asked.cheapest(whole.problem.floor)
    fastest = asked.fastest(whole) or cheapest
    yield from (cheapest, fastest)
    for floor in np.geomspace(cheapest.throughput, fastest.throughput * (1.0 - CLOSE), RUNGS)[1:-1]:
        with_floor = asked.cheapest(float(floor))
        yield with_floor
    for limits in _cells([min(kind.slots, most_slots) for kind in _usable(pool, whole.problem)]):
        names = {kind.name: limit for kind, limit in zip(whole.problem.types, limits, strict=True)}
        cell = Tables.of(problem_of(model, pool, names))
        placement = asked.fastest(cell)
        if placement is not None and placement.throughput >= whole.problem.floor:
            yield _renumbered(placement, cell.problem, whole)


def _usable(pool: Sequence[PoolType], problem: PlacementProblem) -> list[PoolType]:
    by_name = {kind.name: kind for kind in pool}
    return [by_name[kind.name] for kind in problem.types]


class _Optimal:
    """`exact`, on the pool and on every cell."""

    def __init__(self, whole: Tables) -> None:
        self._whole = whole

    def cheapest(self, floor: float) -> Placement:
        tables = replace(self._whole, problem=replace(self._whole.problem, floor=floor))
        return Exact(most_looks=LOOKS, gap=GAP).search(tables, np.random.default_rng(0)).placement

    def fastest(self, cell: Tables) -> Placement | None:
        return floor_reach.fastest(floor_reach.without_floor(cell), close=CLOSE)


class _Learnt:
    """The choice of types that `rl_lstm` finds on the pool, and every single type; their units are the best ones."""

    def __init__(self, whole: Tables) -> None:
        self._whole = whole
        rng = np.random.default_rng(0)
        stages = planner_names.get("rl_lstm").search(whole, rng).placement.stages
        choice = {layer: stage.type for stage in stages for layer in stage.layers}
        types = whole.problem.types
        self._choices = [
            [types[choice[layer]].name for layer in range(len(whole.problem.layers))],
            *([kind.name] * len(whole.problem.layers) for kind in types),
        ]

    def cheapest(self, floor: float) -> Placement:
        found = self._provisioned(replace(self._whole, problem=replace(self._whole.problem, floor=floor)))
        if not found:
            raise NoPlacement("rl_lstm found no placement that reaches the floor; placement: exact says whether "
                              "there is one")  # fmt: skip
        return min(found, key=lambda one: one.cost)

    def fastest(self, cell: Tables) -> Placement | None:
        """To a rung: floors are raised by a tenth until none is met."""
        best: Placement | None = None
        floor = cell.problem.floor
        while found := self._provisioned(replace(cell, problem=replace(cell.problem, floor=floor))):
            best = max(found, key=lambda one: one.throughput)
            floor = best.throughput * 1.1
        return best

    def _provisioned(self, tables: Tables) -> list[Placement]:
        index = {kind.name: number for number, kind in enumerate(tables.problem.types)}
        choices = [choice for choice in self._choices if index.keys() >= set(choice)]
        found = (tables.provision([index[kind] for kind in choice]) for choice in choices)
        return [placement for placement in found if placement is not None]


def _cells(most: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Limits of units by type, those of nothing and of everything left out."""
    levels = [sorted({0, most_of_type, *(2**i for i in range(most_of_type.bit_length()))}) for most_of_type in most]
    while np.prod([len(of_type) for of_type in levels]) > MOST_CELLS and any(len(of_type) > 2 for of_type in levels):
        longest = max(range(len(levels)), key=lambda at: len(levels[at]))
        inner = levels[longest][1:-1]
        levels[longest] = [0, *inner[1::2], levels[longest][-1]]
    for cell in list(product(*levels))[: 2 * MOST_CELLS]:
        if any(cell) and cell != tuple(most):
            yield cell


def _renumbered(placement: Placement, cell: PlacementProblem, whole: Tables) -> Placement:
    index = {kind.name: number for number, kind in enumerate(whole.problem.types)}
    return whole.judge([replace(stage, type=index[cell.types[stage.type].name]) for stage in placement.stages])


def _undominated(placements: Sequence[Placement]) -> list[Placement]:
    """Those that no other beats: as fast, with no more units of any type; the first of equals."""
    use = [_use(one) for one in placements]

    def beats(a: int, b: int) -> bool:
        fewer = all(use[a].get(kind, 0) <= use[b].get(kind, 0) for kind in use[a].keys() | use[b].keys())
        same = use[a] == use[b] and placements[a].throughput == placements[b].throughput
        return fewer and placements[a].throughput >= placements[b].throughput and (not same or a < b)

    every = range(len(placements))
    return [placements[b] for b in every if not any(a != b and beats(a, b) for a in every)]


def _use(placement: Placement) -> Mapping[int, int]:
    use: dict[int, int] = {}
    for stage in placement.stages:
        use[stage.type] = use.get(stage.type, 0) + stage.units
    return use


def _thinned(placements: list[Placement]) -> list[Placement]:
    """The cheapest, the fastest, and others evenly by throughput."""
    ordered = sorted(placements, key=lambda one: (one.throughput, _num_slots(one.stages)))
    if len(ordered) <= MOST_BUNDLES:
        return ordered
    cheapest = min(ordered, key=lambda one: one.cost)
    fewest = min(ordered, key=lambda one: _num_slots(one.stages))
    evenly = [ordered[int(at)] for at in np.linspace(0, len(ordered) - 1, MOST_BUNDLES - 2)]
    return [one for one in ordered if one in (cheapest, fewest) or one in evenly]
