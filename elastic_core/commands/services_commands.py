"""`elastic up | down | status | logs | password`: the services of one home, from the command line."""

from __future__ import annotations

import os
import time
from dataclasses import asdict
from typing import Annotated

import typer

from elastic_core.commands.opening import operator
from elastic_core.commands.printing import Json, Words, print_json, print_table
from elastic_core.errors import InfrastructureError, UserError
from elastic_core.host.mlflow_access import ADMIN
from elastic_core.services import settings_in_force
from elastic_core.services import stack as services
from elastic_core.services.platform import (
    platform_stack,
    prepare_home,
    push_cluster,
    service_environment,
    service_settings,
)
from elastic_core.services.secrets import SIGNING, rotate, user_password
from elastic_core.services.supervision.program import Stack
from elastic_core.settings import Settings
from elastic_core.text import printable, tail

app = typer.Typer(help="The platform's services on this machine.")
_out = Words(highlight=False)


def _stack(settings: Settings) -> Stack:
    return platform_stack(settings, service_environment(settings, os.environ))


def _print_line(line: str) -> None:
    _out.print(line, markup=False, soft_wrap=True)


@app.command()
def up(
    wait: Annotated[bool, typer.Option(help="return only when everything is healthy")] = True,
    timeout: Annotated[float, typer.Option(help="seconds to wait for that")] = 300.0,
    restart: Annotated[
        bool, typer.Option("--restart", help="stop them first, if they run: jobs reach a boundary, and go on after")
    ] = False,
) -> None:
    """Start the services. Harmless when they run already: which settings are not in force then is said."""
    settings, began = service_settings(Settings()), time.monotonic()
    os.umask(0o077)  # as the services have it: what is made here is the installation's
    prepare_home(settings)
    environment = service_environment(settings, os.environ)
    stack = platform_stack(settings, environment)
    if restart:
        for difference in settings_in_force.differences(settings.home, environment):
            _print_line(f"to be in force: {difference}")
        services.down(stack, tell=_print_line)
    services.up(stack, settings.host, environment, wait_seconds=timeout if wait else None, tell=_print_line)
    if wait:
        push_cluster(settings)
    _print_line(f"{'up' if wait else 'started'} after {time.monotonic() - began:.1f} s")
    _print_line(f"Airflow  {settings.airflow_page()}  (user admin; its password: `elastic password`)")
    if settings.mlflow_uri != "none":
        login = "" if settings.mlflow_uri else "  (the same user and password)"
        _print_line(f"MLflow   {settings.mlflow_page()}{login}")
    _print_line(f"state    {settings.home}")


@app.command()
def down() -> None:
    """Stop the services and this machine's training processes, which reach a boundary first."""
    settings = service_settings(Settings())
    if not settings.home.exists():
        _print_line(f"nothing to stop: {settings.home} does not exist")
        return
    ended = services.down(_stack(settings), tell=_print_line)
    _print_line("down" + (f"; {ended} left-over processes ended" if ended else ""))


@app.command()
def status(as_json: Json = False) -> None:
    """What runs and whether it is healthy. Exit code 1 unless all of it is."""
    settings = service_settings(Settings())
    processes = services.status(_stack(settings)) if settings.home.exists() else []
    if as_json:
        print_json([asdict(service) for service in processes])
    else:
        rows = (
            (service.name, service.state, service.pid or "",
             f"{time.time() - service.started:.0f} s" if service.started else "",
             "ok" if service.healthy else service.detail)
            for service in processes
        )  # fmt: skip
        print_table(("service", "state", "pid", "up for", "health"), rows)
    raise typer.Exit(0 if processes and all(service.healthy for service in processes) else 1)


@app.command()
def logs(
    name: Annotated[str, typer.Argument(help="a service, as `elastic status` names it")],
    lines: Annotated[int, typer.Option("--lines", "-n")] = 100,
) -> None:
    """The last lines of a service's log."""
    settings = service_settings(Settings())
    known = {program.name for program in _stack(settings).programs()} | {"supervisord", "airflow-migrate"}
    if name not in known:
        raise UserError(f"no service is called {name!r}; there are {', '.join(sorted(known))}")
    path = settings.home / "logs" / f"{name}.log"
    if not path.exists():
        raise UserError(f"{path} does not exist: {name} has not been started yet")
    typer.echo(printable(tail(path, lines), colours=True))  # services log what jobs say


@app.command("rotate-secrets")
def rotate_secrets(
    names: Annotated[list[str] | None, typer.Argument(help="control, trainer; both by default")] = None,
    overlap_hours: Annotated[float, typer.Option(min=1.0, help="for which those before count as well")] = 24.0,
    at_once: Annotated[
        bool, typer.Option(help="those before count no more: running groups lose their attempt")
    ] = False,
) -> None:
    """Make new signing secrets while jobs run."""
    chosen = tuple(dict.fromkeys(names or SIGNING))
    settings = Settings()
    made = rotate(settings, chosen, time.time(), 0.0 if at_once else overlap_hours * 3600)
    until = "those before count no more" if at_once else f"those before count for {overlap_hours:g} h more"
    if left := [name for name in chosen if name not in made]:
        typer.echo(f"left as it is, since the one before still counts: {', '.join(left)}")
    typer.echo(f"new: {', '.join(made)}; {until}")
    _put_on_record(settings, f"{', '.join(made)}; {until}")
    typer.echo("Airflow's services sign with the ones before until `elastic down` and `elastic up`")


def _put_on_record(settings: Settings, detail: str) -> None:
    """Without a ledger it is said: secrets must be made anew all the same."""
    from elastic_core.control.plane import open_control

    try:
        control = open_control(settings)
    except InfrastructureError as failure:
        typer.echo(f"`elastic audit` will not show this, since the ledger is not there: {failure}", err=True)
        return
    try:
        control.acting(operator()).secrets_rotated(detail)
    finally:
        control.close()


@app.command()
def password(user: Annotated[str, typer.Argument(help="user of Airflow's login")] = ADMIN) -> None:
    """Show a password: that of the user `admin` is for Airflow and MLflow alike, others are Airflow's."""
    try:
        typer.echo(user_password(Settings(), user))
    except FileNotFoundError as error:
        raise UserError(f"there is no password yet ({error.filename}): run `elastic up` first") from None
