"""`elastic checkpoint now`: a running job commits what it has, and goes on in the same processes."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from elastic_core.commands.opening import As, JobId, open_api
from elastic_core.commands.printing import Json, Words, print_json
from elastic_core.domain import to_json
from elastic_core.errors import InfrastructureError
from elastic_core.settings import Settings
from elastic_core.text import size_text

POLL_SECONDS = 0.5
_out = Words(highlight=False, soft_wrap=True)


def now(
    job: JobId,
    wait: Annotated[float, typer.Option(min=0, help="seconds to wait for the commit; 0: only ask for it")] = 120.0,
    reason: Annotated[str, typer.Option(help="shown with the segment that ends there")] = "a checkpoint by hand",
    user: As = "",
    as_json: Json = False,
) -> None:
    """Have a job that holds slots commit a checkpoint now."""
    api = open_api(Settings(), user)
    known = {record.checkpoint_id for record in api.checkpoints(job)}
    segment = api.checkpoint_now(job, reason)
    deadline = time.monotonic() + wait
    while wait:
        new = [record for record in api.checkpoints(job) if record.checkpoint_id not in known]
        if new:
            record = new[-1]
            if as_json:
                print_json(to_json(record))
            else:
                size = size_text(record.size_bytes)
                _out.print(f"checkpoint {record.checkpoint_id}: step {record.step}, {size}, {record.uri}", markup=False)
            return
        if time.monotonic() > deadline:
            raise InfrastructureError(
                f"{job} has not committed within {wait:g} s; it was asked to, and will: `elastic jobs logs {job}`, "
                f"`elastic jobs segments {job}`"
            )
        time.sleep(POLL_SECONDS)
    if as_json:
        print_json(to_json(segment))
    else:
        _out.print(f"{segment.segment_id}: asked for a checkpoint", markup=False)
