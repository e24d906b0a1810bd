"""`elastic jobs pause | resume | stop | set`: what is done to jobs that live, short of ending them at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from elastic_core.commands.opening import As, JobId, JobIds, open_api
from elastic_core.commands.printing import Json, Words, print_json, print_table
from elastic_core.domain import to_json
from elastic_core.errors import ElasticError, UserError
from elastic_core.protocol.http_client import HttpControl
from elastic_core.protocol.records import JobStatus
from elastic_core.settings import Settings
from elastic_core.spec.job_changes import JobChanges

Reason = Annotated[str, typer.Option(help="shown with the job")]
_out = Words(highlight=False, soft_wrap=True)


def pause(jobs: JobIds, reason: Reason = "by hand", user: As = "", as_json: Json = False) -> None:
    """Let jobs have no slots until they are resumed: they commit first. Exit code 1: one of many was not."""
    _each(jobs, user, as_json, lambda api, job: api.pause(job, reason))


def resume(jobs: JobIds, user: As = "", as_json: Json = False) -> None:
    """Let paused jobs have slots again, from their last checkpoint. Exit code 1: one of many was not."""
    _each(jobs, user, as_json, lambda api, job: api.resume(job))


def stop(jobs: JobIds, reason: Reason = "by hand", user: As = "", as_json: Json = False) -> None:
    """End jobs with their next commit, which is asked for now; `cancel` waits for none. Exit code 1: as above."""
    _each(jobs, user, as_json, lambda api, job: api.stop(job, reason))


def set_job(
    job: JobId,
    priority: Annotated[int | None, typer.Option(help="in place of the spec's")] = None,
    min_slots: Annotated[int | None, typer.Option(min=1, help="fewest slots, in place of the spec's")] = None,
    max_slots: Annotated[int | None, typer.Option(min=1, help="most slots, in place of the spec's")] = None,
    user: As = "",
    as_json: Json = False,
) -> None:
    """Give a job another priority, or other limits of slots, from the next decision on, which is made now."""
    changes = JobChanges(priority=priority, min_slots=min_slots, max_slots=max_slots)
    if not changes.given():
        raise UserError("nothing is to be set: give --priority, --min-slots or --max-slots")
    status = open_api(Settings(), user).set_job(job, changes)
    if as_json:
        print_json(to_json(status))
    else:
        _out.print(f"{job}: set to {status.changes.words}; {status.target_reason}", markup=False)


def _each(jobs: list[str], user: str, as_json: bool, act: Callable[[HttpControl, str], JobStatus]) -> None:
    """One job's error is the command's; of many each is tried, and says its own."""
    api, named = open_api(Settings(), user), list(dict.fromkeys(jobs))
    if len(named) == 1:
        status = act(api, named[0])
        if as_json:
            print_json(to_json(status))
        else:
            _out.print(f"{status.job_id}: {status.state}, {status.error or status.target_reason}", markup=False)
        return
    outcomes: list[tuple[str, JobStatus | None, str]] = []
    for job in named:
        try:
            outcomes.append((job, act(api, job), ""))
        except ElasticError as error:
            outcomes.append((job, None, str(error)))
    if as_json:
        print_json([to_json(status) if status else {"job_id": job, "error": why} for job, status, why in outcomes])
    else:
        rows = ((job, s.state if s else "", (s.error or s.target_reason) if s else why) for job, s, why in outcomes)
        print_table(("job", "state", "why"), rows)
    if any(why for _, _, why in outcomes):
        raise typer.Exit(1)
