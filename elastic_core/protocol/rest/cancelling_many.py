"""Many jobs cancelled, and a sweep as one, by whoever asks the platform: as a service, or as a user by REST."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Protocol

from elastic_core.errors import InfrastructureError, NotFound
from elastic_core.protocol.records import CancelOutcome, Submission, SubmissionState
from elastic_core.spec.inputs.sweeps import member_id
from elastic_core.spec.parts.job_group import MOST_MEMBERS

AT_ONCE = 100  # whose answers come within a client's time-out, also on a busy machine
WAIT_SECONDS = 300.0  # a data set may be built before a job is accepted
POLL_SECONDS = 0.5
_STILL_STARTING = "its run still asks the task's code, and it is no job yet: cancel the group again"


class Asked(Protocol):
    """The part of a client that this needs."""

    def submission(self, job_id: str) -> Submission: ...

    def cancel_jobs(self, job_ids: Sequence[str], reason: str) -> Sequence[CancelOutcome]: ...


def cancel_in_parts(
    cancel: Callable[[Sequence[str]], Sequence[CancelOutcome]], job_ids: Sequence[str]
) -> list[CancelOutcome]:
    """What `cancel` says of each, so many of them at once."""
    parts = (job_ids[start : start + AT_ONCE] for start in range(0, len(job_ids), AT_ONCE))
    return [outcome for part in parts for outcome in cancel(part)]


def cancel_whole_group(
    client: Asked, group: str, reason: str, active: Callable[[], Sequence[str]], wait_seconds: float
) -> list[CancelOutcome]:
    """All jobs of a sweep that are `active`, and those that its members are about to become.

    A member whose run still asks the task's code is no job yet, and cannot be cancelled: it is waited for, for at most
    `wait_seconds` in all. One that is none by then has an error among the outcomes.
    """
    outcomes = [*client.cancel_jobs(active(), reason)]
    starting = [one.job_id for one in _submissions_of(client, group) if one.state is SubmissionState.STARTING]
    until = time.monotonic() + wait_seconds
    while starting and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
        with suppress(InfrastructureError):
            starting = [one for one in starting if client.submission(one).state is SubmissionState.STARTING]
    outcomes += client.cancel_jobs(active(), reason)
    late = [CancelOutcome(job_id=job_id, state=None, error=_STILL_STARTING) for job_id in starting]
    told = {outcome.job_id: outcome for outcome in [*late, *outcomes]}  # a job at the last moment is cancelled
    return [told[job_id] for job_id in sorted(told)]


def _submissions_of(client: Asked, group: str) -> Iterator[Submission]:
    """Of a sweep's members, from the first on, whether they have become jobs or not."""
    for index in range(MOST_MEMBERS):
        try:
            yield client.submission(member_id(group, index))
        except NotFound:
            return
