"""What a placement costs: stages, their units, throughput and money (HeterPS, section 4.1).

Stages run as a pipeline: throughput is the slowest stage's, and money is time x the price of all units. Given which
layer is on which type, `provision` finds the units of least cost: it balances the stages. Exact, for any such choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np

from elastic_core.placement.placement_problem import PlacementProblem
from elastic_core.placement.stretches import ROUNDING, Floats, Stretches, stretches

HOUR = 3600.0
_FINE = 1 << 21  # cells of one table of cycle times and stages


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Layers, by index, in the direction of the data, on `units` of the type with this index."""

    layers: tuple[int, ...]
    type: int
    units: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """`cost`: money for the problem's samples; `throughput`: samples a second."""

    stages: tuple[Stage, ...]
    throughput: float
    cost: float


@dataclass(frozen=True)
class Tables:
    """The stretches of every chain, made once for all that is asked of a problem."""

    problem: PlacementProblem
    chains: tuple[Stretches, ...]
    prices: Floats  # (types,)

    @classmethod
    def of(cls, problem: PlacementProblem) -> Tables:
        prices = np.asarray([kind.price for kind in problem.types])
        return cls(problem, tuple(stretches(problem, chain) for chain in problem.chains), prices)

    def money(self, cycle: float, rate: float) -> float:
        """For all samples, at `cycle` seconds a batch and units that cost `rate` an hour."""
        return self.problem.samples / self.problem.batch * cycle * rate / HOUR

    def judge(self, stages: Sequence[Stage]) -> Placement:
        """Cost and throughput of stages that are whole stretches. Checks no limit."""
        cycle, rate = 0.0, 0.0
        for number, chain in enumerate(self.problem.chains):
            for stage in stages:
                if stage.layers[0] in chain:
                    at = (chain.index(stage.layers[0]), chain.index(stage.layers[-1]), stage.type)
                    one = self.chains[number].pick(tuple([index] for index in at))
                    cycle = max(cycle, float(one.seconds(np.asarray([float(stage.units)]))[0]))
                    rate += stage.units * float(self.prices[stage.type])
        throughput = self.problem.batch / cycle if cycle else inf
        return Placement(stages=tuple(stages), throughput=throughput, cost=self.money(cycle, rate))

    def within_units(self, stages: Sequence[Stage]) -> bool:
        """Whether the stages of every type together hold no more units than there are."""
        held = [0] * len(self.problem.types)
        for stage in stages:
            held[stage.type] += stage.units
        return all(count <= kind.units for count, kind in zip(held, self.problem.types, strict=True))

    def provision(self, types: Sequence[int]) -> Placement | None:
        """The cheapest units for layer i on type types[i]; None where none meet floor and limits.

        The least cost lies where some stage is exactly at its cycle time on some number of units: all are tried.
        """
        cut = [cut_chain(chain, types) for chain in self.problem.chains]
        picked = _joined([self.chains[n].pick(_columns(parts)) for n, parts in enumerate(cut)])
        parts = [(layers, kind) for chain in cut for layers, kind in chain]
        kinds = np.asarray([kind for _, kind in parts])
        cycles = self._break_points(picked)
        best, best_units, chunk = inf, None, max(1, _FINE // len(parts))
        for start in range(0, len(cycles), chunk):
            some = cycles[start : start + chunk]
            units = picked.least_units(some[:, None])  # (cycles, stages)
            held = np.stack([units[:, kinds == t].sum(axis=1) for t in range(len(self.prices))], axis=1)
            fits = np.all(held <= [kind.units for kind in self.problem.types], axis=1)
            with np.errstate(invalid="ignore"):
                costs = np.where(fits, some * (units @ self.prices[kinds]), inf)
            least = int(np.argmin(costs))
            if costs[least] < best:
                best, best_units = float(costs[least]), units[least]
        if best_units is None:
            return None
        return self.judge([Stage(layers=layers, type=kind, units=int(count))
                           for (layers, kind), count in zip(parts, best_units, strict=True)])  # fmt: skip

    def _break_points(self, picked: Stretches) -> Floats:
        """Cycle times at which a stage needs a unit less, from what all stages can reach to what the floor allows."""
        most = int(picked.most_units.max())
        units = np.arange(1.0, most + 1.0)[None, :]
        seconds = _across(picked).seconds(units)
        seconds = seconds[(units >= picked.floor_units[:, None]) & (units <= picked.most_units[:, None])]
        reachable = picked.seconds(picked.most_units).max()
        allowed = self.problem.most_cycle * (1.0 + ROUNDING)
        return np.unique(seconds[(seconds >= reachable * (1.0 - ROUNDING)) & (seconds <= allowed)])


def cut_chain(chain: Sequence[int], types: Sequence[int]) -> list[tuple[tuple[int, ...], int]]:
    """The stages of a chain as (layers, type): consecutive layers of one type."""
    cut: list[tuple[tuple[int, ...], int]] = []
    for layer in chain:
        if cut and cut[-1][1] == types[layer]:
            cut[-1] = ((*cut[-1][0], layer), types[layer])
        else:
            cut.append(((layer,), types[layer]))
    return cut


def _columns(parts: Sequence[tuple[tuple[int, ...], int]]) -> tuple[list[int], ...]:
    """Index of each part into the stretches of its chain."""
    ends = np.cumsum([len(layers) for layers, _ in parts])
    first = [0, *ends[:-1].tolist()]
    return first, (ends - 1).tolist(), [kind for _, kind in parts]


def _joined(parts: Sequence[Stretches]) -> Stretches:
    return Stretches(*(np.concatenate([getattr(part, name) for part in parts]) for name in Stretches.__slots__))


def _across(picked: Stretches) -> Stretches:
    return Stretches(*(getattr(picked, name)[:, None] for name in Stretches.__slots__))
