"""So many steps under one exchange, of which the last count: their seconds, and the bytes that came off the wire.

Of an exchange of gradients every step is like the others, and the median of a few tells. One that averages weights at
an interval costs nothing at most steps and everything at one: a whole interval counts, and its mean. An interval before
that is not counted, since an average that is not waited for is under way only after it.

Where ranks make one model in the middle of it (a checkpoint), the interval begins again, and so does the trial; a
second time it is given up: such a job would pay for the average at its checkpoints, and not once an interval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import fmean, median

from elastic_core.comm.averaging.weight_averaging import INTERVAL
from elastic_core.comm.tuning.received_bytes import received_bytes

WARM_STEPS = 2  # of a trial, not timed: DDP lays out its buckets, algorithms their buffers
TIMED_STEPS = 3
INTERVAL_TRIAL_STEPS = 2 * INTERVAL


class Trial:
    def __init__(self, intervals: bool = False, interval: int = INTERVAL) -> None:
        """`intervals`: of what averages weights at intervals, each of `interval` steps."""
        self._warm, self._timed = (interval, interval) if intervals else (WARM_STEPS, TIMED_STEPS)
        self._typical: Callable[[Sequence[float]], float] = fmean if intervals else median
        self._steps: list[tuple[float, float]] = []  # seconds, and those of them spent waiting
        self._bytes_before = 0
        self._began_again = False
        self.given_up = False

    def add(self, seconds: float, wait_seconds: float) -> bool:
        """After each of its steps: whether it is over."""
        self._steps.append((seconds, wait_seconds))
        if len(self._steps) == self._warm:
            self._bytes_before = received_bytes()
        return self.given_up or len(self._steps) == self._warm + self._timed

    def disturbed(self) -> None:
        """Ranks have made one model of what they hold, between two steps."""
        if self._steps:
            self._steps.clear()
            self.given_up, self._began_again = self._began_again, True

    @property
    def seconds(self) -> float:
        """Of a step."""
        return self._typical([seconds for seconds, _ in self._steps[self._warm :]])

    @property
    def computing(self) -> float:
        """Seconds of a step that were not spent waiting."""
        return self._typical([seconds - waited for seconds, waited in self._steps[self._warm :]])

    def received(self) -> float:
        """Bytes a step, until now."""
        return (received_bytes() - self._bytes_before) / self._timed
