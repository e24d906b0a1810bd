"""What an exchange that a job names saves against the exact sum, measured beside training.

After a few steps, which are timed as a trial of a choice is, the group's links are probed once. The steps under the
exchange set the probe right, where that declares its traffic, and the exact sum's step is predicted for the link. One
whose warm-up is by the exact sum has both measured, and none is predicted. Nothing is tried: every step is what the job
asked for. Figures are rank 0's.

Within nodes first, an exchange and the exact sum differ in what nodes' leaders send each other: the link between those
is probed, and the exact sum's step is the measured one and the difference of both predictions.

Steps count that were taken in one go: ranks that make one model of what they hold (a checkpoint, an evaluation) end
what was under way, and averages begin a new interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.distributed as dist

from elastic_core.comm.algorithm import Exchange
from elastic_core.comm.allreduce import OrderedAllReduce
from elastic_core.comm.averaging.weight_averaging import WeightAveraging
from elastic_core.comm.hooked import HookedAlgorithm
from elastic_core.comm.tuning.link_probe import probe
from elastic_core.comm.tuning.step_cost import as_measured, predict, predict_averaging
from elastic_core.comm.tuning.told_costs import told_costs
from elastic_core.comm.tuning.trial import Trial
from elastic_core.domain import EXACT, ExchangeCost, ExchangeFigures, Link


class AgainstExact:
    """Of an exchange of several ranks on the CPU, whose messages `group` does not carry between two steps."""

    def __init__(
        self,
        exchange: Exchange,
        algorithm: type[HookedAlgorithm] | type[WeightAveraging],
        shapes: Sequence[torch.Size],
        interval: int = 1,
        group: dist.ProcessGroup | None = None,
        leaders: Sequence[int] | None = None,
    ) -> None:
        """`shapes`: of the parameters that are trained, in the model's order; `interval`: steps in which it exchanges
        once; `leaders`: of nodes, where gradients are exchanged within those first."""
        self._exchange, self._algorithm, self._interval = exchange, algorithm, interval
        self._shapes, self._group, self._leaders = shapes, group, leaders
        self._world = dist.get_world_size(group)
        self._under = exchange.in_force
        self._trial = self._new_trial()
        self._computing = 0.0  # seconds of a step, under what was timed last
        self._figures: dict[str, ExchangeFigures] = {}
        self.link: Link | None = None
        self.chosen = False  # as of `AutoExchange`: it is, by its name, and all is known that is told of a choice

    @property
    def tried(self) -> tuple[ExchangeFigures, ...]:
        """The exchange itself, and the exact sum."""
        return tuple(self._figures[name] for name in (self._exchange.name, EXACT) if name in self._figures)

    def costs(self) -> tuple[ExchangeCost, ...]:
        """Of both, for decisions about other slots; () within nodes first, where these might lie on nodes otherwise."""
        if self._leaders is not None:
            return ()
        gradients: dict[str, type[HookedAlgorithm]] = {EXACT: OrderedAllReduce}
        weights: dict[str, type[WeightAveraging]] = {}
        if issubclass(self._algorithm, WeightAveraging):
            weights[self._algorithm.name] = self._algorithm
        else:
            gradients[self._algorithm.name] = self._algorithm
        return told_costs(gradients, weights, self._shapes, self._figures, torch.device("cpu"), self._interval)

    def stepped(self, seconds: float, wait_seconds: float) -> bool:
        """After each step, on every rank alike: whether the exchange counts as `chosen` from now on. Collective at the
        end of a trial; raises torch's `RuntimeError` where a peer is gone."""
        if self.chosen:
            return False
        if self._exchange.in_force != self._under:
            self._under, self._trial = self._exchange.in_force, self._new_trial()
        if self._under in self._figures or not self._trial.add(seconds, wait_seconds):
            return False
        self._end_trial()
        self.chosen = self._under == self._exchange.name
        if self.chosen and EXACT not in self._figures:
            self._predict_exact()
        return self.chosen

    def settled(self) -> None:
        """Between two steps ranks have made one model of what they hold: the steps before do not count."""
        self._trial = self._new_trial()

    def _new_trial(self) -> Trial:
        return Trial(self._interval > 1, self._interval)

    def _end_trial(self) -> None:
        self._computing = self._trial.computing
        self._figures[self._under] = ExchangeFigures(
            algorithm=self._under, measured_seconds=self._trial.seconds, measured_bytes=self._received()
        )

    def _received(self) -> float:
        """Bytes a step, in the mean over ranks."""
        received = torch.tensor([self._trial.received()], dtype=torch.float64)
        dist.all_reduce(received, group=self._group)
        return float(received) / self._world

    def _predict_exact(self) -> None:
        if self._leaders is not None:
            self._predict_between(self._leaders)
            return
        own, computing = self._algorithm, self._computing
        self.link = probe(self._group)
        measured = self._figures[own.name].measured_seconds
        assert measured is not None, "its trial is over"
        if issubclass(own, HookedAlgorithm):
            self.link = as_measured(self.link, own, self._shapes, self._world, computing, measured)
            cost = predict(own, self._shapes, self._world, self.link, computing)
        else:
            cost = predict_averaging(own, self._shapes, self._world, self.link, computing, self._interval)
        if cost is not None:
            known = replace(self._figures[own.name], predicted_seconds=cost.seconds, predicted_bytes=cost.sent_bytes)
            self._figures[own.name] = known
        exact = predict(OrderedAllReduce, self._shapes, self._world, self.link, computing)
        if exact is not None:
            self._figures[EXACT] = ExchangeFigures(
                algorithm=EXACT, predicted_seconds=exact.seconds, predicted_bytes=exact.sent_bytes
            )

    def _predict_between(self, leaders: Sequence[int]) -> None:
        """What nodes carry within themselves is the same in both steps."""
        assert issubclass(self._algorithm, HookedAlgorithm), "averages of weights are not compared within nodes"
        link, world = probe(self._group, leaders), len(leaders)
        own = predict(self._algorithm, self._shapes, world, link, self._computing)
        exact = predict(OrderedAllReduce, self._shapes, world, link, self._computing)
        known = self._figures[self._algorithm.name]
        seconds, received = known.measured_seconds, known.measured_bytes
        assert seconds is not None, "its trial is over"
        assert received is not None, "its trial is over"
        if own is None or exact is None:
            return
        self._figures[EXACT] = ExchangeFigures(
            algorithm=EXACT,
            predicted_seconds=max(self._computing, seconds + exact.seconds - own.seconds),
            predicted_bytes=received + (exact.sent_bytes - own.sent_bytes) * world / self._world,
        )
