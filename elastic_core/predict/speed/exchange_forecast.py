"""What a step takes under each exchange at a place where the job has tried none, and which is the fastest there.

From what its ranks told of the exchanges that they may choose (`domain.ExchangeCost`), from what messages take within a
node and between nodes, and from the computing that the model of step times knows. The form of that model lets an
exchange grow with slots as exchanges do at large; which of them it would be, and that another one may be worth it as
soon as a job leaves its node, it cannot know.

A node's link is shared by its ranks: of r on it among W each sends (W - r) / (W - 1) of its bytes over it, r times as
much as one rank alone. What was measured is taken to one rank a node, and from there to any number of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from elastic_core.domain import AUTO, EXACT, ExchangeCost, ExchangeNeeds, Limits, Link, ProfilePoint
from elastic_core.domain.exchange_costs import AMONG, WORTH
from elastic_core.predict.speed.step_form import Floats, Ints, Shapes
from elastic_core.spec.parts.job_comm import admitted

TriedAt = tuple[int, bool, str]  # slots, whether on several nodes, type


@dataclass(frozen=True, slots=True)
class Links:
    """Of slots of one type. `between`: as met by one rank on each node. None: never met."""

    within: Link | None = None
    between: Link | None = None


@dataclass(frozen=True, slots=True)
class Expected:
    """By configuration. `known`: there is a link, and ranks to exchange with."""

    known: NDArray[np.bool_]
    seconds: Floats  # of a step under the algorithm that would be chosen
    chosen: Ints  # which, in the order of the costs
    gain: Floats  # how many times as fast a step is as under the exact sum


@dataclass(frozen=True)
class ExchangeForecast:
    """For jobs that may choose among these exchanges, or name one (`named`)."""

    costs: tuple[ExchangeCost, ...]  # the exact sum first
    links: tuple[tuple[str, Links], ...]  # by type
    named: bool = False

    def expected(self, kinds: Sequence[str], shapes: Shapes, micro_seconds: Floats) -> Expected:
        """Of the configurations of one model; `micro_seconds`: computing of a micro-batch, of their full shape."""
        latency, per_byte = self._links_at(kinds, shapes)
        computing = micro_seconds * shapes.accumulation
        steps = np.stack(
            [computing + _wait(cost, shapes, latency, per_byte, micro_seconds, computing) for cost in self.costs]
        )
        exact = steps[0]
        if self.named:
            chosen = np.full(exact.shape, len(steps) - 1)
        else:
            fastest = np.argmin(steps, axis=0)
            saves = np.take_along_axis(steps, fastest[None], axis=0)[0] <= WORTH * exact
            chosen = np.where(saves, fastest, 0)
        seconds = np.take_along_axis(steps, chosen[None], axis=0)[0]
        return Expected(np.isfinite(exact), seconds, chosen, exact / seconds)

    def _links_at(self, kinds: Sequence[str], shapes: Shapes) -> tuple[Floats, Floats]:
        """Latency and seconds a byte as a rank meets them while all send; NaN where that is not known."""
        known = dict(self.links)
        table = np.full((2, 2, len(kinds)), np.nan)  # latency or seconds a byte, within or between, type
        for at, kind in enumerate(kinds):
            links = known.get(kind, Links())
            for place, link in enumerate((links.within, links.between)):
                if link is not None:
                    table[:, place, at] = link.latency, link.seconds_per_byte
        latency, per_byte = table[:, shapes.far.astype(np.int64), shapes.type_index]
        shared = np.where(shapes.far, crossing(shapes.num_slots, shapes.num_nodes), 1.0)
        several = np.where(shapes.several, 1.0, np.nan)
        return latency * several, per_byte * shared


def tried_at(points: Iterable[ProfilePoint]) -> frozenset[TriedAt]:
    """Where something was measured, so that a forecast has no say."""
    return frozenset((point.num_slots, point.num_nodes > 1, point.type) for point in points)


def crossing(num_slots: Ints, num_nodes: Ints) -> Floats:
    """What goes over a node's link while all ranks exchange with all, relative to one rank on each node."""
    ranks = num_slots / np.maximum(num_nodes, 1)
    return np.asarray(ranks * (num_slots - ranks) / np.maximum(num_slots - 1, 1), dtype=np.float64)


def as_of_one_rank(needs: ExchangeNeeds) -> Link | None:
    """The link that was met, between nodes as one rank on each would have met it."""
    if needs.link is None or needs.num_nodes == 1:
        return needs.link
    shared = float(crossing(np.asarray(needs.num_slots), np.asarray(needs.num_nodes)))
    return Link(needs.link.latency, needs.link.seconds_per_byte / shared) if shared > 0 else None


def forecast_of(
    costs: Mapping[str, ExchangeCost], links: Mapping[str, Links], limits: Limits
) -> ExchangeForecast | None:
    """For jobs with these limits; None where nothing is to be said of them. `costs`: by algorithm."""
    names = admitted(limits.comm_allow) if limits.comm == AUTO else (limits.comm,)
    others = tuple(costs[name] for name in names if name in costs and name != EXACT)
    if limits.comm == EXACT or EXACT not in costs or not others or not links:
        return None
    return ExchangeForecast((costs[EXACT], *others), tuple(sorted(links.items())), named=limits.comm != AUTO)


def _wait(
    cost: ExchangeCost, shapes: Shapes, latency: Floats, per_byte: Floats, micro_seconds: Floats, computing: Floats
) -> Floats:
    """Seconds of a step, as `ExchangeCost` says."""
    sent, rounds = _among(cost.sent_bytes, shapes.num_slots, inverse=True), _among(cost.rounds, shapes.num_slots)
    exchange = rounds * latency + sent * per_byte + cost.own_seconds
    hidden = cost.hidden_backward * micro_seconds + cost.hidden_steps * computing
    waits = np.maximum(cost.least_share * exchange, exchange - hidden)
    return np.asarray((np.maximum(waits, 0.0) + cost.beside_seconds) / cost.every)


def _among(figures: Sequence[float], num_slots: Ints, inverse: bool = False) -> Floats:
    """Interpolated in the number of ranks, or in one over it: bytes are, for most, a constant less one rank's part."""
    at, among = np.asarray(num_slots, dtype=np.float64), np.asarray(AMONG, dtype=np.float64)
    told = np.asarray(figures, dtype=np.float64)
    if inverse:
        return np.interp(1.0 / at, 1.0 / among[::-1], told[::-1])
    return np.interp(at, among, told)
