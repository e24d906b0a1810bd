"""At which prices of the accelerator mixing wins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

HOUR = 3600.0


@dataclass(frozen=True, slots=True)
class Measured:
    """`cpus`, `accelerators`: slots held; `throughput`, `predicted`: samples a second; `rate`: money an hour."""

    name: str
    stages: str
    cpus: int
    accelerators: int
    predicted: float
    throughput: float
    rate: float

    @property
    def ratio(self) -> float:
        return self.throughput / self.predicted

    @property
    def samples_per_unit(self) -> float:
        """Samples for one unit of money."""
        return self.throughput * HOUR / self.rate


def price_range(mixed: Measured, rivals: Sequence[Measured]) -> tuple[float, float]:
    """The accelerator's prices, in processors', between which a sample costs less in `mixed` than in any rival, the
    slots and throughputs of all as they were measured. Low above high: nowhere."""
    low, high = 0.0, inf
    for rival in rivals:
        # (m.cpus + m.accelerators r) / m.throughput < (o.cpus + o.accelerators r) / o.throughput
        more = mixed.accelerators / mixed.throughput - rival.accelerators / rival.throughput
        less = rival.cpus / rival.throughput - mixed.cpus / mixed.throughput
        if more > 0:
            high = min(high, less / more)
        elif more < 0:
            low = max(low, less / more)
        elif less <= 0:
            high = -inf
    return low, high
