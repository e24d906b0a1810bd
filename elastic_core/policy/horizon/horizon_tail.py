"""`horizon` for who feels the tail: the time that a job will have been here weighs by a higher power.

It trades mean completion time for the last percentile; the figures are in decision 0036. The objective is the norm of
the completion times with power 1 + `HEAVY_TAIL` (Bansal and Pruhs 2003), where `horizon` has 1.2.
"""

from __future__ import annotations

from typing import ClassVar

from elastic_core.policy.horizon.horizon import Horizon

HEAVY_TAIL = 0.4


class HorizonTail(Horizon):
    name: ClassVar[str] = "horizon_tail"
    tail: ClassVar[float] = HEAVY_TAIL
