"""A price a slot of each type at which the jobs together want what there is: the Lagrangian dual of the knapsack.

At prices p every job takes the option with the largest net value, value - p x slots, or nothing at 0. The dual

    D(p) = p . capacity + sum over jobs of max(0, largest net value)

is convex and nowhere below any choice that fits (Everett 1963): its minimum is the bound that `Prices.bound` gives.
The maxima are smoothed (log-sum-exp), so that Newton's method with as many unknowns as types finds it in a few steps,
at temperatures that fall until the smoothing is worth next to nothing. Smoothing also says how jobs that are
indifferent divide: `Prices.shares`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from elastic_core.predict.speed.throughput import Floats, Ints

WARMEST, COLDEST, COOLING = 0.3, 3e-4, 0.3  # temperatures, relative to the mean value of a job's best option
STEPS = 6  # of Newton's method at one temperature
HALVINGS = 12
ENOUGH = 1e-3  # of the capacity that demand may be off before the next temperature


@dataclass(frozen=True, slots=True)
class Prices:
    price: Floats  # of a slot, by type
    net: Floats  # value less price of each option (columns) to each job (rows)
    shares: Floats  # of the options in a job's choice, at most 1 together
    bound: float  # no choice that fits is worth more

    def losses(self) -> Floats:
        """What is lost by each option against the best one at these prices: a choice is worth the bound at most, less
        the losses of all that is in it."""
        losses: Floats = np.maximum(self.net.max(axis=1), 0.0)[:, None] - self.net
        return losses


@dataclass(frozen=True, slots=True)
class _Point:
    price: Floats
    net: Floats
    shares: Floats
    height: float  # of the smoothed dual


def minimise(values: Floats, use: Ints, capacity: Ints) -> Prices:
    """`values` (jobs, options) are at most 0 where a job may not take an option; at least one is positive. `use`
    (options, types): slots."""
    dual = _Dual(values, use, capacity)
    typical = float(np.maximum(values.max(axis=1), 0.0).mean())
    price = np.zeros(len(capacity))
    bound, best = np.inf, price
    relative = WARMEST
    while relative >= COLDEST:
        point = dual.descend(price, relative * typical)
        price = point.price
        if (height := dual.height(point)) < bound:
            bound, best = height, price
        relative *= COOLING
    last = point if best is price else dual.at(best, COLDEST * typical)
    return Prices(last.price, last.net, last.shares, bound)


class _Dual:
    def __init__(self, values: Floats, use: Ints, capacity: Ints) -> None:
        self._values, self._use = values, use.astype(np.float64)
        self._capacity = capacity.astype(np.float64)
        self._several = bool(((use > 0).sum(axis=1) > 1).any())

    def at(self, price: Floats, temperature: float) -> _Point:
        net = np.where(self._values > 0, self._values - self._use @ price, -np.inf)
        top = np.maximum(net.max(axis=1), 0.0)
        shares = np.exp((net - top[:, None]) / temperature)
        whole = shares.sum(axis=1) + np.exp(-top / temperature)
        shares /= whole[:, None]
        height = float(price @ self._capacity + top.sum() + temperature * np.log(whole).sum())
        return _Point(price, net, shares, height)

    def height(self, point: _Point) -> float:
        """Of the dual itself."""
        return float(point.price @ self._capacity + np.maximum(point.net.max(axis=1), 0.0).sum())

    def descend(self, price: Floats, temperature: float) -> _Point:
        point = self.at(price, temperature)
        for _ in range(STEPS):
            demand = point.shares @ self._use  # slots by job and type
            slope = self._capacity - demand.sum(axis=0)
            free = (point.price > 0) | (slope < 0)
            if (np.abs(np.where(free, slope, 0.0)) <= ENOUGH * np.maximum(self._capacity, 1.0)).all():
                break
            curve = (self._squares(point.shares.sum(axis=0)) - demand.T @ demand) / temperature
            lower = self._step(point, slope, curve, free, temperature)
            if lower is None:
                break
            point = lower
        return point

    def _squares(self, shares: Floats) -> Floats:
        """Mean of the products of what an option takes of two types, over all jobs."""
        if self._several:
            products: Floats = self._use.T @ (shares[:, None] * self._use)
            return products
        return np.diag(shares @ self._use**2)

    def _step(self, point: _Point, slope: Floats, curve: Floats, free: Floats, temperature: float) -> _Point | None:
        """The longest of Newton's step and its halves that goes down; None where none does."""
        damped = curve[np.ix_(free, free)] + np.diag(1e-9 + 1e-6 * np.diag(curve)[free])
        step = np.zeros(len(slope))
        step[free] = -np.linalg.solve(damped, slope[free])
        longest = 2.0 * np.maximum(point.price.max(), temperature / max(self._use.sum(axis=1).mean(), 1.0))
        step = np.clip(step, -longest, longest)
        for _ in range(HALVINGS):
            lower = self.at(np.maximum(point.price + step, 0.0), temperature)
            if lower.height < point.height:
                return lower
            step = step / 2.0
        return None
