"""The best placement over all cycle times, by a search that keeps a bound (`exact`, and `milp`).

With the cycle time fixed every stretch has its least units, and the cheapest plan is a path; only cycle times at which
some stage is exactly full can be best. They are not listed: an interval (low, high] of cycle times is looked at where
units are fewest, at `high`. The path found there costs the same rate down to its own cycle time, so that nothing is
left between the two; below, the interval is cut in two. An interval is dropped where a bound on all in it is no better
than the best plan: at any cycle time c of it, a stage costs at least its price times

    max(low x units(high), high x divisible units(high))          units, and c x divisible units, never grow with c

and the path over these costs is below every plan of the interval. With limits shared between stages, a path that
breaks them is replaced by the integer program's, and the bound stays valid.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf, sqrt

import numpy as np

from elastic_core.placement.planners.planner import PROVED, Found
from elastic_core.placement.planners.shortest_path import Cut, Paths
from elastic_core.placement.planners.unit_program import solve
from elastic_core.placement.stage_costs import Placement, Stage, Tables
from elastic_core.placement.stretches import ROUNDING, Floats

SAME = 1e-9  # relative; the integer program solves to it
MOST_CELLS = 1 << 19  # of one batch of tables: what the processor's cache holds
MOST_BATCH = 32


@dataclass(order=True, slots=True)
class Interval:
    bound: float  # rate x cycle time, of every plan whose cycle time is above low, up to high
    low: float = field(compare=False)
    high: float = field(compare=False)


@dataclass(frozen=True, slots=True)
class Look:
    """What is known after looking at an interval. `stages`: of the least rate at its high end, None where none were
    found; `at_best`: they are of the least rate, proved, and `rate_bound` is that rate; inf where there are none."""

    stages: tuple[Stage, ...] | None
    at_best: bool
    rate_bound: float
    bound: float


class CycleSearch:
    """`shared_only`: ask the integer program at every cycle time, not only where a path breaks shared limits."""

    def __init__(self, tables: Tables, *, shared_only: bool = False) -> None:
        self.tables = tables
        self._shared_only = shared_only
        self._limits = np.asarray([float(kind.units) for kind in tables.problem.types])
        cells = sum(chain.most_units.size for chain in tables.chains)
        self._batch = max(1, min(MOST_BATCH, MOST_CELLS // cells))
        self.looked = 0

    def run(self, most_looks: int, gap: float = PROVED) -> Found | None:
        """None where it is proved that there is no placement."""
        best: Placement | None = None
        best_cost = dropped = inf  # cost here: rate x cycle time
        waiting = [Interval(0.0, *self.ends())]
        while waiting and self.looked < most_looks:
            some = [heapq.heappop(waiting) for _ in range(min(self._batch, len(waiting)))]
            some = [interval for interval in some if interval.high > interval.low]
            for interval, look in zip(some, self.look(some, best_cost * (1.0 - gap)), strict=True):
                high = interval.high
                bound = max(interval.bound, look.bound, interval.low * look.rate_bound)
                if look.stages is not None:
                    placement = self.tables.judge(look.stages)
                    cycle = self.tables.problem.batch / placement.throughput
                    cost = cycle * sum(float(self.tables.prices[one.type]) * one.units for one in look.stages)
                    if cost < best_cost:
                        best, best_cost = placement, cost
                    if look.at_best:
                        high = min(high, cycle * (1.0 - 2.0 * ROUNDING))
                        dropped = min(dropped, cycle * look.rate_bound)
                if bound >= best_cost * (1.0 - gap):
                    dropped = min(dropped, bound)
                elif high > interval.low:
                    middle = sqrt(interval.low * high)
                    heapq.heappush(waiting, Interval(bound, interval.low, middle))
                    heapq.heappush(waiting, Interval(bound, middle, high))
        if best is None:
            return None
        proved = min([best_cost, dropped, *(interval.bound for interval in waiting)])
        return Found(placement=best, bound=best.cost * proved / best_cost, evaluated=self.looked)

    def look(self, some: list[Interval], best_cost: float = inf) -> list[Look]:
        """At the high ends; the bound alone where that is no better than `best_cost`."""
        self.looked += len(some)
        if not some:
            return []
        low, high = (np.asarray([getattr(one, end) for one in some])[:, None, None, None] for end in ("low", "high"))
        prices = self.tables.prices
        units, bounds = [], np.zeros(len(some))
        for chain in self.tables.chains:
            divisible = chain.divisible_units(high)
            units.append(chain.least_units(high, divisible))
            bounds += Paths(prices * np.maximum(low * units[-1], high * divisible)).value
        looks = [Look(None, at_best=False, rate_bound=0.0, bound=float(bound)) for bound in bounds]
        rows = np.flatnonzero(bounds < best_cost)
        paths = [Paths(prices * unit[rows]) for unit in units]
        for place, row in enumerate(rows.tolist()):
            rate = float(sum(path.value[place] for path in paths))
            cuts = [path.cut(place) for path in paths] if rate < inf else None
            looks[row] = self._least_rate([unit[row] for unit in units], cuts, rate, float(bounds[row]))
        return looks

    def _least_rate(self, units: Sequence[Floats], cuts: list[Cut] | None, rate: float, bound: float) -> Look:
        """`cuts`: those of least rate, shared limits aside."""
        if cuts is None:
            return Look(None, at_best=True, rate_bound=inf, bound=bound)
        stages = self._stages(cuts, units)
        if not self._shared_only and self.tables.within_units(stages):
            return Look(stages, at_best=True, rate_bound=rate, bound=bound)
        program = solve([self.tables.prices * unit for unit in units], units, self._limits)
        rate_bound = max(rate, program.bound)
        if program.cuts is None:
            return Look(None, at_best=rate_bound == inf, rate_bound=rate_bound, bound=bound)
        at_best = program.value <= program.bound * (1.0 + 2.0 * SAME)
        return Look(self._stages(program.cuts, units), at_best=at_best, rate_bound=rate_bound, bound=bound)

    def _stages(self, cuts: Sequence[Cut], units: Sequence[Floats]) -> tuple[Stage, ...]:
        return tuple(
            Stage(layers=chain[first : last + 1], type=kind, units=int(unit[first, last, kind]))
            for chain, cut, unit in zip(self.tables.problem.chains, cuts, units, strict=True)
            for first, last, kind in cut
        )

    def ends(self) -> tuple[float, float]:
        """Cycle times that all plans lie between, as far as no path has to be known."""
        low = high = 0.0
        for chain in self.tables.chains:
            fits = chain.floor_units <= chain.most_units
            seconds = chain.seconds(np.where(fits, chain.floor_units, 1.0))
            high = max(high, float(np.max(np.where(fits, seconds, 0.0))))
            alone = np.arange(len(chain.most_units))
            single = chain.pick((alone, alone))
            low = max(low, float((single.compute_serial + single.compute_shared / single.most_units).min(axis=1).max()))
        return low * (1.0 - 1e-3), min(high, self.tables.problem.most_cycle)
