"""Why no placement meets the floor: the highest throughput that can be reached, and what limits it there."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

import numpy as np

from elastic_core.placement.planners.cycle_search import CycleSearch, Interval
from elastic_core.placement.planners.planner import NoPlacement
from elastic_core.placement.stage_costs import Placement, Stage, Tables
from elastic_core.placement.stretches import ROUNDING

CLOSE = 1e-6  # relative; between it and the reachable throughput nothing is looked for


def refusal(tables: Tables, *, shared_only: bool = False) -> NoPlacement:
    """For a problem that no placement is possible of: with its floor, or at all."""
    problem = tables.problem
    free = without_floor(tables)
    best = fastest(free, shared_only=shared_only)
    if best is None:
        return NoPlacement(f"placement {problem.name!r}: {_does_not_fit(free)}")
    return NoPlacement(
        f"placement {problem.name!r}: no placement has {problem.floor:g} samples a second; the highest that can be "
        f"reached is {best.throughput:.6g}, limited by {_limit(free, best)}; lower the floor, or raise the limit"
    )


def without_floor(tables: Tables) -> Tables:
    return replace(tables, problem=replace(tables.problem, floor=0.0))


def fastest(tables: Tables, *, shared_only: bool = False, close: float = CLOSE) -> Placement | None:
    """Of highest throughput, to a millionth (`close`), whatever it costs; None where nothing fits at all."""
    search = CycleSearch(tables, shared_only=shared_only)
    low, high = search.ends()
    best, middle = None, high
    while low < high * (1.0 - close):
        (look,) = search.look([Interval(0.0, low, middle)])
        if look.stages is None:
            if best is None:
                return None
            low = middle
        else:
            best = tables.judge(look.stages)
            high = min(middle, tables.problem.batch / best.throughput) * (1.0 - ROUNDING)
        middle = sqrt(low * high)
    return best


def _limit(tables: Tables, best: Placement) -> str:
    problem = tables.problem
    slowest = min(best.stages, key=lambda stage: tables.judge([stage]).throughput)
    names = [problem.layers[i].name for i in slowest.layers]
    kind = problem.types[slowest.type]
    layers = repr(names[0]) if len(names) == 1 else f"{names[0]!r} to {names[-1]!r}"
    where = f"the stage of {layers} on {slowest.units} of {kind.units} units of {kind.name!r}"
    serial = _serial_seconds(tables, slowest)
    more = f", of which no number of units makes more than {problem.batch / serial:.6g}" if serial else ""
    return where + more


def _serial_seconds(tables: Tables, stage: Stage) -> float:
    for chain, stretch in zip(tables.problem.chains, tables.chains, strict=True):
        if stage.layers[0] in chain:
            at = (chain.index(stage.layers[0]), chain.index(stage.layers[-1]), stage.type)
            return max(float(stretch.compute_serial[at]), float(stretch.exchange_serial[at]))
    raise AssertionError(f"{stage} is in no chain")


def _does_not_fit(tables: Tables) -> str:
    """Without a floor only memory, or too few units for all stages, can forbid everything."""
    problem = tables.problem
    for chain, stretch in zip(problem.chains, tables.chains, strict=True):
        for place, index in enumerate(chain):
            fits = stretch.floor_units[place, place] <= stretch.most_units[place, place]
            if not np.any(fits):
                layer = problem.layers[index]
                room = ", ".join(f"{kind.memory_bytes:g} a unit of {kind.name!r} ({kind.most_units} a stage)"
                                 for kind in problem.types)  # fmt: skip
                return (f"layer {layer.name!r} fits on no type: {layer.weight_bytes:g} bytes of weights and "
                        f"{layer.activation_bytes:g} of activations; there are {room}")  # fmt: skip
    have = ", ".join(f"{kind.units} of {kind.name!r}" for kind in problem.types)
    return (
        f"its {len(problem.chains)} chains of layers and their memory need more units than there are: {have}; add units"
    )
