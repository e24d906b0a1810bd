"""Pauses between attempts, drawn from a generator of their own.

Python's global one is part of a training job's state: a store or an API that was away for a moment must not change what
the job computes.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from tenacity import RetryCallState

_random = random.Random()


def growing(first: float, longest: float) -> Callable[[RetryCallState], float]:
    """Twice as long after each attempt, from `first` to `longest` seconds; each at random up to a half shorter."""
    return lambda state: _random.uniform(0.5, 1.0) * min(longest, first * 2 ** (state.attempt_number - 1))
