"""Rank 0's commits: sent until an answer comes or the lease is about to end; those of interval checkpoints in a thread.

A commit whose answer is lost may have happened. It is sent again, unchanged, until its fate is known, and nothing
is committed after it before that: else samples would be accounted for twice.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from elastic_core.crashing import crash_here
from elastic_core.errors import ElasticError, Fenced, InfrastructureError, Unauthorized
from elastic_core.host.exits import Stopped
from elastic_core.protocol.trainer import Commit, CommitAnswer, Directive
from elastic_core.train.lease.control_link import ControlLink
from elastic_core.train.lease.stop_requests import StopRequest, StopRequests

_RETRY_SECONDS = 0.5
_FLUSH_SECONDS = 2.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answered:
    """What came of a commit that ends a segment. Tokens in it are rank 0's only."""

    answer: CommitAnswer
    sent: float  # when the commit was sent, monotonic; on other ranks than the first a moment before that


class Committer:
    """`on_committed` hears of every commit that has happened, and raises nothing."""

    def __init__(
        self, control_link: ControlLink, stop_requests: StopRequests, on_committed: Callable[[Commit], None]
    ) -> None:
        self._link = control_link
        self._stop_requests = stop_requests
        self._on_committed = on_committed
        self._thread: threading.Thread | None = None
        self._error: ElasticError | None = None

    @property
    def busy(self) -> bool:
        """An interval commit is still without an answer."""
        return self._thread is not None and self._thread.is_alive()

    def send_interval(self, commit: Commit) -> None:
        """Send an interval commit while training goes on."""
        self._await_interval_commit()
        self._thread = threading.Thread(target=self._run, args=(commit,), name="commit", daemon=True)
        self._thread.start()

    def send_final(self, commit: Commit) -> Answered:
        """Send a commit that ends its segment, and wait for the answer. Raises `Stopped` or `Fenced`.

        What was observed under its epoch goes first: afterwards that may say nothing more.
        """
        self._await_interval_commit()
        self._link.observations.flush(_FLUSH_SECONDS)
        self._link.heartbeat.expect_fencing(True)
        commit = replace(commit, ready=self._link.ready_slots())
        sent = time.monotonic()
        try:
            return Answered(self._send_until_answered(commit), sent)
        except InfrastructureError:
            self._link.heartbeat.expect_fencing(False)
            raise

    def _run(self, commit: Commit) -> None:
        try:
            answer = self._send_until_answered(commit)
        except (Fenced, Stopped) as error:
            self._error = error
            self._stop_requests.request(StopRequest.STOP, str(error))
        except ElasticError as error:
            self._error = error
            _log.error("the checkpoint of step %d was refused: %s", commit.step, error)
        else:
            if answer.directive is Directive.BOUNDARY:
                self._stop_requests.request(StopRequest.BOUNDARY, answer.reason)

    def _await_interval_commit(self) -> None:
        """Wait for an interval commit to be answered, and raise what came of it."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            raise self._error

    def _send_until_answered(self, commit: Commit) -> CommitAnswer:
        trainer = self._link.heartbeat.trainer
        while True:
            try:
                crash_here("commit.unsent")
                answer = trainer.commit(commit)
                crash_here("commit.unheard")
                self._on_committed(commit)
                return answer
            except (InfrastructureError, Unauthorized) as error:
                stop_request, reason = self._stop_requests.current
                if stop_request is StopRequest.STOP:
                    raise Stopped(f"The checkpoint of step {commit.step} is not committed: {reason}") from error
                time.sleep(_RETRY_SECONDS)
                trainer = self._link.heartbeat.trainer  # its token may have been renewed
