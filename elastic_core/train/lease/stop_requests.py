"""What the world outside asks of the ranks: to reach a boundary, to leave after one, to stop. The strongest wins.

Set by the heartbeat, by commits and by signal handlers; read once a step by `steps.segments`, whose message makes all
ranks obey after the same step.
"""

from __future__ import annotations

from enum import IntEnum


class StopRequest(IntEnum):
    """Ordered by strength."""

    NONE = 0
    BOUNDARY = 1  # commit, and stop unless the lease passes on
    LEAVE = 2  # commit and stop
    STOP = 3  # stop without a commit


class StopRequests:
    """The strongest request so far, and why. Safe to set from threads and from signal handlers."""

    def __init__(self) -> None:
        self._current: tuple[StopRequest, str] = (StopRequest.NONE, "")

    def request(self, stop_request: StopRequest, reason: str) -> None:
        # No lock: a signal handler may interrupt its owner. At worst one of two equal reasons is lost.
        if stop_request > self._current[0]:
            self._current = (stop_request, reason)

    def clear_boundary(self) -> None:
        """A boundary was reached; a request to leave or to stop stays."""
        if self._current[0] is StopRequest.BOUNDARY:
            self._current = (StopRequest.NONE, "")

    @property
    def current(self) -> tuple[StopRequest, str]:
        return self._current
