"""`elastic tracker status | catch-up`: how far MLflow is behind the ledger, and bringing it up to date by hand."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import Annotated

import typer

from elastic_core.commands.printing import Words
from elastic_core.errors import Conflict, InfrastructureError
from elastic_core.protocol.events import MLFLOW_READER
from elastic_core.settings import Settings
from elastic_core.track.follow import Lag

app = typer.Typer(help="MLflow as the ledger's follower.", no_args_is_help=True)
_out = Words(highlight=False)


@app.command()
def status(as_json: Annotated[bool, typer.Option("--json")] = False) -> None:
    """How many of the ledger's events MLflow does not show yet, and how old the oldest of them is."""
    settings = Settings()
    lag = _read_lag(settings)
    facts = {
        "reader": MLFLOW_READER,
        "mlflow": settings.tracking_uri(),
        **asdict(lag),
        "seconds": lag.seconds(time.time()),
    }
    if as_json:
        typer.echo(json.dumps(facts))
    else:
        _out.print(f"MLflow at {settings.tracking_uri()}: {_describe_lag(lag)}", markup=False)


@app.command("catch-up")
def catch_up(
    timeout: Annotated[float, typer.Option(help="seconds to wait, where the service is at it already")] = 600.0,
) -> None:
    """Bring MLflow up to date now: by this process, or by waiting for the service that does it."""
    from elastic_core.control.plane import open_control
    from elastic_core.track.follow import Follower
    from elastic_core.track.tracker_service import only_follower, open_tracker

    settings = Settings()
    try:
        with only_follower(settings):
            control = open_control(settings)
            count = Follower(control.feed, open_tracker(settings, control, control.feed)).catch_up()
            control.close()
            _out.print(f"recorded {count} events; MLflow is up to date")
    except Conflict:
        _wait_until_caught_up(settings, timeout)


def _wait_until_caught_up(settings: Settings, timeout: float) -> None:
    _out.print("the tracker service follows already; waiting for it")
    deadline = time.monotonic() + timeout
    while (lag := _read_lag(settings)).events:
        if time.monotonic() > deadline:
            raise InfrastructureError(f"after {timeout:g} s {_describe_lag(lag)}; its log: `elastic logs tracker`")
        time.sleep(0.5)
    _out.print("MLflow is up to date")


def _read_lag(settings: Settings) -> Lag:
    from elastic_core.control.plane import open_control
    from elastic_core.track.follow import lag

    control = open_control(settings)
    try:
        return lag(control.feed)
    finally:
        control.close()


def _describe_lag(lag: Lag) -> str:
    if not lag.events:
        return f"up to date (position {lag.position})"
    return f"{lag.events} events behind position {lag.position}, the oldest {lag.seconds(time.time()):.0f} s old"
