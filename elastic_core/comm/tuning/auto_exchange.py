"""The exchange that ranks choose by measurement, in training: `auto`.

A model begins under the exact sum. After a few steps its computing and waiting are known; where waiting is worth it,
the group probes its links, those steps set the probe right, every candidate's step is predicted (`step_cost`), and the
best two that promise to be faster are tried for a few steps each; what the decision about the job's slots counted with
is the first of them, if it promises anything. All of it is training: gradients are exchanged by the algorithm that is
tried. The fastest is kept, the exact sum unless another saves at least a twentieth. Then the best two
sizes of buckets by prediction, among a few besides DDP's, are tried for as many steps each, and the fastest is kept. So
a choice takes `MOST_STEPS` steps at most. Rank 0's figures decide on every rank.

Where averages of weights are admitted, they come between the two: of those that promise to save a twentieth of the
fastest exchange of gradients the best two are tried, two intervals each, the better one last, since it then simply goes
on. One is kept if it does save that. One that is not kept, or only tried before another, ends with one exact average
of weights and moments, from which all ranks go on alike; so does every trial of one that a checkpoint falls into.

Buckets are DDP's, put together to the size that is tried: DDP has to make small ones (`DDP_BUCKET_MIB`).

Chosen once: whoever wants to choose again, since ranks or links have changed, makes a new one. Errors that an algorithm
kept are given to it when it is used again, and so is what outlasts other exchanges of what an average kept
(`WeightAveraging.lasting`); both are dropped with an algorithm that was tried and not chosen.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import inf
from types import MappingProxyType
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.futures import Future
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from elastic_core.comm.algorithm import BucketProbe, GradBucket
from elastic_core.comm.averaging.at_hook import AveragingAtHook
from elastic_core.comm.averaging.weight_averaging import WeightAveraging
from elastic_core.comm.hook import exchange
from elastic_core.comm.hooked import HookedAlgorithm
from elastic_core.comm.tuning.link_probe import probe as probe_links
from elastic_core.comm.tuning.step_cost import BUCKET_BYTES, Cost, as_measured, in_buckets, predict, predict_averaging
from elastic_core.comm.tuning.told_costs import told_costs
from elastic_core.comm.tuning.trial import INTERVAL_TRIAL_STEPS, TIMED_STEPS, WARM_STEPS, Trial
from elastic_core.domain import AUTO, EXACT, ExchangeCost, ExchangeFigures, Link
from elastic_core.domain.exchange_costs import WORTH

TRIED_BESIDE = 2  # exchanges of gradients, besides the exact sum
AVERAGES_TRIED = 2
DDP_BUCKET_MIB = 1  # of a model whose exchange is chosen
BUCKET_SIZES = tuple(mib << 20 for mib in (1, 4, 10, 25, 100))  # in bytes, DDP's among them
SIZES_BESIDE = 2  # of buckets, besides DDP's
MOST_STEPS = (WARM_STEPS + TIMED_STEPS) * (1 + TRIED_BESIDE + SIZES_BESIDE)
MOST_STEPS_OF_AVERAGES = 2 * AVERAGES_TRIED * INTERVAL_TRIAL_STEPS  # besides: each may begin again once


class AutoExchange:
    """gloo. `candidates` by name, the exact sum among them, and `averages` of weights; those that declare no traffic
    are passed over."""

    name: ClassVar[str] = AUTO

    def __init__(
        self,
        candidates: Mapping[str, type[HookedAlgorithm]],
        group: dist.ProcessGroup | None = None,
        averages: Mapping[str, type[WeightAveraging]] = MappingProxyType({}),
        beside: dist.ProcessGroup | None = None,
        first: str = "",
    ) -> None:
        """`beside`: another group of the same ranks, where there are `averages`: some exchange while training does.
        `first`: what others count with here, which is tried before the rest."""
        self._classes, self._averages = candidates, averages
        self._first = first
        self._group, self._beside = group, beside
        self._world = dist.get_world_size(group)
        self._made: dict[str, HookedAlgorithm] = {}
        self._kept: dict[str, dict[str, Tensor]] = {}  # states from a checkpoint, of algorithms not in use yet
        self._kept_of_averages: dict[str, dict[str, Tensor]] = {}  # and of those that were in use before
        self._figures: dict[str, ExchangeFigures] = {}
        self._averaging: AveragingAtHook | None = None  # None: an exchange of gradients is in force
        self._optimizer: Optimizer | None = None
        self._to_try: list[str] | None = None  # None: not known yet
        self._averages_weighed = False
        self._trial = Trial()
        self._link: Link | None = None
        self._computing = 0.0  # seconds of a step, under the exact sum
        self._least_computing = inf  # under any exchange of gradients
        self._sizes_to_try: list[int] | None = None  # None: the algorithm is not chosen yet
        self._seconds_of: dict[int, float] = {}  # by size of buckets, of the algorithm that was chosen
        self._model: DistributedDataParallel | None = None
        self._device = torch.device("cpu")
        self.chosen = len(candidates) == 1 and not averages
        self.in_force = EXACT

    @property
    def tried(self) -> tuple[ExchangeFigures, ...]:
        """What was predicted and measured, by the time that a step took or would take; () where there was no choice."""
        return tuple(sorted(self._figures.values(), key=_seconds))

    @property
    def link(self) -> Link | None:
        """As the steps have set it right; None where nothing was waited for."""
        return self._link

    def costs(self) -> tuple[ExchangeCost, ...]:
        """Of all that may be chosen, once there was a choice."""
        return told_costs(self._classes, self._averages, self._shapes, self._figures, self._device)

    def attach(self, model: DistributedDataParallel, probe: BucketProbe | None = None, weight: float = 1.0) -> None:
        self._model, self._probe, self._weight = model, probe, weight
        self._shapes = [p.shape for p in model.module.parameters() if p.requires_grad]
        self._device = next(model.parameters()).device
        self._use(EXACT)
        model.register_comm_hook(self, exchange)

    def follow(self, optimizer: Optimizer) -> None:
        self._optimizer = optimizer

    def gradients_are_local(self) -> bool:
        return False

    def of_whole_batch(self) -> bool:
        return self._current.of_whole_batch()

    def submit(self, bucket: GradBucket) -> Future[Tensor]:
        return self._current.submit(bucket)

    def stepped(self, seconds: float, wait_seconds: float) -> bool:
        """After each step, on every rank alike: whether another algorithm is in force from now on, or has been chosen.

        Collective where a trial ends. Raises torch's `RuntimeError` where a peer is gone.
        """
        if self.chosen:
            return False
        if not self._trial.add(seconds, wait_seconds):
            return False
        self._end_trial()
        self._go_on()
        self._trial = Trial(self._averaging is not None and self._averages[self.in_force].at_intervals)
        return True

    @property
    def tries_averages(self) -> bool:
        """An exchange of weights is on trial: what its steps take is known at its end."""
        return self._averaging is not None and not self.chosen

    def settle(self) -> None:
        """Make one model of what the ranks hold, which is one but under an average of weights. Collective."""
        if self._averaging is not None:
            self._averaging.settle()
            self._trial.disturbed()

    def state_dict(self) -> dict[str, Tensor]:
        """Of exchanges of gradients: this rank's."""
        return _by_name(self._kept | {name: made.state_dict() for name, made in self._made.items()})

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        for name, own in _of_each(state).items():
            self._kept.setdefault(name, {}).update(own)

    def averaging_state_dict(self) -> dict[str, Tensor]:
        """Of averages, after `settle`: the same on every rank, for any number of ranks."""
        own = {} if self._averaging is None else {self.in_force: self._averaging.state_dict()}
        return _by_name(self._kept_of_averages | own)

    def load_averaging_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Other exchanges come first."""
        for name, own in _of_each(state).items():
            if name in self._averages:
                self._kept_of_averages[name] = self._averages[name].lasting(own)

    def take_wait_seconds(self) -> float:
        return self._current.take_wait_seconds()

    def failure(self) -> BaseException | None:
        return self._current.failure()

    def close(self) -> None:
        """Collective, where steps under an average of weights were taken since ranks were settled."""
        if self._averaging is not None:
            self._averaging.close()
        for algorithm in self._made.values():
            algorithm.close()
        self._model = None  # its reducer holds this

    @property
    def _current(self) -> HookedAlgorithm | AveragingAtHook:
        return self._averaging or self._hooked

    @property
    def _hooked(self) -> HookedAlgorithm:
        return self._made[self.in_force]

    def _use(self, name: str) -> None:
        if self._averaging is not None or self.in_force in self._made:
            if name == self.in_force:
                return
            self._end_current()
        self.in_force = name
        assert self._model is not None, "attached"
        if name in self._averages:
            assert self._optimizer is not None, "told by `follow`"
            made = self._averages[name](self._beside)
            self._averaging = AveragingAtHook(made, self._model, self._optimizer, self._weight * self._world)
            made.load_state_dict(self._kept_of_averages.pop(name, {}))
            return
        if name not in self._made:
            self._made[name] = self._classes[name](self._group)
            self._made[name].bucket_bytes = BUCKET_BYTES
            self._made[name].start(self._model, self._probe, self._weight)
            self._made[name].load_state_dict(self._kept.pop(name, {}))
        self._hooked.set_in_force(True)

    def _end_current(self) -> None:
        if self._averaging is None:
            self._hooked.set_in_force(False)
            return
        self._averaging.end()
        kept = self._averages[self.in_force].lasting(self._averaging.state_dict())
        self._kept_of_averages[self.in_force] = kept
        self._averaging = None

    def _end_trial(self) -> None:
        if self._trial.given_up:
            return
        received = self._mean(self._trial.received())
        seconds, sent, computing = self._of_first([self._trial.seconds, received, self._trial.computing])
        if self._sizes_to_try is not None:
            self._seconds_of[self._size] = seconds
            return
        before = self._figures.get(self.in_force, ExchangeFigures(algorithm=self.in_force))
        self._figures[self.in_force] = replace(before, measured_seconds=seconds, measured_bytes=sent)
        self._least_computing = min(self._least_computing, computing)
        if self._to_try is None:
            self._computing = computing
            self._to_try = self._worth_trying(seconds, computing) if computing < WORTH * seconds else []

    def _go_on(self) -> None:
        """After a trial, to the next one or the choice."""
        if not self._to_try and not self._averages_weighed:
            self._averages_weighed = True
            self._to_try = [] if self._link is None else self._averages_worth_trying(self._link)
        if self._to_try:
            self._use(self._to_try.pop(0))
        elif self._sizes_to_try is None:
            self._choose()
        if self._sizes_to_try:
            self._hooked.bucket_bytes = self._sizes_to_try.pop(0)
        elif self._sizes_to_try is not None:
            self._choose_size()

    def _worth_trying(self, exact_seconds: float, computing: float) -> list[str]:
        """Predicts every candidate; the names of those that promise the most, the best first."""
        exact, probed = self._classes[EXACT], probe_links(self._group)
        link = as_measured(probed, exact, self._shapes, self._world, computing, exact_seconds, self._device)
        self._link = link
        for name, algorithm in self._classes.items():
            self._foretold(name, predict(algorithm, self._shapes, self._world, link, computing, device=self._device))
        faster = [f for f in sorted(self._figures.values(), key=_predicted)
                  if f.algorithm != EXACT and _predicted(f) <= WORTH * exact_seconds]  # fmt: skip
        different: dict[float | None, str] = {}  # by bytes: of those that send as many, one is tried
        for figures in self._first_of(faster):
            different.setdefault(figures.predicted_bytes, figures.algorithm)
        return list(different.values())[:TRIED_BESIDE]

    def _first_of(self, promising: Sequence[ExchangeFigures]) -> list[ExchangeFigures]:
        """In their order, but for what others count with."""
        return sorted(promising, key=lambda figures: figures.algorithm != self._first)  # stable

    def _averages_worth_trying(self, link: Link) -> list[str]:
        """As `_worth_trying`, against the fastest exchange of gradients; the best last. They compute what the one that
        disturbed computing least did: on a slow link all that is sent beside the exact sum waits for it, too."""
        computing = self._least_computing
        for name, algorithm in self._averages.items():
            cost = predict_averaging(algorithm, self._shapes, self._world, link, computing, device=self._device)
            self._foretold(name, cost)
        most = WORTH * min(_measured(self._figures[name]) for name in self._figures if name in self._classes)
        known = sorted((self._figures[name] for name in self._averages if name in self._figures), key=_predicted)
        faster = self._first_of([f for f in known if _predicted(f) <= most])
        return [f.algorithm for f in faster[:AVERAGES_TRIED]][::-1]

    def _foretold(self, name: str, cost: Cost | None) -> None:
        """Rank 0's prediction; none of an algorithm that declares no traffic."""
        if cost is not None:
            seconds, sent = self._of_first([cost.seconds, cost.sent_bytes])
            before = self._figures.get(name, ExchangeFigures(algorithm=name))
            self._figures[name] = replace(before, predicted_seconds=seconds, predicted_bytes=sent)

    def _choose(self) -> None:
        self._use(self._saving(self._saving(EXACT, self._classes), self._averages))
        for name in [name for name in self._made if name != self.in_force]:
            self._made.pop(name).close()
        self._kept.clear()
        self._kept_of_averages.clear()
        if self._averaging is not None:
            self.chosen = True  # it has no buckets
            return
        self._seconds_of[BUCKET_BYTES] = _measured(self._figures[self.in_force])
        self._sizes_to_try = [] if self._link is None else self._sizes_worth_trying(self._link)

    def _saving(self, held: str, others: Collection[str]) -> str:
        """The fastest of those, if it saves enough of what another takes; else that one."""
        tried = [figures for figures in self._figures.values() if figures.algorithm in others]
        best = min(tried, key=_measured, default=self._figures[held])
        return best.algorithm if _measured(best) <= WORTH * _measured(self._figures[held]) else held

    def _sizes_worth_trying(self, link: Link) -> list[int]:
        """Of those that cut the model otherwise than DDP's own, and each other, the best by prediction."""
        layouts = {tuple(map(len, in_buckets(self._shapes, size))): size for size in BUCKET_SIZES}
        layouts[tuple(map(len, in_buckets(self._shapes, BUCKET_BYTES)))] = BUCKET_BYTES
        others = sorted(size for size in layouts.values() if size != BUCKET_BYTES)
        algorithm = self._classes[self.in_force]
        costs = [predict(algorithm, self._shapes, self._world, link, self._computing, size, self._device)
                 for size in others]  # fmt: skip
        told = self._of_first([float("inf") if cost is None else cost.seconds for cost in costs])
        return [size for _, size in sorted(zip(told, others, strict=True))][:SIZES_BESIDE]

    def _choose_size(self) -> None:
        kept = min(self._seconds_of, key=lambda size: self._seconds_of[size])
        if self._seconds_of[kept] > WORTH * self._seconds_of[BUCKET_BYTES]:
            kept = BUCKET_BYTES
        self._hooked.bucket_bytes = kept
        self.chosen = True
        if len(self._seconds_of) > 1:
            self._figures[self.in_force] = replace(
                self._figures[self.in_force], measured_seconds=self._seconds_of[kept], bucket_bytes=kept,
                size_trials=len(self._seconds_of) - 1,
            )  # fmt: skip

    @property
    def _size(self) -> int:
        return self._hooked.bucket_bytes or BUCKET_BYTES

    def _mean(self, value: float) -> float:
        """Over ranks, which may not all exchange as much."""
        told = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(told, group=self._group)
        return float(told) / self._world

    def _of_first(self, values: Sequence[float]) -> list[float]:
        """Rank 0's, on every rank."""
        told = torch.tensor(values, dtype=torch.float64)
        dist.broadcast(told, group=self._group, group_src=0)
        listed: list[float] = told.tolist()
        return listed


def _by_name(states: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    return {f"{name}/{key}": value for name, state in states.items() for key, value in state.items()}


def _of_each(state: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """Copies, by the algorithm."""
    each: dict[str, dict[str, Tensor]] = {}
    for key, value in state.items():
        name, _, own = key.partition("/")
        each.setdefault(name, {})[own] = value.clone()
    return each


def _predicted(figures: ExchangeFigures) -> float:
    return float("inf") if figures.predicted_seconds is None else figures.predicted_seconds


def _measured(figures: ExchangeFigures) -> float:
    return float("inf") if figures.measured_seconds is None else figures.measured_seconds


def _seconds(figures: ExchangeFigures) -> float:
    return _predicted(figures) if figures.measured_seconds is None else figures.measured_seconds
