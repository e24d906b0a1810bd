"""What many choices of types cost, at once: an upper bound of `Tables.provision` for each, in a few array operations.

A choice is looked at on a grid of cycle times between the slowest that the floor allows and what its stages can reach;
units are the least that meet each, and the cycle time counted is the one that those units have. Every figure is the
cost of a placement that keeps all limits; `provision`, which tries every break point, may find a cheaper one of that
choice. Finite exactly where `provision` finds a placement: units are fewest at the slowest cycle time, which is tried.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np
from numpy.typing import NDArray

from elastic_core.placement.stage_costs import HOUR, Tables
from elastic_core.placement.stretches import ROUNDING, Floats, Stretches

Choices = NDArray[np.intp]  # (choices, layers): the type of every layer, by index
GRID = 8  # cycle times a choice
FASTEST = 0.6  # of the slowest cycle time: the fastest that is looked at


class ChoiceCosts:
    """Of problems that have the same layers in the same chains and as many types, which `stacked` makes of several."""

    def __init__(self, tables: Sequence[Tables]) -> None:
        """Raises `ValueError` where the problems' shapes differ."""
        first = tables[0].problem
        if any(one.problem.chains != first.chains or len(one.prices) != len(tables[0].prices) for one in tables):
            raise ValueError("problems of one stack must have the same chains and as many types")
        self._chains = [np.asarray(chain) for chain in first.chains]
        self._stretches = [
            Stretches(
                *(np.stack([getattr(one.chains[number], name) for one in tables]) for name in Stretches.__slots__)
            )
            for number in range(len(self._chains))
        ]
        self._prices = np.stack([one.prices for one in tables])
        self._limits = np.asarray([[float(kind.units) for kind in one.problem.types] for one in tables])
        self._most_cycle = np.asarray([one.problem.most_cycle for one in tables])
        self._scale = np.asarray([one.problem.samples / one.problem.batch / HOUR for one in tables])

    def __call__(self, choices: Choices, problem: NDArray[np.intp] | None = None) -> Floats:
        """(choices,): money for the problem's samples, inf where no units meet floor and limits. `problem`: (choices,),
        which of the stack each is of; left out: the first."""
        of = np.zeros(len(choices), dtype=np.intp) if problem is None else problem
        picked, kinds, there = self._stages(choices, of)
        slowest, usable = self._slowest(picked, there, self._most_cycle[of])
        cycles = slowest[:, None] * np.linspace(1.0, FASTEST, GRID)[None, :]  # (choices, grid)
        wide = Stretches(*(getattr(picked, name)[:, :, None] for name in Stretches.__slots__))
        least = wide.least_units(cycles[:, None, :])  # (choices, stages, grid)
        fits = (np.isfinite(least) | ~there[:, :, None]).all(axis=1) & usable[:, None]
        units = np.where(there[:, :, None] & fits[:, None, :], least, 0.0)
        for kind in range(self._prices.shape[1]):
            held = np.einsum("ksg,ks->kg", units, (kinds == kind).astype(np.float64))
            fits &= held <= self._limits[of, kind][:, None]
        seconds = np.where(there[:, :, None], wide.seconds(np.maximum(units, 1.0)), 0.0).max(axis=1)
        rate = np.einsum("ksg,ks->kg", units, self._prices[of[:, None], kinds])
        costs: Floats = np.where(fits, seconds * rate, inf).min(axis=1) * self._scale[of]
        return costs

    def _stages(self, choices: Choices, of: NDArray[np.intp]) -> tuple[Stretches, Choices, NDArray[np.bool_]]:
        """The stages of every choice, their types, and which are there: choices with fewer are filled up with some."""
        parts, kinds, there = [], [], []
        for chain, stretch in zip(self._chains, self._stretches, strict=True):
            types = choices[:, chain]
            changes = np.ones((len(choices), len(chain) + 1), dtype=bool)
            changes[:, 1:-1] = types[:, 1:] != types[:, :-1]
            count = changes[:, :-1].sum(axis=1)
            most = int(count.max())
            firsts = np.argsort(~changes[:, :-1], axis=1, kind="stable")[:, :most]
            lasts = np.argsort(~changes[:, 1:], axis=1, kind="stable")[:, :most]
            exists = np.arange(most) < count[:, None]
            firsts = np.where(exists, firsts, 0)
            lasts = np.where(exists, lasts, 0)
            kind = np.take_along_axis(types, firsts, axis=1)
            parts.append(stretch.pick((of[:, None], firsts, lasts, kind)))
            kinds.append(kind)
            there.append(exists)
        joined = Stretches(*(np.concatenate([getattr(one, name) for one in parts], axis=1)
                             for name in Stretches.__slots__))  # fmt: skip
        return joined, np.concatenate(kinds, axis=1), np.concatenate(there, axis=1)

    def _slowest(
        self, picked: Stretches, there: NDArray[np.bool_], allowed: Floats
    ) -> tuple[Floats, NDArray[np.bool_]]:
        """The slowest cycle time worth a look, beyond which no stage needs fewer units; and whether memory allows."""
        held = np.isfinite(picked.floor_units) & (picked.floor_units <= picked.most_units)
        usable: NDArray[np.bool_] = np.all(held | ~there, axis=1)
        fewest = np.where(np.isfinite(picked.floor_units), picked.floor_units, 1.0)
        alone = np.where(there, picked.seconds(np.maximum(fewest, 1.0)), 0.0).max(axis=1)
        slowest = np.minimum(allowed, alone) * (1.0 + ROUNDING)
        cycles: Floats = np.where(np.isfinite(slowest), slowest, 1.0)
        return cycles, usable
