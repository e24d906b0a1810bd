"""Every stretch of consecutive layers of a chain on every type as arrays: what it takes as a stage on k units.

    CT(k) = compute_serial + compute_shared / k        ET(k) = max(CT, DT), seconds a batch of B0 samples
    DT(k) = exchange_serial + exchange_shared / k

ODT is summed over the layers; activations that enter and leave the stretch, and their gradients, go over the units'
own links and are shared out. For a given cycle time the least units are closed form. Holds no plan and no price.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elastic_core.domain import LayerTimes
from elastic_core.placement.placement_problem import PlacementProblem, ResourceType

Floats = NDArray[np.float64]

ROUNDING = 1e-9  # relative: a stage on k units meets a cycle time that is its own up to rounding


@dataclass(frozen=True, slots=True)
class Stretches:
    """Arrays of one shape: in `stretches` (n, n, types), [first, last, type], inf where last < first; any other shape
    where it was picked from. `floor_units`: by memory, inf where none is enough; `most_units`: by the type."""

    compute_serial: Floats
    compute_shared: Floats
    exchange_serial: Floats
    exchange_shared: Floats
    floor_units: Floats
    most_units: Floats

    def pick(self, index: tuple[Any, ...]) -> Stretches:
        return Stretches(
            self.compute_serial[index], self.compute_shared[index], self.exchange_serial[index],
            self.exchange_shared[index], self.floor_units[index], self.most_units[index],
        )  # fmt: skip

    def seconds(self, units: Floats) -> Floats:
        """ET on so many units."""
        compute = self.compute_serial + self.compute_shared / units
        exchange = self.exchange_serial + self.exchange_shared / units
        return np.maximum(compute, exchange)

    def divisible_units(self, cycle: Floats) -> Floats:
        """Units that a stage takes at least if they could be divided; inf where no number meets the cycle time.

        cycle x this never grows with the cycle time, which bounds a whole interval of them.
        """
        return np.maximum(_shared(self.compute_serial, self.compute_shared, cycle),
                          _shared(self.exchange_serial, self.exchange_shared, cycle))  # fmt: skip

    def least_units(self, cycle: Floats, divisible: Floats | None = None) -> Floats:
        """The fewest whole units that meet the cycle time and hold the stage; inf where there are none."""
        least = self.divisible_units(cycle) if divisible is None else divisible
        whole = np.maximum(np.ceil(least), self.floor_units)
        return np.where(whole <= self.most_units, whole, inf)


def _shared(serial: Floats, shared: Floats, cycle: Floats) -> Floats:
    room = cycle * (1.0 + ROUNDING) - serial
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(room > 0, shared / room, inf)


def stretches(problem: PlacementProblem, chain: Sequence[int]) -> Stretches:
    """All of one chain."""
    types = problem.types
    serial, shared = _sums(problem, chain, lambda t: (t.compute_seconds, t.alpha))
    exchange_serial, exchange_shared = _sums(problem, chain, lambda t: (t.exchange_seconds, t.beta))
    links = np.asarray([kind.link_bytes_per_second for kind in types])
    exchange_shared = exchange_shared + _border_bytes(problem, chain)[:, :, None] / links
    weights, activations = (
        np.broadcast_to(_cumulated(np.asarray([[getattr(problem.layers[i], field)] for i in chain])), serial.shape)
        for field in ("weight_bytes", "activation_bytes")
    )
    size = len(chain)
    upside_down = np.tril(np.ones((size, size), dtype=bool), -1)[:, :, None]
    floor_units = np.stack([_by_memory(kind, weights[:, :, t], activations[:, :, t]) for t, kind in enumerate(types)],
                           axis=2)  # fmt: skip
    return Stretches(
        np.where(upside_down, inf, serial), shared, exchange_serial, exchange_shared,
        np.where(upside_down, inf, floor_units),
        np.broadcast_to(np.asarray([float(kind.most_units) for kind in types]), serial.shape),
    )  # fmt: skip


def _sums(
    problem: PlacementProblem, chain: Sequence[int], of: Callable[[LayerTimes], tuple[float, float]]
) -> tuple[Floats, Floats]:
    """Serial and shared seconds of every stretch."""
    table = np.asarray([[of(problem.layers[i].on[kind.name]) for kind in problem.types] for i in chain])
    seconds, part = table[:, :, 0], table[:, :, 1]
    return _cumulated(seconds * (1.0 - part)), _cumulated(seconds * part)


def _cumulated(rows: Floats) -> Floats:
    """(n, types) -> (n, n, types): sums of the rows first..last, each summed from its own first row, so that what a
    stretch takes does not depend, to the last bit, on the layers before it."""
    size = len(rows)
    triangle = np.where(np.tril(np.ones((size, size), dtype=bool), -1)[:, :, None], 0.0, rows[None, :, :])
    return np.cumsum(triangle, axis=1)


def _border_bytes(problem: PlacementProblem, chain: Sequence[int]) -> Floats:
    """(n, n): bytes a batch that enter the first layer and leave the last, and their gradients on the way back."""
    entering, leaving = np.zeros(len(problem.layers)), np.zeros(len(problem.layers))
    for source, target in problem.all_edges:
        entering[target] += problem.layers[source].activation_bytes
        leaving[source] += problem.layers[source].activation_bytes
    at = np.asarray(chain)
    both: Floats = 2.0 * (entering[at][:, None] + leaving[at][None, :])
    return both


def _by_memory(kind: ResourceType, weights: Floats, activations: Floats) -> Floats:
    """The fewest units that hold them: samples, and so activations, are shared out, weights where the type does so."""
    if kind.memory_bytes == inf:
        return np.ones_like(weights)
    whole, split = (0.0, weights + activations) if kind.shards_weights else (weights, activations)
    room = np.maximum(kind.memory_bytes - whole, 0.0) * (1.0 + ROUNDING)
    with np.errstate(divide="ignore", invalid="ignore"):
        units = np.where(split > 0, np.ceil(split / room), np.where(room > 0, 1.0, inf))
    return np.maximum(units, 1.0)
