"""The platform from Python: `submit(spec)`, `fork(checkpoint_id)`, and `connect()` for all else of the control API.

These are for scripts and notebooks on a machine that has the platform's settings and service secret; the command
`elastic` uses them too. `RestClient` is for any machine, with a login of Airflow. Nothing of a task's code is imported
here: it need not be on this machine.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from elastic_core.errors import InfrastructureError, UserError
from elastic_core.protocol.callers import OnBehalf, Way, at_host
from elastic_core.protocol.http_client import HttpControl
from elastic_core.protocol.records import Submission, SubmissionState
from elastic_core.protocol.rest.rest_client import RestClient as RestClient
from elastic_core.protocol.tokens import read_secret
from elastic_core.settings import Settings
from elastic_core.spec import JobSpec, parse_job_spec
from elastic_core.spec.job_forks import fork_id

PATIENCE_SECONDS = 5.0  # of one call while the API is away: a person waits
WAIT_SECONDS = 300.0  # a data set may be built before the job is accepted
POLL_SECONDS = 0.5


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
    name = job_id or f"{parsed.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    client = control or connect()
    try:
        submission = client.start_job(name, parsed, warm_start)
        until = time.monotonic() + wait_seconds
        while submission.state is SubmissionState.STARTING and time.monotonic() < until:
            time.sleep(POLL_SECONDS)
            with suppress(InfrastructureError):  # the run goes on while the API is away
                submission = client.submission(name)
    finally:
        if control is None:
            client.close()
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
    given, client = dict(changes or {}), control or connect()
    try:
        return client.fork_job(job_id or fork_id(checkpoint_id, given), checkpoint_id, given, code_now)
    finally:
        if control is None:
            client.close()
