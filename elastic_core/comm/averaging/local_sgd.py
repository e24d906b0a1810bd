"""Local SGD: every so many steps the exact average of weights (Stich 2019, arXiv 1805.09767).

With an interval of 1 and an optimizer that is linear in its gradients (SGD, with momentum too) it computes what the
exact sum of gradients does. A weight that is not finite on one rank is so on all after the next average.
"""

from __future__ import annotations

from typing import ClassVar

from elastic_core.comm.averaging.ordered_mean import average
from elastic_core.comm.averaging.weight_averaging import WeightAveraging


class LocalSgd(WeightAveraging):
    name: ClassVar[str] = "local_sgd"

    def _begin(self) -> None:
        self._steps = 0

    def _stepped(self) -> None:
        self._steps += 1
        if self._world > 1 and self._steps % self._interval == 0:
            average(self._weights(), self._group, self._hierarchy)
