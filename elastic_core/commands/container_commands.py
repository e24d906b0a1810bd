"""`elastic container prepare | serve | check`: what the containers of docker/compose.yaml run."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from elastic_core.errors import Conflict
from elastic_core.services import containers
from elastic_core.services.platform import service_environment, service_settings
from elastic_core.settings import Settings

app = typer.Typer(help="One service in the foreground, as a container runs it.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="a service, as `elastic status` names it, or s3")]


@app.command()
def prepare() -> None:
    """Make secrets, databases and configuration, or bring them up to date; then end."""
    os.umask(0o077)
    settings = service_settings(Settings())
    containers.prepare(settings, service_environment(settings, os.environ))
    typer.echo(f"{settings.home} is prepared")


@app.command()
def serve(name: Name) -> None:
    """Run one service until it ends, or until SIGTERM."""
    os.umask(0o077)
    settings = service_settings(Settings())
    raise typer.Exit(containers.serve(settings, service_environment(settings, os.environ), name))


@app.command()
def check(name: Name) -> None:
    """Exit code 0 if the service does its work, else 1 and why not."""
    settings = service_settings(Settings())
    if name == "tracker":
        problem = _tracker_problem(settings)
    else:
        problem = containers.problem(settings, service_environment(settings, os.environ), name)
    typer.echo(problem or "healthy")
    raise typer.Exit(1 if problem else 0)


def _tracker_problem(settings: Settings) -> str | None:
    from elastic_core.track.tracker_service import only_follower

    try:
        with only_follower(settings):
            return "nobody follows the ledger"
    except Conflict:
        return None
