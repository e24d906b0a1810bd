"""A job in one line, or in JSON: how commands say what they have made of it."""

from __future__ import annotations

from elastic_core.commands.printing import Words, print_json
from elastic_core.domain import to_json
from elastic_core.protocol.records import JobStatus

_out = Words(highlight=False, soft_wrap=True)


def print_status(status: JobStatus, as_json: bool) -> None:
    if as_json:
        print_json(to_json(status))
    else:
        _out.print(f"{status.job_id}: {status.state}, {status.error or status.target_reason}", markup=False)
