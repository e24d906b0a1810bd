"""`elastic history import | export`: what forecasts are learnt from, carried from one installation to another."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from elastic_core.commands.opening import operator
from elastic_core.commands.printing import Json, Words, print_json
from elastic_core.errors import UserError
from elastic_core.protocol.records import FinishedRun
from elastic_core.settings import Settings

app = typer.Typer(help="Runs that forecasts are learnt from.", no_args_is_help=True)
_out = Words(highlight=False, soft_wrap=True)

MOST_EXPORTED = 100_000
SHOWN = 5  # runs that were passed over, by name


@app.command("import")
def import_history(
    file: Annotated[Path | None, typer.Argument(help="JSON lines as `elastic history export` writes them")] = None,
    mlflow: Annotated[str, typer.Option(help="tracking URI of an MLflow server whose runs logged a loss")] = "",
    experiment: Annotated[str, typer.Option(help="with --mlflow: only this experiment, by name")] = "",
    loss: Annotated[str, typer.Option(help="with --mlflow: the metric that is the training loss")] = "loss",
    metric: Annotated[str, typer.Option(help="with --mlflow: the held-out metric, if there is one")] = "",
    as_json: Json = False,
) -> None:
    """Learn from the runs of another installation, or of MLflow. Runs that were imported before are passed over.

    They are used from the next fit on, which the next reconciliation makes.
    """
    if (file is None) == (not mlflow):
        raise UserError("Say what to import, one of the two: FILE (JSON lines), or --mlflow URI.")
    settings = Settings()
    runs, passed_over = _read(settings, file, mlflow, experiment, loss, metric)
    new = _keep(settings, runs)
    if as_json:
        print_json({"read": len(runs), "imported": new, "passed_over": passed_over})
        return
    _out.print(f"imported {new} of {len(runs)} runs; {len(runs) - new} were there before", markup=False)
    for run_id, reason in list(passed_over.items())[:SHOWN]:
        _out.print(f"passed over {run_id}: {reason}", markup=False)
    if len(passed_over) > SHOWN:
        _out.print(f"... and {len(passed_over) - SHOWN} more", markup=False)


@app.command("export")
def export_history(
    file: Annotated[Path, typer.Argument(help="file to write, gzipped where its name ends in .gz")],
    as_json: Json = False,
) -> None:
    """Write this installation's runs, finished and cut off, with what was imported: parameters, losses, step times."""
    from elastic_core.control.plane import open_control
    from elastic_core.protocol.history_runs import write_history

    control = open_control(Settings())
    try:
        count = write_history(control.finished_runs(MOST_EXPORTED), file)
    finally:
        control.close()
    if as_json:
        print_json({"out": str(file), "runs": count})
    else:
        _out.print(f"{count} runs in {file}", markup=False)


def _read(
    settings: Settings, file: Path | None, mlflow: str, experiment: str, loss: str, metric: str
) -> tuple[list[FinishedRun], dict[str, str]]:
    if file is not None:
        from elastic_core.protocol.history_runs import read_history

        return read_history(file), {}
    from elastic_core.track.mlflow_client import log_in
    from elastic_core.track.mlflow_history import mlflow_runs

    if mlflow.rstrip("/") == settings.tracking_uri():
        log_in(settings)
    imported = mlflow_runs(mlflow, experiment, loss, metric)
    return imported.runs, dict(imported.passed_over)


def _keep(settings: Settings, runs: list[FinishedRun]) -> int:
    from elastic_core.control.plane import open_control
    from elastic_core.control.scheduling.predicting.refit import refit_soon

    control = open_control(settings)
    try:
        new = control.acting(operator()).import_runs(runs)
    finally:
        control.close()
    if new:
        refit_soon(settings)
    return new
