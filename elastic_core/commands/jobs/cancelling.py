"""`elastic jobs cancel`: jobs by their ids, or all active ones of a queue, a user or a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from elastic_core.client import cancel_group
from elastic_core.commands.jobs.ended_jobs import ended_words
from elastic_core.commands.jobs.one_line import print_status
from elastic_core.commands.opening import As, complete_job, open_api
from elastic_core.commands.printing import Json, print_json, print_table
from elastic_core.domain import JobState, to_json
from elastic_core.errors import Conflict, UserError
from elastic_core.protocol.http_client import HttpControl
from elastic_core.protocol.records import CancelOutcome, JobStatus
from elastic_core.settings import Settings
from elastic_core.text import plural


def cancel(
    jobs: Annotated[list[str] | None, typer.Argument(metavar="[JOB]...", autocompletion=complete_job)] = None,
    reason: Annotated[str, typer.Option(help="shown with the job")] = "by hand",
    queue: Annotated[str, typer.Option(help="all active jobs of this queue")] = "",
    of: Annotated[str, typer.Option("--user", help="all active jobs that this user submitted")] = "",
    group: Annotated[str, typer.Option(help="all jobs of this sweep, those that are about to start, too")] = "",
    everything: Annotated[bool, typer.Option("--all", help="all active jobs")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="do not ask for confirmation")] = False,
    user: As = "",
    as_json: Json = False,
) -> None:
    """End jobs now, without a last commit (`stop` waits for one). Exit code 1: one of many was not."""
    api = open_api(Settings(), user)
    if group:
        if jobs or queue or of or everything:
            raise UserError("--group goes alone: it names all jobs of a sweep")
        if not yes:
            typer.confirm(f"Cancel all jobs of group {group}?", abort=True, err=True)
        _print(cancel_group(group, reason, control=api), as_json)
        return
    chosen = _chosen(api, jobs or [], queue, of, everything)
    if jobs and len(chosen) == 1:
        print_status(_cancel(api, chosen[0], reason), as_json)
        return
    if not yes and chosen:
        typer.confirm(f"Cancel {plural(len(chosen), 'job')}?", abort=True, err=True)
    _print(api.cancel_jobs(chosen, reason), as_json)


def _print(outcomes: Sequence[CancelOutcome], as_json: bool) -> None:
    if as_json:
        print_json([to_json(outcome) for outcome in outcomes])
    else:
        print_table(("job", "state", "why not"), ((o.job_id, o.state or "", _why_not(o)) for o in outcomes))
    if any(_why_not(outcome) for outcome in outcomes):
        raise typer.Exit(1)


def _why_not(outcome: CancelOutcome) -> str:
    if outcome.error or outcome.state is JobState.CANCELLED:
        return outcome.error or ""
    return f"it has ended before: {outcome.state}"


def _cancel(api: HttpControl, job: str, reason: str) -> JobStatus:
    """Raises `Conflict` for a job that has ended before: nothing of it is cancelled."""
    before = api.job(job)
    status = before if before.state is not JobState.ACTIVE else api.cancel(job, reason)
    if status is before or status.state is not JobState.CANCELLED:
        raise Conflict(f"the job {job!r} has ended, {ended_words(status)}: there is nothing to cancel")
    return status


def _chosen(api: HttpControl, named: list[str], queue: str, of: str, everything: bool) -> list[str]:
    filtered = bool(queue or of or everything)
    if filtered == bool(named):
        raise UserError("name jobs, or choose active ones with --queue, --user, --group or --all")
    if named:
        return list(dict.fromkeys(named))
    active = api.jobs(active_only=True)
    return [
        job.job_id for job in active if (not queue or job.spec.queue == queue) and (not of or job.submitted_by == of)
    ]
