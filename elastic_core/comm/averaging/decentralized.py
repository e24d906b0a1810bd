"""Weights averaged with one peer a step, while the next step's gradients are computed (Lian et al. 2017, arXiv
1705.09056; in pairs and overlapped as in BAGUA, Gan et al., VLDB 2022).

After a step every rank sends its weights to its peer of that step; before the next one the mean of both takes the place
of its own, and the gradients that were computed meanwhile, of the weights before, are applied to it. The mean over all
ranks is that of their own steps.

The peer of rank r at step t is (2t + 1 - r) mod W: in even worlds each even rank meets each odd one in turn (BAGUA's
shift-one), in odd worlds everybody meets everybody, and who would meet himself rests. A weight that is not finite
spreads in pairs, and to all where ranks settle.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from elastic_core.comm.averaging.exchange_thread import ExchangeThread
from elastic_core.comm.averaging.ordered_mean import add_to, average_flat, flattened, traffic_of_average
from elastic_core.comm.averaging.weight_averaging import INTERVAL, WeightAveraging
from elastic_core.comm.piecewise import swap
from elastic_core.comm.traffic import Traffic


def peer_of(rank: int, step: int, world: int) -> int:
    """Whom a rank averages with after a step, counted from 0; itself, if it rests."""
    return (2 * step + 1 - rank) % world


class Decentralized(WeightAveraging):
    name: ClassVar[str] = "decentralized"
    overlaps: ClassVar[bool] = True
    at_intervals: ClassVar[bool] = False
    hidden_steps: ClassVar[int | None] = 1

    def __init__(self, group: dist.ProcessGroup | None = None, interval: int = INTERVAL) -> None:
        super().__init__(group, interval)
        self._thread = ExchangeThread[Tensor](f"comm-{self.name}")
        self._steps = 0

    @classmethod
    def traffic(cls, shapes: Sequence[torch.Size], world: int) -> Traffic:
        """Of an odd number of ranks one rests."""
        whole = 4.0 * sum(shape.numel() for shape in shapes)
        return Traffic(whole if world % 2 == 0 else whole * (world - 1) / world, 1)

    @classmethod
    def rehearse(cls, values: Tensor) -> None:
        add_to([values], flattened([values]).sub_(values).div_(2))

    def close(self) -> None:
        super().close()
        self._thread.close()

    def _begin(self) -> None:
        self._steps = 0

    def _before_step(self) -> None:
        if self._thread.under_way:
            add_to(self._weights(), self._thread.take())

    def _stepped(self) -> None:
        step, weights = self._steps, flattened(self._weights())
        self._steps += 1
        if self._world > 1:
            self._thread.start(lambda: self._difference(weights, step))

    def _end(self) -> None:
        """All are averaged next: what pairs have averaged is part of that."""
        if self._thread.under_way:
            self._thread.take()

    def _difference(self, weights: Tensor, step: int) -> Tensor:
        """From a rank's own weights to the mean of them and its peer's. On the exchange's thread."""
        peer = peer_of(self._rank, step, self._world)
        if peer == self._rank:
            return torch.zeros_like(weights)
        theirs = torch.empty_like(weights)
        swap({peer: weights}, {peer: theirs}, self._group)
        return theirs.sub_(weights).div_(2)


class DecentralizedAll(Decentralized):
    """With all ranks instead of one peer, overlapped all the same."""

    name: ClassVar[str] = "decentralized_all"

    @classmethod
    def traffic(cls, shapes: Sequence[torch.Size], world: int) -> Traffic:
        return traffic_of_average(sum(shape.numel() for shape in shapes), world)

    def _difference(self, weights: Tensor, step: int) -> Tensor:  # noqa: ARG002 - all steps are alike
        mean = weights.clone()
        average_flat(mean, self._group, self._hierarchy)
        return mean.sub_(weights)
