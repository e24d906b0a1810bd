"""Local SGD: every so many steps the exact average of weights (Stich 2019, arXiv 1805.09767).

With an interval of 1 and an optimizer that is linear in its gradients (SGD, with momentum too) it computes what the
exact sum of gradients does. A weight that is not finite on one rank is so on all after the next average.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import torch

from elastic_core.comm.averaging.ordered_mean import average, runs_of, traffic_of_average
from elastic_core.comm.averaging.weight_averaging import WeightAveraging
from elastic_core.comm.traffic import Traffic


class LocalSgd(WeightAveraging):
    name: ClassVar[str] = "local_sgd"

    @classmethod
    def traffic(cls, shapes: Sequence[torch.Size], world: int) -> Traffic:
        values = sum(shape.numel() for shape in shapes)
        return traffic_of_average(values, world, runs_of(values))

    def _begin(self) -> None:
        self._steps = 0

    def _stepped(self) -> None:
        self._steps += 1
        if self._world > 1 and self._steps % self._interval == 0:
            average(self._weights(), self._group, self._hierarchy)
