"""Weights averaged around a ring, in differences of a byte a value (Tang et al. 2018, arXiv 1803.06443, algorithm 1; as
BAGUA's low-precision decentralized SGD, Gan et al., VLDB 2022).

Every rank keeps X, which its weights are after every step, and L and R, its neighbours' X. After a step that has made
t of the weights

    z = t + L/3 + R/3 - 5 X/3,  X += Q(z),  L += Q(its z),  R += Q(its z),  weights = X

where Q is a parameter's values in MinMaxUInt8, and of each z the ring's neighbours get the same bytes that the rank
itself decodes: so L and R are what the neighbours hold, bit for bit, and what a byte loses is in the next difference.
Two ranks are each other's neighbour on both sides, and send once. Not overlapped with the next step, which begins with
X. A value that is not finite makes its parameter so on the neighbours, and on one more on each side at every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from elastic_core.comm.averaging.ordered_mean import flattened, put_back
from elastic_core.comm.averaging.weight_averaging import INTERVAL, WeightAveraging
from elastic_core.comm.minmax_uint8 import MinMaxUInt8, message_bytes
from elastic_core.comm.piecewise import swap
from elastic_core.comm.traffic import Traffic


class LowPrecisionDecentralized(WeightAveraging):
    name: ClassVar[str] = "low_precision_decentralized"
    at_intervals: ClassVar[bool] = False

    @classmethod
    def traffic(cls, shapes: Sequence[torch.Size], world: int) -> Traffic:
        whole = sum(message_bytes(shape.numel()) for shape in shapes)
        return Traffic(whole * min(2, world - 1), 1)

    @classmethod
    def rehearse(cls, values: Tensor) -> None:
        """Its own replica and one neighbour's, as with two ranks."""
        codec, message = MinMaxUInt8(), torch.empty(message_bytes(values.numel()), dtype=torch.uint8)
        codec.encode(flattened([values]).add_(values).add_(values), message)
        codec.add(message, values)
        codec.add(message, values)

    def __init__(self, group: dist.ProcessGroup | None = None, interval: int = INTERVAL) -> None:
        super().__init__(group, interval)
        self._codec = MinMaxUInt8()
        self._neighbours = sorted({(self._rank - 1) % self._world, (self._rank + 1) % self._world})

    def _begin(self) -> None:
        """All replicas are the weights that all hold: (N), in single precision."""
        if self._world == 1:
            return
        self._own = flattened(self._weights()).float()
        self._theirs = {peer: self._own.clone() for peer in self._neighbours}
        self._sizes = [weight.numel() for weight in self._weights()]
        size = sum(message_bytes(values) for values in self._sizes)
        self._message = torch.empty(size, dtype=torch.uint8)
        self._received = {peer: torch.empty_like(self._message) for peer in self._neighbours}

    def _stepped(self) -> None:
        if self._world == 1:
            return
        difference = flattened(self._weights()).float().add_(self._own, alpha=-5 / 3)
        for theirs in self._theirs.values():
            difference.add_(theirs, alpha=2 / 3 / len(self._theirs))
        for values, message in self._parts(difference, self._message):
            self._codec.encode(values, message)
        swap(dict.fromkeys(self._neighbours, self._message), self._received, self._group)
        replicas = [(self._message, self._own), *((self._received[p], self._theirs[p]) for p in self._neighbours)]
        for whole, replica in replicas:
            for values, message in self._parts(replica, whole):
                self._codec.add(message, values)
        put_back(self._own, self._weights())

    def _parts(self, values: Tensor, message: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Of each parameter its values and its message; of empty ones nothing."""
        messages = torch.split(message, [message_bytes(size) for size in self._sizes])
        both = zip(torch.split(values, self._sizes), messages, strict=True)
        return [(part, of_part) for part, of_part in both if part.numel()]
