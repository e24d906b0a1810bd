"""`elastic checkpoint fork`: a new job goes on from a checkpoint of any job, with all of its state."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from elastic_core import client
from elastic_core.commands.opening import As, open_api
from elastic_core.commands.printing import Json, Words, print_json
from elastic_core.domain import to_json
from elastic_core.errors import UserError
from elastic_core.protocol.process_groups import fork_of
from elastic_core.settings import Settings
from elastic_core.spec.inputs.dotted import put
from elastic_core.spec.inputs.sweep_texts import value_of

_out = Words(highlight=False, soft_wrap=True)


def fork(
    checkpoint: Annotated[int, typer.Argument(help="id, see `elastic checkpoint ls JOB`")],
    job: Annotated[str, typer.Option("--id", help="the new job's id; its name and the time when absent")] = "",
    name: Annotated[str, typer.Option(help="the new job's name; the parent's when absent")] = "",
    changed: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A.B=VALUE", help="in place of the parent's spec, e.g. work.epochs=20"),
    ] = None,
    code_now: Annotated[
        bool, typer.Option(help="run the project's code as it is when the job starts, not the parent's pinned code")
    ] = False,
    user: As = "",
    as_json: Json = False,
) -> None:
    """Start a job that goes on from a checkpoint: weights, optimizer, schedule, batch controller and data cursor."""
    changes = changes_of(changed or [])
    if name:
        changes["name"] = name
    api = open_api(Settings(), user)
    submission = client.fork(checkpoint, job_id=job or None, changes=changes, code_now=code_now, control=api)
    status = api.job(submission.job_id)
    if as_json:
        print_json(to_json(status))
        return
    origin = fork_of(status.results)
    where = f", forked from {origin.words}" if origin is not None else ""
    _out.print(f"{status.job_id}: {status.state}{where}; {status.error or status.target_reason}", markup=False)


def changes_of(given: list[str]) -> dict[str, Any]:
    """A part of a spec from texts such as `work.epochs=20`; values are JSON, or else text. Raises `UserError`."""
    changes: dict[str, Any] = {}
    for text in given:
        path, equals, value = text.partition("=")
        if not equals or not all(path.split(".")):
            raise UserError(f"--set {text!r} is not A.B=VALUE, such as work.epochs=20")
        try:
            put(changes, path.split("."), value_of(value, f"--set {path}"))
        except UserError as error:
            raise UserError(f"--set {text!r}: {error}") from error
    return changes
