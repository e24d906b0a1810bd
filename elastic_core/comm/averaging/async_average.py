"""Weights averaged beside training, without waiting for it (BAGUA's asynchronous model average, Gan et al., VLDB 2022).

Every so many steps a rank hands a copy of its weights to a thread, which averages it with the others' copies, whenever
those were taken. Between two later steps the difference that this made is added to the weights, which have moved on:
the mean over ranks is what it would be without, since the differences add up to nothing.

Ranks agree on every round at its beginning: each says whether it wants it, and there is none unless all do. A rank that
settles ends the round that it has begun, and refuses the next; who hears of a refusal begins no round until it has
settled too. So all of them stop before the same round, and none waits for another. After that they go on.

Which step a difference is added at depends on time: no run gives the bits of another. A weight that is not finite is
so on every rank after the next round, or where ranks settle.
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
from elastic_core.comm.traffic import Traffic


class AsyncAverage(WeightAveraging):
    name: ClassVar[str] = "async_average"
    overlaps: ClassVar[bool] = True
    hidden_steps: ClassVar[int | None] = None

    def __init__(self, group: dist.ProcessGroup | None = None, interval: int = INTERVAL) -> None:
        super().__init__(group, interval)
        self._thread = ExchangeThread[Tensor | None](f"comm-{self.name}")
        self._steps, self._refused = 0, False

    @classmethod
    def traffic(cls, shapes: Sequence[torch.Size], world: int) -> Traffic:
        """Of a round: who wants it, and the average."""
        return traffic_of_average(sum(shape.numel() for shape in shapes), world) + Traffic(world - 1, 1)

    def close(self) -> None:
        super().close()
        self._thread.close()

    def _begin(self) -> None:
        self._steps, self._refused = 0, False

    def _before_step(self) -> None:
        if self._thread.done:
            self._take()

    def _stepped(self) -> None:
        self._steps += 1
        if self._world == 1 or self._steps % self._interval or self._refused or self._thread.under_way:
            return
        weights = flattened(self._weights())
        self._thread.start(lambda: self._round(weights))

    def _end(self) -> None:
        while self._world > 1 and not self._refused:
            if not self._thread.under_way:
                self._thread.start(lambda: self._round(None))
            self._take()

    def _take(self) -> None:
        """Add what the round under way has made, if nobody has refused it."""
        difference = self._thread.take()
        if difference is None:
            self._refused = True
        else:
            add_to(self._weights(), difference)

    def _round(self, weights: Tensor | None) -> Tensor | None:
        """From a rank's weights to the mean over ranks; None where a rank wanted no round (None). On the thread."""
        wanted = torch.tensor([weights is not None])
        all_ranks = torch.empty(self._world, dtype=torch.bool)
        dist.all_gather_single(all_ranks, wanted, group=self._group)
        if weights is None or not bool(all_ranks.all()):
            return None
        mean = weights.clone()
        average_flat(mean, self._group)
        return mean.sub_(weights)
