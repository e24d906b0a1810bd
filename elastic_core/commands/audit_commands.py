"""`elastic audit`: who did what to jobs and pool, by which way, and what was refused."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from elastic_core.commands.opening import open_api
from elastic_core.commands.printing import Json, print_json, print_table
from elastic_core.domain import to_json
from elastic_core.protocol.records import AuditRecord
from elastic_core.settings import Settings

app = typer.Typer()


@app.command()
def audit(
    job: Annotated[list[str] | None, typer.Option(help="actions on this job; may be given again")] = None,
    user: Annotated[str, typer.Option(help="actions of this user, dag:DAG_ID or USER@host")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", help="so many, the last ones")] = 100,
    before: Annotated[int | None, typer.Option(min=1, help="of those with a smaller number: the next page")] = None,
    as_json: Json = False,
) -> None:
    """Who did what, the newest first: submissions, cancellations, boundaries, policies; also what was refused.

    What a job has read is proven by `elastic jobs audit`.
    """
    records = open_api(Settings()).audit_records(job or None, user or None, limit, before)
    if as_json:
        print_json([to_json(record) for record in records])
        return
    rows = (
        (r.record_id, datetime.fromtimestamp(r.at).strftime("%Y-%m-%d %H:%M:%S"), r.actor, r.way, r.action, r.subject,
         r.queue or "", "done" if r.done else "refused", r.detail)
        for r in records
    )  # fmt: skip
    print_table(("number", "at", "who", "way", "action", "on", "queue", "outcome", "why"), rows)


def words_of(record: AuditRecord) -> str:
    """E.g. "ann: cancel (page), by hand"; "bob: cancel (rest), refused: ..."."""
    refused = "" if record.done else "refused: "
    return f"{record.actor}: {record.action} ({record.way})" + (f", {refused}{record.detail}" if record.detail else "")
