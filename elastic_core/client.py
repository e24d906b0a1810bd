"""The platform from Python: `submit(spec)`, `submit_sweep(spec, grid=...)`, `fork(checkpoint_id)`, and `connect()`.

These are for scripts and notebooks on a machine that has the platform's settings and service secret; the command
`elastic` uses them too. `RestClient` is for any machine, with a login of Airflow. Nothing of a task's code is imported
here: it need not be on this machine.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from elastic_core.errors import InfrastructureError, UserError
from elastic_core.protocol.callers import OnBehalf, Way, at_host
from elastic_core.protocol.http_client import HttpControl
from elastic_core.protocol.records import CancelOutcome, Submission, SubmissionState, SweepMember, SweepStarted
from elastic_core.protocol.rest.cancelling_many import POLL_SECONDS, cancel_whole_group
from elastic_core.protocol.rest.cancelling_many import WAIT_SECONDS as WAIT_SECONDS
from elastic_core.protocol.rest.rest_client import RestClient as RestClient
from elastic_core.protocol.tokens import read_secret
from elastic_core.settings import Settings
from elastic_core.spec import JobSpec, parse_job_spec
from elastic_core.spec.inputs.sweeps import expand, new_group_id, parse_sweep
from elastic_core.spec.job_forks import fork_id
from elastic_core.text import plural, stamped

PATIENCE_SECONDS = 5.0  # of one call while the API is away: a person waits
MOST_TOLD = 5  # refusals in one error


def connect(
    settings: Settings | None = None, patience_seconds: float = PATIENCE_SECONDS, user: str = ""
) -> HttpControl:
    """The control API, with the service secret. Raises `InfrastructureError` where there is none.

    It acts for the operator, that is whoever runs this process; with `user` for that user of Airflow, with their rights
    and in their name.
    """
    settings = settings or Settings()
    try:
        control = HttpControl(settings.api_url(), read_secret(settings.secret_file("control")), patience_seconds)
    except ValueError as error:  # a placeholder
        raise UserError(str(error)) from error
    return control.acting(OnBehalf(way=Way.PYTHON, user=user) if user else at_host(Way.PYTHON))


def submit(
    spec: JobSpec | Mapping[str, Any],
    *,
    job_id: str | None = None,
    warm_start: str | None = None,
    wait_seconds: float = WAIT_SECONDS,
    control: HttpControl | None = None,
) -> Submission:
    """Start a job; it is evaluated and registered at its end. What became of the request after at most `wait_seconds`.

    Asking again with the same `job_id` makes no second job; without one it is made of the spec's name and the time.
    Raises `UserError` for a request that is refused, by the platform or by the task's own code.
    """
    parsed = spec if isinstance(spec, JobSpec) else parse_job_spec(spec)
    name = job_id or stamped(parsed.name)
    with _given(control) as client:
        submission = client.start_job(name, parsed, warm_start)
        until = time.monotonic() + wait_seconds
        while submission.state is SubmissionState.STARTING and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
            with suppress(InfrastructureError):  # the run goes on while the API is away
                submission = client.submission(name)
    if submission.state is SubmissionState.REFUSED:
        raise UserError(f"job {name!r} was refused: {submission.error}")
    return submission


def fork(
    checkpoint_id: int,
    *,
    job_id: str | None = None,
    changes: Mapping[str, Any] | None = None,
    code_now: bool = False,
    control: HttpControl | None = None,
) -> Submission:
    """Start a job that goes on from a checkpoint of any job, with all of its state.

    `changes`: a part of a job spec, e.g. `{"work": {"epochs": 20}}`; the rest is the parent's. `code_now`: run the
    project's code as it is when the job starts, not the parent's pinned code. Asking again with the same `job_id` makes
    no second job; without one it is made of the name and the time. Raises `UserError` for what is refused.
    """
    given = dict(changes or {})
    with _given(control) as client:
        return client.fork_job(job_id or fork_id(checkpoint_id, given), checkpoint_id, given, code_now)


def submit_sweep(
    spec: JobSpec | Mapping[str, Any],
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    members: Sequence[Mapping[str, Any]] | None = None,
    group: str | None = None,
    warm_start: str | None = None,
    wait_seconds: float = WAIT_SECONDS,
    control: HttpControl | None = None,
) -> SweepStarted:
    """Start a job for every member of a sweep, as one group; what became of each after at most `wait_seconds`.

    `grid` has values by field of the spec (`{"params.learning_rate": [0.01, 0.1], "batch.max": [256, 512]}`: a member
    for each choice), `members` the fields of each member. Asking again with the same `group` makes no second jobs;
    without one it is made of the spec's name and the time.

    Raises `UserError` where a member is wrong or may not be submitted: none is started then. It is raised as well where
    the task's own code refuses some; the others go on then (`cancel_group` ends them).
    """
    sweep = parse_sweep(spec, grid, members)
    name = group or new_group_id(sweep, datetime.now(UTC))
    expand(name, sweep)  # what is wrong is said without asking anybody
    with _given(control) as client:
        started = client.start_sweep(name, sweep, warm_start)
        while started.left:
            started = client.start_sweep(name, sweep, warm_start)
        until = time.monotonic() + wait_seconds
        while _starting(started) and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
            with suppress(InfrastructureError):
                started = _looked_at(client, started)
    refused = [(m.job_id, m.submission.error) for m in started.members if m.submission and _is_refused(m.submission)]
    if refused:
        others = len(started.members) - len(refused)
        raise UserError(
            f"{plural(len(refused), 'member')} of the sweep {name!r} {'was' if len(refused) == 1 else 'were'} refused, "
            f"the other {others} go on: " + "; ".join(f"{job_id}: {error}" for job_id, error in refused[:MOST_TOLD])
        )
    return started


def cancel_group(
    group: str, reason: str, *, wait_seconds: float = WAIT_SECONDS, control: HttpControl | None = None
) -> list[CancelOutcome]:
    """Cancel all jobs of a sweep that are active, and those that its members are about to become.

    A member whose run still asks the task's code is no job yet, and cannot be cancelled: it is waited for, for at most
    `wait_seconds` in all. One that is none by then has an error among the outcomes.
    """
    with _given(control) as client:

        def active() -> list[str]:
            return [job.job_id for job in client.jobs(active_only=True, group=group)]

        return cancel_whole_group(client, group, reason, active, wait_seconds)


def _looked_at(control: HttpControl, started: SweepStarted) -> SweepStarted:
    """Those that are starting, as they are now."""
    members = (
        replace(member, submission=control.submission(member.job_id)) if _is_starting(member) else member
        for member in started.members
    )
    return replace(started, members=tuple(members))


def _starting(started: SweepStarted) -> bool:
    return any(_is_starting(member) for member in started.members)


def _is_starting(member: SweepMember) -> bool:
    return member.submission is not None and member.submission.state is SubmissionState.STARTING


def _is_refused(submission: Submission) -> bool:
    return submission.state is SubmissionState.REFUSED


@contextmanager
def _given(control: HttpControl | None) -> Iterator[HttpControl]:
    """The caller's, else one of our own, which is closed."""
    client = control or connect()
    try:
        yield client
    finally:
        if control is None:
            client.close()
