"""A training loop that stands still ends its process, and says where it stood.

Heartbeats come from a thread of rank 0 and go on while the loop waits for ever: for a lock, a file system, a device.
Without a watch such a job holds its slots until somebody looks. So each rank counts how long its loop has made no step,
which includes what lies between two: evaluation, and the checkpoint of a boundary. Counting begins with the first step;
before it a task may download and compile as long as it likes.

Time is counted in wake-ups of the watch, each worth at most twice its interval: a process that was stopped, or whose
machine slept, has not been hanging.
"""

from __future__ import annotations

import faulthandler
import logging
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from io import UnsupportedOperation

LOOKS = 60  # at the clock, in the time after which a loop hangs
MOST_SECONDS_BETWEEN_LOOKS = 5.0
_log = logging.getLogger(__name__)


class HangWatch:
    """Of one session of one rank."""

    def __init__(
        self, seconds: float, on_hang: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`seconds` without a step are a hang; 0: nothing is. `on_hang` is called from a thread, once, with words for
        people, after the stacks of all threads were written to standard error. It may end the process."""
        self._seconds = seconds
        self._on_hang = on_hang
        self._clock = clock
        self._interval = min(seconds / LOOKS, MOST_SECONDS_BETWEEN_LOOKS)
        self._steps = 0
        self._closed = threading.Event()

    def stepped(self) -> None:
        """A step was made, and all that came after it."""
        self._steps += 1
        if self._steps == 1 and self._seconds > 0:
            threading.Thread(target=self._watch, name="hang-watch", daemon=True).start()

    def close(self) -> None:
        self._closed.set()

    def _watch(self) -> None:
        steps, still, looked = self._steps, 0.0, self._clock()
        while not self._closed.wait(self._interval):
            now = self._clock()
            still += min(now - looked, 2 * self._interval)
            looked = now
            if self._steps != steps:
                steps, still = self._steps, 0.0
            elif still > self._seconds:
                self._tell(still)
                return

    def _tell(self, still: float) -> None:
        _log.error("no step was made for %.0f s; this is where each thread stands, the last call first:", still)
        with suppress(UnsupportedOperation):  # a stream that is no file, under a debugger or a test
            faulthandler.dump_traceback(sys.stderr, all_threads=True)
        self._on_hang(
            f"The training loop made no step for {still:.0f} s (ELASTIC_HANG_SECONDS is {self._seconds:g}): it hangs, "
            "or what it does between two steps takes longer. Its log says where each thread stood."
        )
