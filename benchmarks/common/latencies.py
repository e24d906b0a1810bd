"""How long calls took, in seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import quantiles


def seconds_of(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


def percentile(raw: Sequence[float], part: int) -> float:
    """`part` 1 to 99. Of one its own, of none infinity."""
    if len(raw) < 2:
        return max(raw, default=float("inf"))
    return quantiles(raw, n=100, method="inclusive")[part - 1]
