"""`elastic forecasts`: how this installation's forecasts turned out; and a job's own, for `elastic jobs show`.

Talks to the control API. What is graded, and at which stages: `elastic_core.predict.work.graded`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from elastic_core.commands.opening import open_api
from elastic_core.commands.printing import Json, Words, print_json, print_table
from elastic_core.domain import to_json
from elastic_core.protocol.forecasts import DECLARED, Assumption, Forecast, Grade, Quantity, StageSummary
from elastic_core.protocol.records import JobStatus
from elastic_core.settings import Settings
from elastic_core.text import plural, span

app = typer.Typer()
_out = Words(highlight=False, soft_wrap=True)


@app.command()
def forecasts(
    jobs: Annotated[int, typer.Option(min=1, help="of the last so many jobs that ended")] = 1000, as_json: Json = False
) -> None:
    """How forecasts turned out: error of the median and coverage of the 80 % intervals, at four stages of a job."""
    report = open_api(Settings()).forecast_report(jobs)
    if as_json:
        print_json(to_json(report))
        return
    if not report.jobs:
        _out.print("no job has ended yet whose forecasts could be graded")
        return
    columns = ("forecast", "when", "forecasts", "median error", "in their interval", "95 % interval of that")
    print_table(columns, (_row(stage) for stage in report.stages))
    known = f", of which {report.declared} declared their work: nothing to forecast" if report.declared else ""
    _out.print(f"{plural(report.jobs, 'job')} that ended{known}", markup=False)


def _row(stage: StageSummary) -> tuple[str, ...]:
    name = stage.quantity.words
    error = f"{stage.median_error:.0%}" if stage.median_error is not None else "-"
    if stage.coverage is None or stage.coverage_low is None or stage.coverage_high is None:
        return name, _when(stage.stage), "0", error, "-", "-"
    interval = f"{stage.coverage_low:.0%} to {stage.coverage_high:.0%}"
    return name, _when(stage.stage), str(stage.number), error, f"{stage.held} ({stage.coverage:.0%})", interval


def _when(stage: float) -> str:
    return f"at {stage:.0%}" if stage else "at submission"


def lines_of(job: JobStatus, now: float) -> Iterator[tuple[str, str]]:
    """(name, what) of what is expected of a job that is active, or how that turned out."""
    if job.forecast is not None:
        yield "work left", _work(job.forecast, job.done_samples)
        finish_at, assumes = job.forecast.finish_at, job.forecast.assumes
        waits = assumes is Assumption.WAITS_ITS_TURN
        if finish_at is not None and assumes is not None and waits == (job.in_queue is not None):
            low, median, high = (span(max(at - now, 0.0)) for at in finish_at)
            yield "done in", f"{median} ({low} to {high}), {assumes.words}"
    for grade in job.hindsight:
        if grade.quantity is not Quantity.WORK or grade.source != DECLARED:
            yield "forecast", _hindsight(grade)


def _work(forecast: Forecast, done: float) -> str:
    low, median, high = forecast.work_left_at(done)
    if forecast.work_source == DECLARED:
        return f"{median:,.0f} samples, {forecast.work_basis}"
    return f"{median:,.0f} samples ({low:,.0f} to {high:,.0f}), {forecast.work_basis}"


def _hindsight(grade: Grade) -> str:
    error = "" if grade.error is None else f"{abs(grade.error):.0%} too {'high' if grade.error > 0 else 'low'}, "
    held = {True: "in its interval", False: "not in its interval", None: "not known"}[grade.held]
    return f"{grade.quantity.words} {_when(grade.stage)}: {error}{held}"
