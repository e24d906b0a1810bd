"""`elastic jobs logs`: what a job prints, live, over all its attempts.

Asks the launcher (`launch.job_logs`): 'local' reads this host's files, 'ray' asks the nodes' agents. One that follows a
job outlives a node that is lost: it goes on with the attempt that comes after.
"""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import Annotated

import typer

from elastic_core.commands.opening import JobId, open_api
from elastic_core.commands.printing import Words
from elastic_core.domain import JobState
from elastic_core.errors import InfrastructureError, NotFound
from elastic_core.launch.job_logs import read_job_log
from elastic_core.launch.launcher import Launcher
from elastic_core.launch.launchers import chosen
from elastic_core.protocol.http_client import HttpControl
from elastic_core.protocol.rest.answers import JobLog
from elastic_core.settings import Settings
from elastic_core.text import printable

POLL_SECONDS = 0.5
SILENT_SECONDS = 10.0  # that who does not answer is asked for the last lines of an attempt that has ended
_err = Words(stderr=True, highlight=False, soft_wrap=True)


def logs(
    job: JobId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="go on until the job is over")] = False,
    rank: Annotated[int, typer.Option(min=0, help="the worker whose output it is")] = 0,
    attempt: Annotated[
        int | None, typer.Option(min=1, help="the how many-th start of processes; the last one when absent")
    ] = None,
    tail: Annotated[int, typer.Option(min=0, help="lines of the end to begin with")] = 200,
    everything: Annotated[bool, typer.Option("--all", help="begin at the attempt's first line")] = False,
) -> None:
    """What a worker of the job prints, its traceback included. Notes on attempts go to standard error."""
    api, settings = open_api(Settings()), Settings()
    reader = _Reader(api, chosen(settings), job, rank)
    shown = reader.wait_for_first(attempt) if follow else reader.read(attempt, None)
    _say(shown)
    if everything:
        shown = reader.print_further(replace(shown, end=0)) if follow else reader.print_from(shown.attempt, 0)
    else:
        lines = shown.text.splitlines(keepends=True)
        _print("".join(lines[len(lines) - min(tail, len(lines)) :]))
    while follow:
        shown = reader.print_further(shown)
        if shown.ended and shown.end == shown.size:
            following = None if attempt is not None else reader.wait_for_next(shown.attempt)
            if following is None:
                return
            _say(following)
            shown = reader.print_further(replace(following, end=0))
        time.sleep(POLL_SECONDS)


class _Reader:
    def __init__(self, api: HttpControl, launcher: Launcher, job: str, rank: int) -> None:
        self._api, self._launcher, self._job, self._rank = api, launcher, job, rank
        self._silent_since: float | None = None  # monotonic seconds

    def read(self, attempt: int | None, after: int | None) -> JobLog:
        return read_job_log(
            self._launcher, self._job, self._api.groups_of(self._job), attempt=attempt, rank=self._rank, after=after
        )

    def print_from(self, attempt: int, after: int) -> JobLog:
        """All that is there now."""
        while True:
            log = self.read(attempt, after)
            if log.left_out:
                _err.print(f"... {log.left_out} bytes are not kept any more (ELASTIC_LOG_MB)", style="dim")
            _print(log.text)
            after = log.end
            if not log.text:
                return log

    def print_further(self, shown: JobLog) -> JobLog:
        """All that there is behind what was shown. From who does not answer nothing, and once the attempt has ended
        that is all of it."""
        try:
            found = self.print_from(shown.attempt, shown.end)
        except InfrastructureError as error:
            gone = self._is_gone(shown.attempt, error)
            return replace(shown, ended=gone, size=shown.end if gone else shown.size)
        self._silent_since = None
        return found

    def _is_gone(self, attempt: int, error: InfrastructureError) -> bool:
        """Whether no more of the attempt is waited for. Says once why nothing is shown."""
        now = time.monotonic()
        if self._silent_since is None:
            self._silent_since = now
            _err.print(f"{error}; it is asked again", style="dim", markup=False)
        ended = self._api.groups_of(self._job)[attempt - 1].ended_at is not None
        gone = ended and now - self._silent_since >= SILENT_SECONDS
        if gone:
            self._silent_since = None
        return gone

    def wait_for_first(self, attempt: int | None) -> JobLog:
        """The attempt's last lines, once there is one. Who does not answer is asked again as in `print_further`; raises
        `InfrastructureError` where the attempt has ended and none comes after it."""
        while not self._api.groups_of(self._job) and self._api.job(self._job).state is JobState.ACTIVE:
            time.sleep(POLL_SECONDS)
        while True:
            try:
                found = self.read(attempt, None)
            except InfrastructureError as error:
                number = attempt or len(self._api.groups_of(self._job))
                over = attempt is not None or self._api.job(self._job).state is not JobState.ACTIVE
                if self._is_gone(number, error) and over:
                    raise
            else:
                self._silent_since = None
                return found
            time.sleep(POLL_SECONDS)

    def wait_for_next(self, attempt: int) -> JobLog | None:
        """The next attempt from its first line on, once its ranks are known; None: the job is over, or its rank is not
        there any more."""
        while True:
            over = self._api.job(self._job).state is not JobState.ACTIVE
            if len(self._api.groups_of(self._job)) > attempt:
                try:
                    found = self.read(attempt + 1, 0)
                    if found.ranks or found.ended:
                        return found
                except NotFound as error:
                    _err.print(str(error), style="dim", markup=False)
                    return None
                except InfrastructureError as error:
                    attempt += 1 if self._is_gone(attempt + 1, error) else 0
            elif over:
                return None
            time.sleep(POLL_SECONDS)


def _say(log: JobLog) -> None:
    segments = f"segment {log.first_segment}" if log.first_segment == log.last_segment else (
        f"segments {log.first_segment} to {log.last_segment}"
    )  # fmt: skip
    _err.print(f"attempt {log.attempt} of {log.attempts}, rank {log.rank} of {log.ranks}, {segments}", style="dim")


def _print(text: str) -> None:
    sys.stdout.write(printable(text, colours=True) if sys.stdout.isatty() else text)
    sys.stdout.flush()
