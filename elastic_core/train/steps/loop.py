"""When a segment ends and when a checkpoint is due. Rank 0's clock decides; the step's message tells the others."""

from __future__ import annotations

import time

from elastic_core.protocol.process_groups import LaunchOrder


class SegmentClock:
    """Of one segment; a new one after a hand-over. Times are monotonic seconds."""

    def __init__(self, order: LaunchOrder) -> None:
        self._order = order
        self._checkpoints = order.spec.checkpoints
        self._started = self._saved = time.monotonic()
        self._steps = self._steps_at_save = 0

    def stepped(self) -> None:
        self._steps += 1

    def saved(self) -> None:
        """A checkpoint was written, or could not be: the next interval starts now."""
        self._saved, self._steps_at_save = time.monotonic(), self._steps

    def time_is_up(self) -> bool:
        seconds = self._order.segment_seconds
        return seconds is not None and time.monotonic() - self._started >= seconds

    def steps_are_up(self) -> bool:
        """The same on every rank, without asking."""
        return self._order.segment_steps is not None and self._steps >= self._order.segment_steps

    def checkpoint_due(self) -> bool:
        """Asked before the step counts: whether one should be saved after it."""
        seconds, steps = self._checkpoints.interval_seconds, self._checkpoints.interval_steps
        if steps is not None and self._steps + 1 - self._steps_at_save >= steps:
            return True
        return seconds is not None and time.monotonic() - self._saved >= seconds
