"""Pauses between attempts, drawn from a generator of their own, and what is done once in a while.

Python's global one is part of a training job's state: a store or an API that was away for a moment must not change what
the job computes.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

from tenacity import RetryCallState

_random = random.Random()


def growing(first: float, longest: float) -> Callable[[RetryCallState], float]:
    """Twice as long after each attempt, from `first` to `longest` seconds; each at random up to a half shorter."""
    return lambda state: _random.uniform(0.5, 1.0) * min(longest, first * 2 ** (state.attempt_number - 1))


def claim_turn(stamp: Path, now: float, every_seconds: float) -> bool:
    """Whether what is done once in so many seconds is due, and the caller's to do: until then it is nobody's.

    `stamp`: the file that keeps, as its time, when it was claimed last. Later than `now`, it counts as none: the clock
    was ahead. Raises `OSError` where it cannot be kept.
    """
    if stamp.exists() and 0 <= now - stamp.stat().st_mtime < every_seconds:
        return False
    stamp.touch()
    return True
