"""`elastic jobs submit`: one job, or all those of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from elastic_core import client
from elastic_core.client import WAIT_SECONDS
from elastic_core.commands.jobs.estimating import Profile, with_profile
from elastic_core.commands.jobs.one_line import print_status
from elastic_core.commands.opening import As, open_api
from elastic_core.commands.printing import Json, Words, print_json, print_table
from elastic_core.domain import to_json
from elastic_core.errors import UserError
from elastic_core.protocol.records import SubmissionState, SweepMember, SweepStarted
from elastic_core.settings import Settings
from elastic_core.spec.inputs.sweep_texts import parse_grid
from elastic_core.spec.inputs.sweeps import words_of
from elastic_core.spec.inputs.value_files import read_values

_out = Words(highlight=False, soft_wrap=True)


def submit(
    spec: Annotated[Path, typer.Argument(help="file with the job spec: JSON, or YAML by its name")],
    job: Annotated[
        str, typer.Option("--id", help="the job's id, or the sweep's; its name and the time if absent")
    ] = "",
    warm_start: Annotated[str, typer.Option(help="uri of a checkpoint whose weights it starts from")] = "",
    profile: Profile = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(help="FIELD=VALUE,VALUE,...: a job for each value; several times: for each choice of one of each"),
    ] = None,
    sweep_file: Annotated[Path | None, typer.Option(help="file with a list: the fields of each job, by name")] = None,
    wait: Annotated[float, typer.Option(help="seconds to wait for the task's own code to accept it")] = WAIT_SECONDS,
    user: As = "",
    as_json: Json = False,
) -> None:
    """Submit a job: its run of `elastic_job` starts at once. A repeated id with the same spec is one job.

    With --sweep or --sweep-file many jobs, as one group: all of them, or none where one is wrong.
    """
    values = with_profile(read_values(spec, "job spec"), profile)
    api = open_api(Settings(), user)
    if sweep or sweep_file is not None:
        grid, members = _sweep(sweep, sweep_file)
        started = client.submit_sweep(
            _object(values), grid=grid, members=members, group=job or None, warm_start=warm_start or None,
            wait_seconds=wait, control=api,
        )  # fmt: skip
        _print_sweep(started, as_json)
        return
    submission = client.submit(
        values, job_id=job or None, warm_start=warm_start or None, wait_seconds=wait, control=api
    )
    if submission.state is not SubmissionState.STARTING:
        print_status(api.job(submission.job_id), as_json)
    elif as_json:
        print_json(to_json(submission))
    else:
        _out.print(f"{submission.job_id}: starting, see run {submission.run_id} of {submission.dag_id}", markup=False)


def _sweep(texts: list[str] | None, file: Path | None) -> tuple[Any, Any]:
    """Grid and members, of which one is None."""
    if file is None:
        return parse_grid(texts or []), None
    if texts:
        raise UserError("give --sweep or --sweep-file, not both: a file lists each job with all of its values")
    members = read_values(file, "sweep file")
    if not isinstance(members, list):
        raise UserError(f'the sweep file {file} holds no list; it takes one such as [{{"seed": 1}}, {{"seed": 2}}]')
    return None, members


def _object(values: Any) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise UserError("the job spec is no object with fields, so that no field of it can be swept")
    return values


def _print_sweep(started: SweepStarted, as_json: bool) -> None:
    if as_json:
        print_json(to_json(started))
        return
    print_table(("job", "state", "values"), ((m.job_id, _state(m), words_of(m.values)) for m in started.members))
    _out.print(f"group {started.group}: `elastic jobs list --group {started.group}` compares its jobs", markup=False)


def _state(member: SweepMember) -> str:
    return member.submission.state if member.submission is not None else ""
