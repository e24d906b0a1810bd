"""DiLoCo: an outer optimizer over what ranks have learnt by themselves (Douillard et al. 2023, arXiv 2311.08105).

Each rank's own optimizer moves its weights away from the anchors, which are alike on all ranks. At its turn a
parameter's mean distance from its anchor is taken for a gradient: SGD with Nesterov momentum moves the anchor, and the
weights begin again from it. Anchors and momenta are alike on all ranks, and go through checkpoints and resizes.

Parameters are in fragments whose turns are spread over the interval, and distances travel in one byte a value by
`ByteGrad` (Streaming DiLoCo, Douillard et al. 2025, arXiv 2501.18512, which uses four bits): the peak of the exchange
is a fragment's. A turn is waited for: it does not overlap with the next steps, as it may in that paper.

Rate and momentum are the papers'. Where progress is steady, they make weights move rate / (1 - momentum) = 7 times as
far as the inner steps; a rate that was tuned for the exact sum may be too high.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
import torch.distributed as dist
from torch import Tensor

from elastic_core.comm.averaging.weight_averaging import INTERVAL, WeightAveraging
from elastic_core.comm.bytegrad import ByteGrad
from elastic_core.comm.hierarchy import Hierarchy
from elastic_core.comm.minmax_uint8 import message_bytes
from elastic_core.comm.traffic import Traffic, swapped_chunks

RATE, MOMENTUM = 0.7, 0.9
FRAGMENTS = 4
_ANCHOR, _MOMENTUM, _STEPS = "anchor/", "momentum/", "steps"


class DiLoCo(WeightAveraging):
    name: ClassVar[str] = "diloco"

    @classmethod
    def traffic(cls, shapes: Sequence[torch.Size], world: int) -> Traffic:
        """Of all fragments' turns."""
        sizes = {str(i): shape.numel() for i, shape in enumerate(shapes)}
        each = [sum(sizes[name] for name in names) for names in fragments(sizes, FRAGMENTS)]
        return sum((swapped_chunks(message_bytes(values), world) for values in each), Traffic(0.0, 0))

    @classmethod
    def rehearse(cls, values: Tensor) -> None:
        mean, momentum = values - values, torch.zeros_like(values)
        ByteGrad.rehearse(mean)
        momentum.mul_(MOMENTUM).add_(mean)
        values.sub_(mean.add(momentum, alpha=MOMENTUM), alpha=RATE)

    def __init__(self, group: dist.ProcessGroup | None = None, interval: int = INTERVAL) -> None:
        super().__init__(group, interval)
        self._in_bytes = ByteGrad(group) if self._world > 1 else None
        self._anchors: dict[str, Tensor] = {}  # single precision at least, as the momenta
        self._momenta: dict[str, Tensor] = {}
        self._steps = 0

    def within(self, hierarchy: Hierarchy) -> None:
        super().within(hierarchy)
        if self._in_bytes is not None:
            self._in_bytes.within(hierarchy)

    def state_dict(self) -> dict[str, Tensor]:
        anchors = {_ANCHOR + name: anchor for name, anchor in self._anchors.items()}
        momenta = {_MOMENTUM + name: momentum for name, momentum in self._momenta.items()}
        return {**anchors, **momenta, _STEPS: torch.tensor(self._steps)}

    @classmethod
    def lasting(cls, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The outer momenta: of anchors that other exchanges have moved the weights from, none is one."""
        return {name: value for name, value in state.items() if name.startswith(_MOMENTUM)}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Without state, and of what is `lasting`, the weights at hand are the anchors, and an interval begins."""
        if not state:
            return
        for name, momentum in self._momenta.items():
            momentum.copy_(state[_MOMENTUM + name])
        if _STEPS in state:
            for name, anchor in self._anchors.items():
                anchor.copy_(state[_ANCHOR + name])
            self._steps = int(state[_STEPS])

    def _begin(self) -> None:
        """Settled weights are no anchors: an interval that a checkpoint falls into goes on after it."""
        if self._anchors:
            return
        for name, weight in self._parameters.items():
            dtype = torch.promote_types(weight.dtype, torch.float32)
            self._anchors[name] = weight.detach().to(dtype, copy=True)
            self._momenta[name] = torch.zeros_like(self._anchors[name])
        sizes = {name: weight.numel() for name, weight in self._parameters.items()}
        self._fragments = fragments(sizes, min(FRAGMENTS, self._interval))

    def _stepped(self) -> None:
        self._steps += 1
        count = len(self._fragments)
        for i, names in enumerate(self._fragments, 1):
            if (self._steps - i * self._interval // count) % self._interval == 0:
                self._turn(names)

    def _turn(self, names: Sequence[str]) -> None:
        """An outer step of some parameters."""
        distances = [self._anchors[name] - self._parameters[name].detach() for name in names]
        mean = torch.cat([distance.reshape(-1) for distance in distances])
        if self._in_bytes is not None:
            mean = self._in_bytes.sum(mean).div_(self._world)
        for name, distance in zip(names, torch.split(mean, [d.numel() for d in distances]), strict=True):
            anchor, momentum = self._anchors[name], self._momenta[name]
            gradient = distance.view_as(anchor)
            momentum.mul_(MOMENTUM).add_(gradient)
            anchor.sub_(gradient.add(momentum, alpha=MOMENTUM), alpha=RATE)
            self._parameters[name].detach().copy_(anchor)


def fragments(sizes: Mapping[str, int], count: int) -> list[list[str]]:
    """Neighbours together, in at most `count` fragments of about the same number of values; none is empty."""
    total, before = sum(sizes.values()), 0
    found: list[list[str]] = [[] for _ in range(count)]
    for name, size in sizes.items():
        middle = 2 * before + size  # in halves of a value
        found[min(count - 1, middle * count // max(1, 2 * total))].append(name)
        before += size
    return [fragment for fragment in found if fragment]
