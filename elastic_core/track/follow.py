"""Follows the ledger's outbox with one number: read a page, have it recorded, then acknowledge it.

A crash between recording and acknowledging brings the same page again, which adds nothing (see `Tracker.record`). So
every event reaches the tracker, but for one that it can never show, or that takes it too long again and again while it
answers all else. At most one page of events is in memory however far behind it is.
"""

from __future__ import annotations

import errno
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Event
from typing import TYPE_CHECKING

from elastic_core.crashing import crash_here
from elastic_core.errors import InfrastructureError
from elastic_core.protocol.events import MLFLOW_READER, Feed
from elastic_core.protocol.events import Event as LedgerEvent
from elastic_core.settings import Settings
from elastic_core.track.tracker import TookTooLong, Tracker

if TYPE_CHECKING:
    from elastic_core.control.plane import LedgerControl

POLL_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 20.0
MOST_TRIES = 5  # of a page that takes the tracker too long, before its events are tried one by one
MOST_PASSED_OVER = 3  # events of one job that took too long, before none of the job is tried any more
_RUN_OUT = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EIO)
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """How far a reader is behind. `events` stops counting at the limit asked for."""

    position: int
    events: int
    oldest_at: float | None  # when the oldest event not yet acknowledged happened, Unix seconds

    def seconds(self, now: float) -> float:
        return 0.0 if self.oldest_at is None else max(0.0, now - self.oldest_at)


@dataclass(frozen=True, slots=True)
class Follower:
    feed: Feed
    tracker: Tracker
    reader: str = MLFLOW_READER
    page: int = 500
    _tries: Counter[int] = field(default_factory=Counter, init=False)  # that took too long, by the first position
    _slow: Counter[str] = field(default_factory=Counter, init=False)  # events passed over for that, by job

    def step(self) -> int:
        """Record and acknowledge the next page; its number of events, 0 when there is nothing new.

        Raises `InfrastructureError` when the tracker is away: nothing is acknowledged, ask again later.
        """
        events = self.feed.events(self.feed.position(self.reader), self.page)
        if events:
            self._record(events)
            crash_here("page.recorded")
            self.feed.acknowledge(self.reader, events[-1].position)
        return len(events)

    def _record(self, events: Sequence[LedgerEvent]) -> None:
        """Jobs' own code tells of what is in them: one that cannot be shown is passed over, and holds up no other."""
        shown = [event for event in events if self._slow[event.job_id] < MOST_PASSED_OVER]
        try:
            self._take(shown)
            self._tries.clear()
            return
        except TookTooLong:
            self._tries[events[0].position] += 1
            if self._tries[events[0].position] < MOST_TRIES:
                raise
            log.warning("a page of %d events took too long %d times, so one by one", len(shown), MOST_TRIES)
        except InfrastructureError:
            raise
        except Exception:
            log.warning("a page of %d events cannot be shown as a whole, so one by one", len(shown), exc_info=True)
        for event in shown:
            self._record_alone(event)
        self._tries.clear()

    def _record_alone(self, event: LedgerEvent) -> None:
        if self._slow[event.job_id] >= MOST_PASSED_OVER:
            return
        try:
            self._take_if_answered(event)
        except InfrastructureError:
            raise
        except Exception:
            log.exception("event %d (%s of job %s) is not shown", event.position, event.kind, event.job_id)

    def _take_if_answered(self, event: LedgerEvent) -> None:
        """One that takes too long twice, while the tracker takes something small of the same job before and behind it,
        is passed over. A tracker that is slow at everything is waited for."""
        try:
            return self._take([event])
        except TookTooLong:
            if not self.tracker.answers(event):
                raise
        try:
            self._take([event])
        except TookTooLong as error:
            if not self.tracker.answers(event):
                raise
            self._slow[event.job_id] += 1
            what = f"event {event.position} ({event.kind} of job {event.job_id})"
            log.error("%s is not shown, since it took too long, alone and twice: %s", what, error)
            if self._slow[event.job_id] == MOST_PASSED_OVER:
                log.error("nothing more of job %s is shown until this service is started anew", event.job_id)

    def _take(self, events: Sequence[LedgerEvent]) -> None:
        """Raises `InfrastructureError` for what is this machine's fault, and no event's."""
        if not events:
            return
        try:
            self.tracker.record(events)
        except (OSError, MemoryError) as error:
            if not _passes(error):
                raise
            raise InfrastructureError(f"this machine could not show events ({error!r}). It is tried again.") from error

    def catch_up(self) -> int:
        """Step until nothing is left; the number of events recorded."""
        total = 0
        while count := self.step():
            total += count
        return total


def _passes(error: OSError | MemoryError) -> bool:
    """Whether it may be over when it is tried again. A path that nobody may write to is as bad as before."""
    return isinstance(error, (MemoryError, ConnectionError, TimeoutError)) or error.errno in _RUN_OUT


def lag(feed: Feed, reader: str = MLFLOW_READER, limit: int = 10_000) -> Lag:
    """How far `reader` is behind, counting at most about `limit` events."""
    position = after = feed.position(reader)
    oldest_at, count = None, 0
    while count < limit and (events := feed.events(after)):
        oldest_at = events[0].at if oldest_at is None else oldest_at
        count, after = count + len(events), events[-1].position
    return Lag(position=position, events=count, oldest_at=oldest_at)


def serve(follower: Follower, stop: Event, poll_seconds: float = POLL_SECONDS) -> None:
    """Follow until `stop` is set. Faults of what takes the events and of the ledger are waited out."""
    wait = poll_seconds
    while not stop.is_set():
        try:
            count = follower.step()
        except InfrastructureError as error:
            log.warning("nothing is lost; next try in %.0f s: %s", wait, error)
            stop.wait(wait)
            wait = min(2 * wait, LONGEST_WAIT_SECONDS)
        else:
            wait = poll_seconds
            if not count:
                stop.wait(poll_seconds)


def open_when_there(settings: Settings, stop: Event) -> LedgerControl | None:
    """The ledger, once it can be opened; None when `stop` came first."""
    from elastic_core.control.plane import open_control  # loads the policies, which commands that ask do not need

    while not stop.is_set():
        try:
            return open_control(settings)
        except InfrastructureError as error:
            log.warning("waiting for the ledger: %s", error)
            stop.wait(POLL_SECONDS)
    return None
