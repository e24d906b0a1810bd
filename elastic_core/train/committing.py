"""Rank 0's commits: made until an answer comes or the lease is about to end; interval ones in the background.

A commit whose answer is lost may have happened. It is sent again, unchanged, until its fate is known, and nothing
is committed after it before that: else samples would be accounted for twice.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from elastic_core.control.contract import Commit, CommitAnswer, Directive, TrainerControl
from elastic_core.crashing import crash_here
from elastic_core.errors import ElasticError, Fenced, InfrastructureError, Unauthorized
from elastic_core.train.exits import Stopped
from elastic_core.train.heartbeat import Heart, Wish, Wishes

_RETRY_SECONDS = 0.5
_FLUSH_SECONDS = 2.0


class Committer:
    def __init__(self, heart: Heart, wishes: Wishes, committed: Callable[[Commit], None] | None = None) -> None:
        """`committed` hears of every commit that has happened, and raises nothing."""
        self._heart = heart
        self._committed = committed
        self._wishes = wishes
        self._background: threading.Thread | None = None
        self._failed: ElasticError | None = None

    @property
    def busy(self) -> bool:
        """An interval commit is still without an answer."""
        return self._background is not None and self._background.is_alive()

    def start(self, commit: Commit) -> None:
        """Send an interval commit while training goes on."""
        self._settle()
        self._background = threading.Thread(target=self._run, args=(commit,), name="commit", daemon=True)
        self._background.start()

    def finish(self, commit: Commit) -> tuple[CommitAnswer, float]:
        """Send a final commit; its answer, and when it was sent (monotonic). Raises `Stopped` or `Fenced`.

        What was observed under its epoch goes first: afterwards that may say nothing more.
        """
        self._settle()
        self._heart.flush(_FLUSH_SECONDS)
        self._heart.settle(True)
        commit = replace(commit, ready=self._heart.ready())
        sent = time.monotonic()
        try:
            return self._until_answered(commit), sent
        except InfrastructureError:
            self._heart.settle(False)
            raise

    def _run(self, commit: Commit) -> None:
        try:
            answer = self._until_answered(commit)
        except (Fenced, Stopped) as error:
            self._failed = error
            self._wishes.want(Wish.STOP, str(error))
        except ElasticError as error:
            self._failed = error
            print(f"elastic: the checkpoint of step {commit.step} was refused: {error}", file=sys.stderr, flush=True)
        else:
            if answer.directive is Directive.BOUNDARY:
                self._wishes.want(Wish.BOUNDARY, answer.reason)

    def _settle(self) -> None:
        """Wait for an interval commit to be answered, and raise what came of it."""
        if self._background is not None:
            self._background.join()
            self._background = None
        if self._failed is not None:
            raise self._failed

    def _until_answered(self, commit: Commit) -> CommitAnswer:
        trainer: TrainerControl = self._heart.trainer
        while True:
            try:
                crash_here("commit.unsent")
                answer = trainer.commit(commit)
                crash_here("commit.unheard")
                if self._committed is not None:
                    self._committed(commit)
                return answer
            except (InfrastructureError, Unauthorized) as error:
                wish, reason = self._wishes.current
                if wish is Wish.STOP:
                    raise Stopped(f"The checkpoint of step {commit.step} is not committed: {reason}") from error
                time.sleep(_RETRY_SECONDS)
                trainer = self._heart.trainer  # its token may have been renewed
