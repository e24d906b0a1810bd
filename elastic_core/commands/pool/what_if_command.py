"""`elastic what-if`: how the active jobs would fare with other nodes, another policy, other limits. Changes nothing."""

from __future__ import annotations

from typing import Annotated

import typer

from elastic_core.commands.opening import open_api
from elastic_core.commands.printing import Json, Words, print_json, print_table
from elastic_core.domain import to_json
from elastic_core.errors import UserError
from elastic_core.protocol.rest.what_if import (
    COURSE_SECONDS,
    AddedNodes,
    Course,
    JobAhead,
    WhatIf,
    WhatIfAnswer,
    usual_seconds,
)
from elastic_core.settings import Settings
from elastic_core.spec.job_changes import JobChanges
from elastic_core.text import plural, span

app = typer.Typer()
_out = Words(highlight=False, soft_wrap=True)
LIMITS = {"min": "min_slots", "max": "max_slots", "priority": "priority"}


@app.command("what-if")
def what_if(
    policy: Annotated[str | None, typer.Option(help="another policy decides")] = None,
    add: Annotated[list[str] | None, typer.Option(help="nodes more: TYPE:SLOTS, or TYPE:SLOTSxNODES")] = None,
    without: Annotated[list[str] | None, typer.Option(help="a node that is left out")] = None,
    job: Annotated[list[str] | None, typer.Option(help="other limits: JOB:max=4,min=1,priority=5")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="so many jobs are shown, by submission")] = 50,
    as_json: Json = False,
) -> None:
    """When each active job would start and end, as things are and with this changed: simulated from the state now."""
    from elastic_core.sim import projection  # loads SciPy, and policies

    asked = WhatIf(
        policy=policy,
        add=tuple(map(_nodes, add or ())),
        without=tuple(without or ()),
        jobs=dict(map(_limits, job or ())),
    )
    courses = 1 if asked == WhatIf() else 2

    def tell(jobs: int) -> None:
        about, most = courses * min(usual_seconds(jobs), COURSE_SECONDS), courses * COURSE_SECONDS
        typer.echo(f"simulating {plural(jobs, 'job')}: about {span(about)}, {span(most)} at most", err=True)

    answer = projection.what_if(open_api(Settings()), asked, tell=tell)
    if as_json:
        print_json(to_json(answer))
        return
    _print(answer, limit)


def _print(answer: WhatIfAnswer, limit: int) -> None:
    changed = answer.changed_policy if answer.changed_policy != answer.policy else "the same policy"
    typer.echo(
        f"Simulated from now on, in {span(answer.took_seconds)}: under {answer.policy}; changed: under {changed}."
    )
    rows = [
        (job.job_id, *_shown(answer, job.as_it_is), *_shown(answer, job.changed), _gain(job))
        for job in answer.jobs[:limit]
    ]
    print_table(("job", "starts", "ends", "slots", "starts then", "ends then", "slots then", "sooner by"), rows)
    if answer.total > limit:
        typer.echo(f"{answer.total - limit} more of {answer.total}: --limit {answer.total} shows all")
    if answer.means is not None:
        mean = answer.means
        typer.echo(f"mean of {plural(mean.jobs, 'job')}: {span(mean.as_it_is)} as it is, {span(mean.changed)} then")
    if not answer.complete:
        typer.echo("There was too much to simulate: some ends are not known.")
    for note in answer.notes:
        _out.print(f"  {note}", markup=False)


def _shown(answer: WhatIfAnswer, course: Course) -> tuple[str, str, int]:
    return _instant(answer, course.starts_at), _instant(answer, course.ends_at), course.most_slots


def _instant(answer: WhatIfAnswer, when: float | None) -> str:
    if when is None:
        return "never" if answer.complete else "not known"
    return "now" if when - answer.at < 1.0 else f"in {span(when - answer.at)}"


def _gain(job: JobAhead) -> str:
    before, after = job.as_it_is.ends_at, job.changed.ends_at
    if before is None or after is None:
        return ""
    return "=" if abs(before - after) < 1.0 else ("" if after < before else "-") + span(abs(before - after))


def _nodes(text: str) -> AddedNodes:
    kind, _, size = text.rpartition(":")
    slots, _, count = size.partition("x")
    if not kind or not slots.isdigit() or not (count or "1").isdigit():
        raise UserError(f"--add is {text!r}; it is TYPE:SLOTS or TYPE:SLOTSxNODES, such as gpu:4x2")
    return AddedNodes(type=kind, num_slots=int(slots), count=int(count or 1))


def _limits(text: str) -> tuple[str, JobChanges]:
    job_id, _, given = text.rpartition(":")
    values: dict[str, int] = {}
    for part in given.split(","):
        name, _, value = part.partition("=")
        if not job_id or name not in LIMITS or not value.removeprefix("-").isdigit():
            raise UserError(f"--job is {text!r}; it is JOB:max=4,min=1,priority=5, of which one is enough")
        values[LIMITS[name]] = int(value)
    return job_id, JobChanges(**values)
